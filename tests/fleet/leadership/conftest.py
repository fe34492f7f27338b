"""Two control planes on one store, of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.postgresql import Server
from tests.fleet.leadership.pair import Pair


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the store is that both use."""
    if request.param == "sqlite":
        (tmp_path / "store").mkdir()
        yield f"sqlite://{tmp_path}/store/llmgw.db"
        return
    server: Server = request.getfixturevalue("postgresql_server")
    with server.database() as made:
        yield made


@pytest.fixture
def pair(tmp_path: Path, url: str) -> Iterator[Pair]:
    """The first leads."""
    made = Pair(tmp_path, url)
    try:
        yield made.start()
    finally:
        made.stop()
