"""What people want of nodes, domains and the whole, through the real loop (PLC-03, PLC-09, PLC-15, REC-31)."""

import msgspec

from controlplane.events import Cordon, EnrolmentChanged, HoldsSet, LabelsSet, ServingSet
from controlplane.loop import Intent
from controlplane.planning.explain import explain
from tests.unit.controlplane.core.harness import ONE_MODEL, Harness, spec

RACK = "llmgw.io/rack"
GOLD = ONE_MODEL.replace("cpu_cores: 1", "cpu_cores: 1, node_selector: {tier: gold}")
HOLD = Cordon("power work", "ben", "2026-01-01T00:00:00+00:00")
QUICK = {"drain_grace": 20.0}


def labelled(h: Harness, node_id: str, **labels: str) -> None:
    agent = h.agents[node_id]
    agent.inventory = msgspec.structs.replace(
        agent.inventory, labels={k.replace("__", "/"): v for k, v in labels.items()}
    )


def test_labels_of_people_lie_over_the_agents():
    """PLC-09: what people set wins, what they do not name stays as the agent says."""
    h = Harness(connect=False)
    labelled(h, "n1", tier="silver", room="a")
    h.connect("n1")
    assert h.view.nodes["n1"].labels == {"tier": "silver", "room": "a"}
    h.feed(LabelsSet("n1", {"tier": "gold"}))
    assert h.view.nodes["n1"].labels == {"tier": "gold", "room": "a"}
    assert h.kinds("labels")[0].reason == "set by a person: tier=gold"
    h.feed(LabelsSet("n1", {}))
    assert h.view.nodes["n1"].labels == {"tier": "silver", "room": "a"}


def test_a_label_opens_a_node_to_a_selector_at_once():
    """PLC-09, PLC-16: placement sees people's labels, and so does explain."""
    h = Harness(GOLD)
    h.advance(5)
    assert not h.replicas()
    assert "needs label tier=gold" in h.table["tiny"].reason
    h.feed(LabelsSet("n1", {"tier": "gold"}))
    h.advance(5)
    assert h.only().state == "ready"


def test_a_label_taken_away_moves_nothing():
    """Rule 4: what serves stays, also where it would not be placed now."""
    h = Harness(GOLD, intent=Intent(labels={"n1": {"tier": "gold"}}))
    h.advance(5)
    h.feed(LabelsSet("n1", {}))
    h.advance(30)
    assert h.only().state == "ready"
    assert not h.kinds("drain")


def test_a_reregistering_agent_clears_no_label_and_no_hold():
    """PLC-03: intent is stored apart from status."""
    h = Harness(GOLD)
    h.feed(LabelsSet("n1", {"tier": "gold", RACK: "r1"}))
    h.feed(HoldsSet({f"{RACK}=r1": HOLD}))
    h.disconnect("n1")
    labelled(h, "n1", tier="silver")
    h.connect("n1")
    assert h.view.nodes["n1"].labels == {"tier": "gold", RACK: "r1"}
    assert h.view.held(h.view.nodes["n1"]) == ((f"{RACK}=r1", HOLD),)


def test_intent_waits_for_nodes_that_are_not_enrolled_yet():
    """PLC-03: labels outlive the node's enrolment, and the process by what it is given."""
    h = Harness(GOLD)
    h.feed(LabelsSet("n2", {"tier": "gold"}))
    h.feed(EnrolmentChanged(frozenset({"n1", "n2"})))
    assert h.view.nodes["n2"].labels == {"tier": "gold"}
    h.feed(EnrolmentChanged(frozenset({"n1"})))
    h.feed(EnrolmentChanged(frozenset({"n1", "n2"})))
    assert h.view.nodes["n2"].labels == {"tier": "gold"}
    h.restart(intent=Intent(labels={"n1": {"a": "b"}}, holds={"a=b": HOLD}, cordons={"n1": HOLD}))
    node = h.view.nodes["n1"]
    assert (node.labels, node.cordon, h.view.held(node)) == ({"a": "b"}, HOLD, (("a=b", HOLD),))


def test_nothing_new_comes_into_a_held_domain_and_what_runs_stays():
    """PLC-15: refused with domain, reason and actor; released, it is placed."""
    h = Harness(nodes=("n1", "n2"), connect=False)
    labelled(h, "n1", **{"llmgw.io__rack": "r1"})
    labelled(h, "n2", **{"llmgw.io__rack": "r2"})
    h.connect("n1")
    h.connect("n2")
    h.advance(5)
    (at,) = (shard.node_id for shard in h.only().shards.values())
    h.feed(HoldsSet({f"{RACK}=r1": HOLD, f"{RACK}=r2": HOLD}))
    assert next(d.reason for d in h.kinds("hold")) == f"domain {RACK}=r1, by ben: power work"
    h.reload(ONE_MODEL.replace("{min: 1, max: 1}", "{min: 2, max: 2}"))
    h.advance(30)
    assert h.only().state == "ready"
    assert not h.kinds("drain")
    said = explain(h.view, "tiny", h.clock.monotonic())
    assert {(r.code, r.message) for v in said.verdicts for r in v.reasons} == {
        ("domain_held", f"domain {RACK}={rack} is held by ben: power work") for rack in ("r1", "r2")
    }
    other = "r2" if at == "n1" else "r1"
    h.feed(HoldsSet({f"{RACK}={'r1' if other == 'r2' else 'r2'}": HOLD}))
    h.advance(5)
    assert sorted(s.node_id for r in h.replicas("tiny", "ready") for s in r.shards.values()) == ["n1", "n2"]
    assert f"domain {RACK}={other}" in h.kinds("release")[0].reason


def test_stopping_drains_everything_and_starting_brings_it_back():
    """REC-31: every model wants none, routers are told ``stopped`` for each, with who
    and the remedy; nothing is placed until somebody starts it again."""
    h = Harness(ONE_MODEL + "  off: {profiles: [{engine: sim, source: 'sim:', min_memory_gb: 1}]}\n", **QUICK)
    h.advance(5)
    old = h.only().id
    h.feed(ServingSet(True, "anna"))
    assert {model.state for model in h.table.values()} == {"stopped"}
    h.settle()
    assert h.view.replicas[old].state == "draining"
    assert not h.table["tiny"].endpoints
    assert h.table["tiny"].reason == "serving was stopped by anna; llmgw start ends that"
    assert h.kinds("drain")[0].reason == h.table["tiny"].reason
    h.advance(60)
    assert not h.replicas()
    assert not h.agents["n1"].shards
    said = explain(h.view, "tiny", h.clock.monotonic())
    assert (said.state, said.wanted) == ("stopped", 0)
    assert [(r.code, r.message) for r in said.blockers] == [("serving_stopped", h.table["tiny"].reason)]
    h.feed(ServingSet(False, "anna"))
    h.advance(5)
    assert h.only().state == "ready"
    assert h.only().id != old
    assert h.table["tiny"].state == "ready"
    assert h.table["off"].state == "off"
    assert [d.kind for d in h.notes if d.kind.startswith("serving")] == ["serving-stopped", "serving-started"]


def test_what_is_adopted_while_stopped_drains():
    """REC-31, REC-24: a control plane that starts stopped drains what it finds, also
    while it settles, and its first table says stopped."""
    h = Harness(nodes=("n1", "n2"), connect=False, intent=Intent(serving=ServingSet(True, "anna")), **QUICK)
    h.settle()
    assert h.table["tiny"].state == "stopped"
    h.agents["n1"].run(spec())
    h.connect("n1")
    h.settle()
    assert h.view.settling.active
    assert h.only().state == "draining"
    h.advance(60)
    assert not h.replicas()


def test_the_same_again_is_no_news():
    """Events that change nothing note nothing."""
    h = Harness()
    for _ in range(2):
        h.feed(ServingSet(True, "anna"))
        h.feed(HoldsSet({"a=b": HOLD}))
        h.feed(LabelsSet("n1", {"a": "b"}))
    assert [len(h.kinds(kind)) for kind in ("serving-stopped", "hold", "labels")] == [1, 1, 1]
