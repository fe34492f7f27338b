"""Each test has an empty store. Here it is in SQLite; ``tests/fleet/store`` runs the same tests on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.store.database import Database
from controlplane.store.sqlite import Sqlite
from tests.unit.controlplane.store.places import Place, sqlite_place


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the newest schema."""
    file = tmp_path_factory.mktemp("store") / "template.db"
    Database(Sqlite(file)).open().close()
    return file


@pytest.fixture
def place(tmp_path: Path, sqlite_template: Path) -> Iterator[Place]:
    """A store with the newest schema and nothing in it."""
    with sqlite_place(tmp_path, sqlite_template) as made:
        yield made


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Place]:
    """A database without any table."""
    with sqlite_place(tmp_path) as made:
        yield made


@pytest.fixture
def database(place: Place) -> Database:
    """One writing connection."""
    return place.open()
