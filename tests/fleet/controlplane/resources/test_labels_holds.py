"""Labels, holds, cordons and restarts: what people want of nodes, domains and replicas."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.wire.messages import ShardChanged, ShardStatus, Start, Welcome
from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.controlplane.resources.asking import SIM, Api


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ControlPlane]:
    """Two models that want a replica each; not started yet."""
    catalog = {"models": {"one": SIM}}
    control_plane = ControlPlane(tmp_path, catalog, nodes=("node-1",), drain__grace="50ms")
    yield control_plane
    if control_plane.process is not None:
        control_plane.stop()


def test_labels_lie_over_the_agents_own(own: ControlPlane) -> None:
    """PLC-09: set by people, they win, give the location, and live through restarts."""
    api = Api(own.start())
    assert api.ok("GET", "nodes/node-1/labels")["labels"] == {}
    answer = api.ask("PUT", "nodes/node-1/labels", {"labels": {"llmgw.io/rack": "r1", "tier": "gold"}})
    tag = answer.headers["ETag"]
    changed = api.ok("PATCH", "nodes/node-1/labels", {"labels": {"llmgw.io/rack": "r2", "tier": None}}, If_Match=tag)
    assert changed["labels_set"] == {"llmgw.io/rack": "r2"} and changed["location"] == {"rack": "r2"}
    api.refused(412, "PATCH", "nodes/node-1/labels", {"labels": {"tier": "x"}}, If_Match=tag)
    own.stop()
    own.start()
    until(lambda: api.ok("GET", "nodes/node-1").get("location") == {"rack": "r2"}, "the label after the restart")
    assert [node["id"] for node in api.ok("GET", "nodes?domain=rack=r2")["nodes"]] == ["node-1"]
    assert api.ok("GET", "nodes?label=llmgw.io/rack=r1")["nodes"] == []
    assert "did you mean node-1?" in api.refused(404, "GET", "nodes/node-2/labels")["message"]
    faults = api.refused(
        422, "PATCH", "nodes/node-1/labels", {"labels": {"llmgw.io/rak": "x", "a b": "y", "ok": "not ok"}}
    )["faults"]
    assert {fault["path"] for fault in faults} == {"labels.llmgw.io/rak", "labels.a b", "labels.ok"}
    assert "did you mean llmgw.io/rack?" in str(faults)


def test_nothing_new_in_a_held_domain(own: ControlPlane) -> None:
    """PLC-15: a hold keeps a model out of a rack until it is released, also over a restart;
    the node, the model and status say why."""
    api = Api(own.start())
    api.ok("PUT", "nodes/node-1/labels", {"labels": {"llmgw.io/rack": "r1"}})
    held = api.ok("PUT", "holds/rack=r1", {"reason": "water"})
    assert held["domain"] == "llmgw.io/rack=r1" and held["nodes"] == ["node-1"] and held["actor"] == "local"
    own.stop()
    own.start()
    agent = own.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    until(lambda: "water" in str(api.ok("GET", "models/one").get("reason")), "the refusal")
    assert api.ok("GET", "nodes/node-1")["holds"][0]["reason"] == "water"
    assert api.ok("GET", "models/one/explain")["candidates"][0]["reasons"][0]["code"] == "domain_held"
    status = api.ok("GET", "status")
    assert status["nodes"]["held"] == 1 and any(row["kind"] == "hold" for row in status["problems"])
    assert [row["domain"] for row in api.ok("GET", "holds")["holds"]] == ["llmgw.io/rack=r1"]
    assert api.ok("DELETE", "holds/llmgw.io%2Frack=r1")["reason"] == "water"
    assert agent.expect(Start).spec.model == "one"
    assert "did you mean" not in api.refused(404, "DELETE", "holds/rack=r1")["message"]
    agent.close()


def test_replicas_are_replaced_on_request(own: ControlPlane) -> None:
    """REC-30: a new replica is started beside the old one, which shows that it is queued or
    being replaced; the audit says who asked for what."""
    api = Api(own.start())
    agent = own.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    old = agent.expect(Start).spec.without_secret()
    agent.send(ShardChanged(status=ShardStatus(spec=old, state="ready", pid=1)))
    until(lambda: api.ok("GET", "models/one")["ready"] == 1, "the replica")
    assert api.ok("POST", "replicas/restart", {"stale": True})["queued"] == []
    queued = api.ok("POST", "replicas/restart", {"model": "one", "reason": "leak"}, Idempotency_Key="r1")["queued"]
    assert [row["id"] for row in queued] == [old.replica_id]
    new = agent.expect(Start).spec
    assert new.model == "one" and new.replica_id != old.replica_id
    for query, shows in (("", True), ("?rejected=true", True), ("?rejected=false", False)):
        listed = api.ok("GET", f"replicas{query}")["replicas"]
        assert ["rejected" in replica for replica in listed] == [shows, shows]
    shown = api.ok("GET", f"replicas/{old.replica_id}")
    assert (
        shown["restart"] == "replacing" and "leak" in shown["restart_asked"] and shown["replacement"] == new.replica_id
    )
    again = api.ok("POST", "replicas/restart", {"model": "one", "reason": "leak"}, Idempotency_Key="r1")
    assert [row["id"] for row in again["queued"]] == [old.replica_id]
    faults = api.refused(422, "POST", "replicas/restart", {"replicas": ["nope", old.replica_id]})["faults"]
    assert [fault["path"] for fault in faults] == ["replicas[0]"]
    (entry, *_) = api.ok("GET", "audit?kind=restart&target=model one")["audit"]
    assert entry["after"] == {"replicas": [old.replica_id], "in_place": False, "reason": "leak"}
    agent.close()


def test_owners_restart_their_own_alone(shared_api: Api) -> None:
    """API-08, REC-30: others' models do not exist for them."""
    shared_api.ok("POST", "scopes", {"path": "restarts"})
    owner = shared_api.user("own-restarts", {"role": "owner", "scope": "restarts"})
    owner.refused(404, "POST", "replicas/restart", {"model": "sim-small"})
    owner.refused(403, "GET", "holds")
    owner.refused(403, "PUT", "nodes/node-1/labels", {"labels": {}})
    assert owner.ok("POST", "replicas/restart", {"all": True})["queued"] == []
