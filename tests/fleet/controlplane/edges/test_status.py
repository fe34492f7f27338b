"""What status calls a problem, and what it does not."""

from pathlib import Path

from controlplane.services.status import FIRST_REPORTS
from llmgw.wire.messages import Forget, ShardChanged, ShardExit, ShardExited, ShardStatus, Start
from tests.fakes.controlplane import CATALOG, Agent, ControlPlane, until
from tests.harness import identities
from tests.unit.controlplane.services.watched import Watched


def problems(age: float) -> list[str]:
    """Problems about routers of a control plane of that age to which none has reported."""
    found = Watched(age=age).problems()
    return [problem["message"] for problem in found if problem["kind"] == "routers"]


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


def test_a_wrong_certificate_is_told_where_people_look(tmp_path: Path) -> None:
    """CLI-02, rule 3: a node that cannot come in says why, and no longer once it came in."""
    plane = ControlPlane(tmp_path, nodes=("node-1",)).start()
    try:
        stranger = plane.agent("node-1", identities.ours().node(tmp_path / "node-2", "node-2"))
        stranger.sock.sendall(stranger.request())
        assert stranger.answer()[0] == 403

        def told() -> list[str]:
            return [p["message"] for p in plane.get("status")["problems"] if p["kind"] == "node"]

        (message,) = told()
        assert "is unreachable (not heard since this control plane leads); it was refused " in message
        assert "the certificate is that of node node-2, not of node node-1: give it its own with llmgw join" in message
        agent = plane.agent().upgrade().hello().register()
        until(lambda: not told())
        agent.close()
        until(told)
        assert "refused" not in told()[0]
    finally:
        plane.stop()


def test_an_engine_that_ended_unseen_has_a_reason(tmp_path: Path) -> None:
    """Rule 3: agent and control plane were both away when it ended; the new control plane tells
    why, and holds nothing against the model."""
    lost = ShardExit(replica_id="sim-small-0000000a", code="exited", model="sim-small", message="killed by signal 11")
    plane = ControlPlane(tmp_path).start()
    try:
        agent = plane.agent().upgrade().hello().register(exits=(lost,))
        assert agent.expect(Forget).shards == (lost.key,)
        model = plane.get("models/sim-small")
        assert model["last_error"] == "killed by signal 11 on node node-1"
        assert model["failures"] == 0
    finally:
        plane.stop()
