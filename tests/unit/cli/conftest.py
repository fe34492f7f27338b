"""A running control plane for the command, and the command in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llmgw.cli import main
from llmgw.wire.messages import ShardChanged, ShardStatus, Start, Welcome
from tests.fakes.controlplane import ControlPlane, until

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With one node in session that serves sim-small; sim-huge cannot be placed."""
    started = ControlPlane(tmp_path_factory.mktemp("cli")).start()
    agent = started.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    spec = agent.expect(Start).spec
    agent.send(ShardChanged(status=ShardStatus(spec=spec.without_secret(), state="ready", pid=4242)))
    until(lambda: started.get("models/sim-small").get("state") == "ready", "the replica")
    yield started
    agent.close()
    started.stop()


@pytest.fixture(autouse=True)
def nobodys_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither tokens nor addresses of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("llmgw.cli.credentials.LOCAL", tmp_path / "none" / "admin.token")
    for name in ("LLMGW_TOKEN", "LLMGW_TOKEN_FILE", "LLMGW_API", "LLMGW_CA", "COLUMNS", "EDITOR", "VISUAL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(control_plane: ControlPlane) -> Run:
    """The command against the control plane: ``run("ctl", "status")``."""

    def call(*arguments: str, stdin: str | None = None, **environment: str) -> Result:
        own = {"LLMGW_API": control_plane.api, "LLMGW_TOKEN_FILE": str(control_plane.state / "admin.token")}
        return CliRunner().invoke(main, arguments, input=stdin, env={**own, **environment})

    return call
