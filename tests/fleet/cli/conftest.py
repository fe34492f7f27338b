"""A running control plane for the command, and the command in this process."""

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from llmgw.cli import main
from llmgw.wire.messages import ShardChanged, ShardStatus, Start, Welcome
from tests.fakes.controlplane import ControlPlane, until
from tests.unit.cli.conftest import nobodys_home

__all__ = ["nobodys_home"]

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


@pytest.fixture
def run(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command against the control plane: ``run("ctl", "status")``."""
    # A command that becomes another program would take pytest with it, without a word.
    monkeypatch.setattr("os.execv", lambda *_: pytest.fail("the command becomes another program"))

    def call(*arguments: str, stdin: str | None = None, **environment: str) -> Result:
        own = {"LLMGW_API": control_plane.api, "LLMGW_TOKEN_FILE": str(control_plane.state / "admin.token")}
        return CliRunner().invoke(main, arguments, input=stdin, env={**own, **environment})

    return call
