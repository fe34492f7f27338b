"""Two control planes and two nodes as processes: the lead goes over, and clients do not notice (HA-01, HA-02)."""

from pathlib import Path

from tests.harness import Cluster, until
from tests.harness.models import sim_model

SETTLED = {"settling": {"steady": "5s", "limit": "30s"}}


def test_the_lead_goes_over_by_a_kill_and_by_a_stop(tmp_path: Path) -> None:
    """HA-01, HA-02, REC-24: the other one leads with a higher epoch, all sessions and the router go to it, engines
    run on, and requests are answered throughout; the one that comes back stands by."""
    with Cluster(
        tmp_path,
        {"m": sim_model(replicas=2)},
        controlplane=SETTLED,
        control_planes=("one", "two"),
        nodes=("node-a", "node-b"),
    ) as c:
        c.start()
        client = c.client(c.make_key())
        until(lambda: c.api("models/m")["ready"] == 2, 40, "both replicas are ready")
        until(lambda: c.answers(client, "m"), 10, "the router serves it")
        pids = c.engine_pids()
        assert len(pids) == 2
        first, epoch = c.leader(), c.api("status")["epoch"]
        (second,) = set(c.layout.control_planes) - {first}

        c.part(first).kill()
        assert c.answers(client, "m")
        assert until(c.leader, 40, "the other one leads") == second
        assert c.api("status")["epoch"] > epoch
        until(c.nodes_in_session, 60, "both agents have found it")
        until(lambda: c.api("models/m")["ready"] == 2, 20, "what runs is known")
        assert c.answers(client, "m") and c.engine_pids() == pids

        c.part(first).restart()
        until(lambda: "standing by" in c.part(first).tail(), 20, "it stands by")
        assert c.leader() == second
        c.part(second).stop()
        assert until(c.leader, 20, "the first one leads again") == first
        until(c.nodes_in_session, 60, "both agents have found it")
        until(lambda: c.api("models/m")["ready"] == 2, 20, "what runs is known")
        assert c.answers(client, "m") and c.engine_pids() == pids
        for part in (first, second, "node-a", "node-b", "router"):
            assert "Traceback" not in c.part(part).output
