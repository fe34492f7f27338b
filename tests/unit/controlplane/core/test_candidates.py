"""Answers that are kept are those that would be given anew, whatever happened in between."""

import dataclasses
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.events import Cordon
from controlplane.planning.candidates import MAX_POOLS, Candidates
from controlplane.planning.examine import Fit, need
from controlplane.planning.overlay import Overlay
from controlplane.planning.placement import choose
from controlplane.planning.step import KEPT_VERDICTS, shard_spec
from controlplane.planning.view import FleetView, ModelHealth, NodeView
from controlplane.planning.work import LONG, Measured, Work
from llmgw.wire.messages import Cpu, DeviceUse, EngineInstall, Measurements, PortRange
from tests.unit.controlplane.core import plain
from tests.unit.controlplane.core.harness import GIB, gpus, inventory
from tests.unit.controlplane.core.test_placement import GPU, NOW, catalog, change_profile, fleet, profile, rack, running
from tests.unit.controlplane.core.test_properties import EXAMPLES, add, copied, fleets


def ended(work):
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def agree(view, overlay, candidates, model, *, now=NOW, leaving=None):
    """The kept answers come to what the plain way does; returns the choice."""
    choice = ended(choose(view, overlay, candidates, model, work=Work(), now=now, leaving=leaving))
    spot, verdicts = plain.choose(view, overlay, model, now, leaving)
    assert choice.spot == spot
    rejected = tuple(verdict for verdict in verdicts if verdict.reasons)
    assert choice.rejected(KEPT_VERDICTS) == rejected[:KEPT_VERDICTS]
    assert choice.rejected(2) == rejected[:2]
    assert ended(choice.verdicts(Work())) == verdicts
    if spot is None:
        assert choice.refusal(KEPT_VERDICTS) == plain.refusal(model, verdicts, KEPT_VERDICTS)
        assert choice.refusal(1) == plain.refusal(model, verdicts, 1)
    return choice


def _inventory(view, node, rng):
    devices = node.inventory.devices if node.inventory else ()
    spoilt = tuple(
        msgspec.structs.replace(device, excluded=rng.choice([None, None, "ECC fault"])) for device in devices
    )
    labels = rng.choice([{}, {"tier": "gold"}, {"llmgw.io/rack": "a", "llmgw.io/pdu": "p"}, {"llmgw.io/rack": ""}])
    engine = EngineInstall(name="sim", state=rng.choice(["ready", "ready", "failed", "probing"]))
    node.inventory = msgspec.structs.replace(
        node.inventory or inventory(),
        devices=spoilt,
        labels=labels,
        engines=rng.choice([None, (engine,)]),
        memory_bytes=rng.choice([None, 4 * GIB, 40 * GIB]),
        cpu=Cpu(count=rng.choice([None, 2, 16])),
    )


FACTS = {
    "registered": (True, True, True, False),
    "session": ("s", None),
    "status": ("connected", "unreachable", "lost"),
    "last_heard": (None, 1.0),
    "agent_version": (None, "1", "2"),
    "capabilities": (frozenset(), frozenset({"fetch:hf"})),
}


def _session(view, node, rng):
    """One fact alone, so that none is noticed only because another one changed too."""
    fact = rng.choice(sorted(FACTS))
    setattr(node, fact, rng.choice(FACTS[fact]))


def _measured(view, node, rng):
    uses = tuple(
        DeviceUse(uuid=device.uuid, foreign_processes=rng.choice([(), ("x (pid 1)",), ("y (pid 2)",)]))
        for device in (node.inventory.devices if node.inventory else ())
    )
    node.measurements = rng.choice([None, Measurements(devices=uses), Measurements(cpu_percent=rng.random())])


def _people(view, node, rng):
    what = rng.choice(["cordon", "labels", "holds"])
    if what == "cordon":
        node.cordon = rng.choice([None, Cordon("r", "a", "t"), Cordon("s", "a", "t")])
    elif what == "labels":
        node.own_labels = rng.choice([{}, {"tier": "gold"}, {"llmgw.io/rack": "b"}])
    else:
        held = [{}, {"tier=gold": "h"}, {"tier=gold": "i"}, {"llmgw.io/rack=b": "h"}]
        view.holds = {domain: Cordon(why, "a", "t") for domain, why in rng.choice(held).items()}


def _ports(view, node, rng):
    node.avoid_ports = rng.choice([{}, {20000: NOW + 5}, {20000: NOW - 1, 20001: NOW + 9}])


def _gone(view, node, rng):
    """It leaves, or is enrolled anew, before or while a hold changes."""
    del view.nodes[node.id]
    if rng.random() < 0.5:
        view.nodes[node.id] = NodeView(id=node.id)
    if rng.random() < 0.3:
        view.holds = {"tier=silver": Cordon("h", "a", "t")}


def _ended(view, node, rng):
    for replica in [r for r in view.replicas.values() if r.shards[0].node_id == node.id]:
        if rng.random() < 0.7:
            replica.shards[0].phase = rng.choice(["exited", "ready"])


def _failed(view, node, rng):
    model = rng.choice(sorted(view.catalog.models))
    view.health[model] = ModelHealth(failures=1, failed_nodes=rng.choice([{}, {node.id: 1.0}]))


CHANGES = (_inventory, _session, _session, _session, _measured, _people, _ports, _gone, _ended, _failed)


def _set(**facts):
    return lambda view: [setattr(view.nodes["n1"], name, value) for name, value in facts.items()]


def _foreign(view):
    view.nodes["n1"].measurements = Measurements(devices=(DeviceUse(uuid="GPU-0", foreign_processes=("x (pid 1)",)),))


def _fetched():
    """A profile whose weights the agent is to fetch, which no catalog of this engine may have."""
    view = fleet(catalog())
    change_profile(view, source="hf:org/name")
    return view.catalog


FETCHED = _fetched()
AWAY = {"registered": False, "session": None, "last_heard": 1.0}


@pytest.mark.parametrize(
    ("cat", "before", "change"),
    [
        (catalog(), {}, _set(registered=False)),
        (catalog(), {"registered": False}, _set(session=None)),
        (catalog(), AWAY, _set(last_heard=None)),
        (catalog(), {**AWAY, "status": "unreachable"}, _set(status="lost")),
        (FETCHED, {}, _set(agent_version="2")),
        (FETCHED, {}, _set(capabilities=frozenset({"fetch:hf"}))),
        (catalog(), {}, _set(cordon=Cordon("r", "a", "t"))),
        (catalog(), {"cordon": Cordon("r", "a", "t")}, _set(cordon=Cordon("s", "a", "t"))),
        (catalog(profile(node_selector="{tier: gold}")), {}, _set(own_labels={"tier": "gold"})),
        (catalog(), {}, _set(inventory=inventory(memory_bytes=GIB))),
        (catalog(GPU), {}, _foreign),
        (catalog(), {}, _set(avoid_ports={20000: NOW + 50})),
        (catalog(), {"avoid_ports": {20000: NOW + 5}}, lambda view: None),
        (catalog(), {}, lambda view: setattr(view, "holds", {"llmgw.io/rack=r": Cordon("h", "a", "t")})),
    ],
)
def test_every_fact_counts(cat, before, change):
    """Each thing that an answer depends on is noticed when it alone changes, here time too."""
    has = inventory(devices=gpus(2), labels={"llmgw.io/rack": "r"}, engine_ports=PortRange(first=20000, last=20000))
    view = fleet(cat, n1=has)
    _set(**before)(view)
    overlay, candidates, model = Overlay(view), Candidates(), view.catalog.models["tiny"]
    agree(view, overlay, candidates, model)
    first = plain.choose(view, overlay, model, NOW)
    change(view)
    view.nodes_version += 1
    assert plain.choose(view, overlay, model, NOW + 9) != first
    agree(view, Overlay(view), candidates, model, now=NOW + 9)


@EXAMPLES
@given(fleets(), st.integers(0, 2**32))
def test_what_is_kept_is_what_would_be_found_anew(view: FleetView, seed: int):
    """PLC-10 to PLC-24: over a history of changes and placements, within a pass and from
    pass to pass, every choice, score, verdict and refusal is that of the plain way."""
    rng, candidates = random.Random(seed), Candidates()
    models = [model for model in view.catalog.models.values() if model.profiles]
    for turn in range(10):
        now = NOW + turn * rng.choice([0, 3])
        for _ in range(rng.randint(0, 3)):
            if view.nodes and models:
                rng.choice(CHANGES)(view, view.nodes[rng.choice(sorted(view.nodes))], rng)
                view.nodes_version += 1
        overlay = Overlay(view, later=rng.random() < 0.5)
        for step in range(rng.randint(1, 4) if models else 0):
            model = rng.choice(models)
            old = rng.choice([None, *view.replicas.values()])
            choice = agree(view, overlay, candidates, model, now=now, leaving=old)
            if old is not None and rng.random() < 0.5:
                agree(view, overlay.without(old), candidates, model, now=now, leaving=old)
            if choice.spot is not None and rng.random() < 0.8:
                replica_id = f"{model.name}-{turn}-{step}"
                spec = shard_spec(model, choice.spot, replica_id)
                overlay.add(replica_id, choice.spot.node.id, spec)
                if rng.random() < 0.7:  # else the decision is dropped after the pass
                    add(view, replica_id, choice.spot.node.id, spec)
                    overlay.ids.add(replica_id)


@EXAMPLES
@given(fleets())
def test_a_need_is_all_that_is_looked_at_of_a_profile(view: FleetView):
    """Two profiles with the same need share a pool: whatever else of them differs changes no answer."""
    overlay = Overlay(view)
    for model in view.catalog.models.values():
        for row in model.profiles:
            other = dataclasses.replace(
                row, name="other", fingerprint="g", priority=9, startup_timeout=1.0, args=("--x",), weight=2.0
            )
            assert need(other) == need(row)
            for node in view.nodes.values():
                answers = [
                    plain.examine(node, overlay.on(node.id), which, holds=view.held(node), now=NOW)
                    for which in (row, other)
                ]
                assert answers[0] == answers[1]


def test_more_kinds_of_profiles_than_are_kept():
    """The oldest answers are forgotten and found anew."""
    view = fleet(catalog(*(f"{{engine: sim, source: 'sim:', name: p{i}, min_memory_gb: {i + 1}}}" for i in range(20))))
    for name in ("n1", "n2"):
        view.nodes[name] = copied(fleet(n1=inventory())).nodes["n1"]
        view.nodes[name].id = name
    candidates = Candidates()
    model = view.catalog.models["tiny"]
    assert len(model.profiles) > MAX_POOLS
    for row in model.profiles * 2:
        agree(view, Overlay(view), candidates, dataclasses.replace(model, profiles=(row,)))
    agree(view, Overlay(view), candidates, model)


def test_only_what_changed_is_examined_again(monkeypatch):
    """A placement costs one look at one node, not one at every node."""
    view = fleet(catalog(GPU), **{f"n{i}": rack(f"r{i % 3}") for i in range(9)})
    for node in view.nodes.values():
        node.inventory = msgspec.structs.replace(node.inventory, devices=gpus(4))
    looked: list[str] = []

    def examine(node, *args, **options):
        looked.append(node.id)
        return plain.examine(node, *args, **options)

    monkeypatch.setattr("controlplane.planning.candidates.examine", examine)
    overlay, candidates, model = Overlay(view), Candidates(), view.catalog.models["tiny"]
    first = agree(view, overlay, candidates, model)
    assert sorted(looked) == sorted(view.nodes)
    looked.clear()
    overlay.add("tiny-1", first.spot.node.id, shard_spec(model, first.spot, "tiny-1"))
    assert agree(view, overlay, candidates, model).spot.node.id != first.spot.node.id
    assert looked == [first.spot.node.id]
    looked.clear()
    view.nodes["n7"].cordon = Cordon("r", "a", "t")
    view.nodes_version += 1
    agree(view, overlay, candidates, model)
    assert looked == ["n7"]


def test_what_a_pass_placed_last_is_known_to_the_next():
    """Nothing was asked after it; in the next pass the claims are the same, but new to the answers."""
    view = fleet(n1=inventory(), n2=inventory())
    running(view, "n2", "x-1", model="x")
    running(view, "n2", "x-2", model="x")
    overlay, candidates, model = Overlay(view), Candidates(), view.catalog.models["tiny"]
    spot = agree(view, overlay, candidates, model).spot
    spec = shard_spec(model, spot, "tiny-1")
    overlay.add("tiny-1", spot.node.id, spec)
    view.replicas.clear()
    add(view, "tiny-1", spot.node.id, spec)
    view.nodes_version += 1
    agree(view, Overlay(view), candidates, model)


def test_fit_holds_no_more_than_the_scores_need():
    """Every term of a score that does not depend on the model is one of ``Fit``."""
    assert [field.name for field in dataclasses.fields(Fit)] == [
        *("devices", "port", "devices_left", "untouched", "memory_left"),
    ]


def test_a_slice_ends_when_its_time_is_over():
    """The clock that is handed in decides, not the number of units; time between two
    slices does not count."""
    now = [0.0]
    work = Measured(lambda: now[0])
    assert not any(work.spent(1000) for _ in range(1000))
    now[0] += LONG
    assert work.spent()
    now[0] += 10 * LONG
    assert not work.spent()
    now[0] += LONG / 2
    assert not work.spent()
    now[0] += LONG / 2
    assert work.spent()
