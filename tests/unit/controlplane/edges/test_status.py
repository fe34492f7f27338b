"""What status calls a problem, and what it does not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from controlplane.catalog.model import Catalog
from controlplane.planning.view import FleetView
from controlplane.services.status import FIRST_REPORTS, Identity, Status
from llmgw.runtime.clock import ManualClock
from llmgw.wire.messages import ShardChanged, ShardExit, ShardExited, ShardStatus, Start
from tests.fakes.controlplane import CATALOG, Agent, ControlPlane, until


def problems(age: float) -> list[str]:
    """Problems about routers of a control plane of that age to which none has reported."""
    clock = ManualClock()
    identity = Identity("1", boot="b", started=clock.monotonic(), epoch=lambda: 1)
    clock.advance(age)
    quiet: Any = SimpleNamespace(refusal=None, failing=None, view=FleetView(catalog=Catalog()), models=list)
    status = Status(
        identity,
        fleet=cast(Any, quiet),
        catalog=cast(Any, quiet),
        store=cast(Any, quiet),
        clock=clock,
        routers=tuple,
        journal=cast(Any, quiet),
    )
    return [problem["message"] for problem in status.read()["problems"] if problem["kind"] == "routers"]


def test_silence_is_a_problem_only_once_it_means_something() -> None:
    """CLI-02, rule 2: a control plane that has just started does not know of routers yet, and never
    claims a longer silence than it has lived."""
    assert problems(FIRST_REPORTS / 2) == []
    assert problems(20)[0].startswith("no router has reported for 20 s")
    assert problems(4000)[0].startswith("no router has reported for 60 s")


def serve(agent: Agent) -> ShardStatus:
    """Take the next start and say that its shard is ready."""
    spec = agent.expect(Start).spec.without_secret()
    status = ShardStatus(spec=spec, state="ready", pid=4711, age=1.0, state_age=0.0)
    agent.send(ShardChanged(status=status))
    return status


def test_what_is_over_is_no_problem_and_a_lost_session_is_one(tmp_path: Path) -> None:
    """CLI-02: a model that recovered is not listed for its old error; a node without a session
    is not called connected until the time-out says otherwise (REC-10)."""
    catalog = {"models": {"sim-small": CATALOG["models"]["sim-small"]}}
    plane = ControlPlane(tmp_path, catalog, backoff__first="50ms", backoff__limit="100ms").start()
    try:
        agent = plane.agent().upgrade().hello().register()
        first = serve(agent)
        until(lambda: plane.get("models/sim-small")["ready"] == 1)
        agent.send(
            ShardExited(exit=ShardExit(replica_id=first.spec.replica_id, code="exited", message="killed by signal 9"))
        )
        until(lambda: any("killed by signal 9" in p["message"] for p in plane.get("status")["problems"]))
        serve(agent)
        until(lambda: plane.get("models/sim-small")["ready"] == 1)
        assert [p for p in plane.get("status")["problems"] if p["kind"] == "model"] == []
        assert "killed by signal 9" in plane.get("models/sim-small")["last_error"]

        assert plane.get("nodes/node-1")["status"] == "connected"
        agent.close()
        until(lambda: plane.get("nodes/node-1")["status"] == "reconnecting")
        status = plane.get("status")
        assert (status["nodes"]["connected"], status["nodes"]["reconnecting"]) == (0, 1)
        assert {"kind": "node", "subject": "node-1", "message": "is reconnecting"} in status["problems"]
    finally:
        plane.stop()
