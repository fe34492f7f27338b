"""Answers that are kept are those that would be given anew, whatever happened in between."""

import dataclasses
import random

import msgspec
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
from llmgw.wire.messages import Cpu, DeviceUse, EngineInstall, Measurements
from tests.unit.controlplane.core import plain
from tests.unit.controlplane.core.harness import GIB, gpus, inventory
from tests.unit.controlplane.core.test_placement import GPU, NOW, catalog, fleet, rack
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


def _session(view, node, rng):
    node.registered = rng.random() < 0.5
    node.session = "s" if node.registered or rng.random() < 0.5 else None
    node.status = rng.choice(["connected", "unreachable", "lost"])
    node.last_heard = rng.choice([None, 1.0])
    node.agent_version = rng.choice([None, "1", "2"])
    node.capabilities = rng.choice([frozenset(), frozenset({"fetch:hf"})])


def _measured(view, node, rng):
    uses = tuple(
        DeviceUse(uuid=device.uuid, foreign_processes=rng.choice([(), ("x (pid 1)",), ("y (pid 2)",)]))
        for device in (node.inventory.devices if node.inventory else ())
    )
    node.measurements = rng.choice([None, Measurements(devices=uses), Measurements(cpu_percent=rng.random())])


def _people(view, node, rng):
    node.cordon = rng.choice([None, Cordon("r", "a", "t"), Cordon("s", "a", "t")])
    node.own_labels = rng.choice([{}, {"tier": "gold"}, {"llmgw.io/rack": "b"}])
    view.holds = rng.choice(
        [
            {},
            {"tier=gold": Cordon("h", "a", "t")},
            {"tier=gold": Cordon("i", "b", "t")},
            {"llmgw.io/rack=b": node.cordon},
        ]
    )
    view.holds = {domain: hold for domain, hold in view.holds.items() if hold is not None}


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


CHANGES = (_inventory, _session, _measured, _people, _ports, _gone, _ended, _failed)


@EXAMPLES
@given(fleets(), st.integers(0, 2**32))
def test_what_is_kept_is_what_would_be_found_anew(view: FleetView, seed: int):
    """PLC-10 to PLC-24: over a history of changes and placements, within a pass and from
    pass to pass, every choice, score, verdict and refusal is that of the plain way."""
    rng, candidates = random.Random(seed), Candidates()
    models = [model for model in view.catalog.models.values() if model.profiles]
    for turn in range(8):
        now = NOW + turn * rng.choice([0, 3])
        overlay = Overlay(view)
        for _ in range(rng.randint(0, 3)):
            if view.nodes and models:
                rng.choice(CHANGES)(view, view.nodes[rng.choice(sorted(view.nodes))], rng)
                view.version += 1
        overlay = Overlay(view, later=rng.random() < 0.5)
        for step in range(rng.randint(0, 4)):
            if not models:
                break
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
        for profile in model.profiles:
            other = dataclasses.replace(
                profile, name="other", fingerprint="g", priority=9, startup_timeout=1.0, args=("--x",), weight=2.0
            )
            assert need(other) == need(profile)
            for node in view.nodes.values():
                answers = [
                    plain.examine(node, overlay.on(node.id), which, holds=view.held(node), now=NOW)
                    for which in (profile, other)
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
    for profile in model.profiles * 2:
        agree(view, Overlay(view), candidates, dataclasses.replace(model, profiles=(profile,)))
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
    view.version += 1
    agree(view, overlay, candidates, model)
    assert looked == ["n7"]


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
