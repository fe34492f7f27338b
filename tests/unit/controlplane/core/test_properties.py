"""Property tests over generated fleets: what no placement may ever break.

The invariants are counted here once more, from the facts alone.
"""

import copy
import random

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.catalog.model import Catalog, Model, Profile, Scaling
from controlplane.events import Cordon
from controlplane.planning.check import check
from controlplane.planning.explain import explain
from controlplane.planning.overlay import Overlay
from controlplane.planning.plan import Place, Plan
from controlplane.planning.policy import LoopSettings
from controlplane.planning.reconcile import plan
from controlplane.planning.view import FleetView, NodeView, ReplicaView, Restart, Settling, ShardView
from llmgw.wire.messages import Cpu, Device, DeviceUse, EngineInstall, Measurements, PortRange
from tests.unit.controlplane.core.harness import GIB, inventory, spec

CLASSES = ("h100", "a100")
HOLD = Cordon("h", "a", "t")
EXAMPLES = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
maybe = st.none

profiles = st.builds(
    lambda number, gpu, memory, cores, priority, selector, engine, source, count: Profile(
        name=f"p{number}",
        engine=engine,
        source=source,
        nodes=count,
        fingerprint=f"f{number}",
        priority=priority,
        gpu_class=gpu[0] if gpu else None,
        gpus=gpu[1] if gpu else 0,
        memory_bytes=memory,
        cpu_cores=cores,
        node_selector={"tier": selector} if selector else {},
    ),
    st.integers(0, 9**6),
    maybe() | st.tuples(st.sampled_from(CLASSES), st.integers(1, 3)),
    maybe() | st.integers(1, 24).map(lambda gb: gb * GIB),
    maybe() | st.sampled_from([0.5, 1.0, 3.0]),
    st.integers(0, 2),
    st.sampled_from([None, None, "gold"]),
    st.sampled_from(["sim", "llamacpp"]),
    st.sampled_from(["sim:", "sim:", "sim:", "hf:org/name"]),
    st.sampled_from([1, 1, 1, 1, 2]),
)
models = st.lists(
    st.tuples(st.lists(profiles, min_size=1, max_size=3, unique_by=lambda p: p.name), st.integers(0, 4)), max_size=4
)
devices = st.lists(
    st.tuples(st.sampled_from(CLASSES), st.sampled_from([None, None, None, "ECC fault"]), st.booleans()), max_size=4
)
nodes = st.lists(
    st.fixed_dictionaries(
        {
            "devices": devices,
            "memory": maybe() | st.integers(1, 40).map(lambda gb: gb * GIB),
            "cores": maybe() | st.integers(1, 8),
            "ports": st.integers(1, 4),
            "ephemeral": st.booleans(),
            "engines": st.sampled_from(["ready", "ready", "probing", "failed", None]),
            "tier": st.sampled_from([None, "gold", "silver"]),
            "cordon": st.sampled_from([False, False, False, True]),
            "registered": st.sampled_from([True, True, True, False]),
            "people": st.sampled_from([{}, {}, {"tier": "gold"}, {"tier": "silver"}]),
            "fetches": st.booleans(),
        }
    ),
    max_size=5,
)


@st.composite
def fleets(draw) -> FleetView:
    catalog = Catalog(
        models={
            f"m{i}": Model(
                name=f"m{i}",
                profiles=tuple(sorted(rows, key=lambda p: -p.priority)),
                scaling=Scaling(count, count),
            )
            for i, (rows, count) in enumerate(draw(models))
        }
    )
    view = FleetView(catalog=catalog, settling=Settling(active=False))
    view.holds = draw(st.sampled_from([{}, {}, {"tier=silver": HOLD}, {"tier=gold": HOLD}]))
    for i, row in enumerate(draw(nodes)):
        node_id = f"n{i}"
        has = tuple(
            Device(uuid=f"{node_id}-GPU-{j}", index=j, device_class=cls, excluded=excluded)
            for j, (cls, excluded, _) in enumerate(row["devices"])
        )
        foreign = tuple(
            DeviceUse(uuid=f"{node_id}-GPU-{j}", foreign_processes=("x (pid 1)",))
            for j, (_, _, used) in enumerate(row["devices"])
            if used
        )
        engines = None
        if row["engines"] is not None:
            engines = (EngineInstall(name="sim", state=row["engines"]), EngineInstall(name="llamacpp", state="ready"))
        view.nodes[node_id] = NodeView(
            id=node_id,
            status="connected",
            session=node_id if row["registered"] else None,
            registered=row["registered"],
            cordon=Cordon("c", "a", "t") if row["cordon"] else None,
            own_labels=row["people"],
            capabilities=frozenset({"fetch:hf"} if row["fetches"] else ()),
            measurements=Measurements(devices=foreign),
            inventory=inventory(
                devices=has,
                memory_bytes=row["memory"],
                cpu=Cpu(count=row["cores"]),
                engine_ports=PortRange(first=20000, last=19999 + row["ports"]),
                ephemeral_ports=PortRange(first=20001, last=20001) if row["ephemeral"] else None,
                engines=engines,
                labels={"tier": row["tier"]} if row["tier"] else {},
            ),
        )
        for j in range(draw(st.integers(0, 1))):
            taken = has[:1] if draw(st.booleans()) else ()
            _running(view, node_id, f"old-{i}-{j}", port=20000 + j, devices=tuple(d.uuid for d in taken))
    return view


def _running(view, node_id, replica_id, **changes) -> None:
    fields = {"model": "m0", "profile": "gone", "memory_bytes": GIB, "cpu_cores": 1.0, **changes}
    add(view, replica_id, node_id, msgspec.structs.replace(spec(replica_id), **fields))


def add(view, replica_id, node_id, shard_spec, *, fingerprint="") -> None:
    shard = ShardView(spec=shard_spec, node_id=node_id, phase="ready")
    view.replicas[replica_id] = ReplicaView(
        id=replica_id,
        model=shard_spec.model,
        profile=shard_spec.profile,
        fingerprint=fingerprint,
        state="ready",
        since=0.0,
        created=0.0,
        reason="",
        shards={0: shard},
    )


def copied(view: FleetView) -> FleetView:
    """A copy that shares the catalog, which never changes."""
    return copy.deepcopy(view, {id(view.catalog): view.catalog})


def make(view: FleetView, seed: int = 1) -> Plan:
    work = plan(view, Overlay(view), LoopSettings(), routers={}, now=10.0, rng=random.Random(seed))
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def carried_out(view: FleetView, made: Plan) -> FleetView:
    after = copied(view)
    for action in made.actions:
        if isinstance(action, Place):
            for part in action.shards:
                add(after, action.replica, part.node_id, part.spec, fingerprint=action.fingerprint)
    return after


def profile_of(view, action):
    return next(p for p in view.catalog.models[action.model].profiles if p.name == action.profile)


@EXAMPLES
@given(fleets())
def test_placements_break_no_constraint(view):
    """PLC-02, 04, 05, 11, 12, 13, 16: counted from the facts, node by node."""
    made = make(view)
    assert check(made, view) == []
    placed = [(action, part) for action in made.actions if isinstance(action, Place) for part in action.shards]
    for action, part in placed:
        node, profile = view.nodes[part.node_id], profile_of(view, action)
        assert node.registered
        assert node.cordon is None
        engines = node.inventory.engines
        assert engines is None or any(e.name == profile.engine and e.state == "ready" for e in engines)
        labels = {**node.inventory.labels, **node.own_labels}
        assert all(labels.get(k) == v for k, v in profile.node_selector.items())
        assert not any(f"{k}={v}" in view.holds for k, v in labels.items())
        assert profile.source == "sim:" or "fetch:hf" in node.capabilities
        assert profile.nodes == 1
        own = {d.uuid: d for d in node.inventory.devices}
        foreign = {use.uuid for use in node.measurements.devices if use.foreign_processes}
        assert len(set(part.spec.devices)) == profile.gpus
        for uuid in part.spec.devices:
            assert own[uuid].device_class == profile.gpu_class
            assert own[uuid].excluded is None
            assert uuid not in foreign
        span, ephemeral = node.inventory.engine_ports, node.inventory.ephemeral_ports
        assert span.first <= part.spec.port <= span.last
        assert ephemeral is None or not ephemeral.first <= part.spec.port <= ephemeral.last
    for node_id, node in view.nodes.items():
        old = [s for r in view.replicas.values() for s in r.shards.values() if s.node_id == node_id]
        new = [(action, part.spec) for action, part in placed if part.node_id == node_id]
        if not new:
            continue
        ports = [s.spec.port for s in old] + [s.port for _, s in new]
        assert len(ports) == len(set(ports))
        uuids = [u for s in old for u in s.spec.devices] + [u for _, s in new for u in s.devices]
        assert len(uuids) == len(set(uuids))
        memory = sum(s.spec.memory_bytes for s in old) + sum(profile_of(view, a).memory_bytes or 0 for a, _ in new)
        needs_memory = any(profile_of(view, a).memory_bytes for a, _ in new)
        assert node.inventory.memory_bytes is None or not needs_memory or memory <= node.inventory.memory_bytes
        cores = sum(s.spec.cpu_cores for s in old) + sum(profile_of(view, a).cpu_cores or 0 for a, _ in new)
        needs_cores = any(profile_of(view, a).cpu_cores for a, _ in new)
        assert node.inventory.cpu.count is None or not needs_cores or cores <= node.inventory.cpu.count


@EXAMPLES
@given(fleets())
def test_every_candidate_is_chosen_fits_or_has_a_reason(view):
    """PLC-24: explanations are complete, and at most one candidate is chosen."""
    for model in view.catalog.models.values():
        choice = explain(view, model.name, 10.0)
        expected = {(p.name, n) for p in model.profiles for n in view.nodes}
        assert {(v.profile, v.node_id) for v in choice.verdicts} == expected
        for verdict in choice.verdicts:
            assert bool(verdict.reasons) != bool(verdict.score)
            assert all(reason.message for reason in verdict.reasons)
        chosen = [v for v in choice.verdicts if v.chosen]
        fitting = [v for v in choice.verdicts if not v.reasons]
        assert len(chosen) == (1 if fitting else 0)


@EXAMPLES
@given(fleets(), st.integers(0, 2**32))
def test_the_same_snapshot_and_seed_give_the_same_plan(view, seed):
    """PLC proof; and planning changes nothing in the view."""
    before = copied(view)
    first = make(view, seed)
    assert view == before
    assert make(view, seed) == first


@EXAMPLES
@given(fleets())
def test_planning_again_does_nothing(view):
    """PLC proof: what was placed is enough, what was refused is refused again."""
    first = make(view)
    after = carried_out(view, first)
    second = make(after, seed=2)
    assert not [action for action in second.actions if isinstance(action, Place)]
    assert set(second.refused) == set(first.refused)
    for name, model in view.catalog.models.items():
        have = sum(r.model == name and r.profile != "gone" for r in after.replicas.values())
        assert have == model.scaling.min or name in first.refused


@EXAMPLES
@given(fleets(), st.booleans())
def test_a_restart_takes_one_step_and_breaks_nothing(view, in_place):
    """REC-30: of every model at most one replica is replaced, goes first, or is given up
    with words; never more than that, and the check agrees."""
    ready = carried_out(view, make(view))
    for replica in ready.replicas.values():
        if replica.profile == "gone":
            replica.state, replica.unwanted = "stopping", True
        else:
            replica.restarting = Restart("anna", "", int(replica.id[-8:], 16), -99.0, at_once=in_place)
    made = make(ready, seed=3)
    assert check(made, ready) == []
    steps: dict[str, int] = {}
    for action in made.actions:
        if getattr(action, "replaces", None) or getattr(action, "restart", None) == "in place":
            steps[action.model] = steps.get(action.model, 0) + 1
            assert not isinstance(action, Place) or not in_place
    for replica_id, why in made.given_up.items():
        assert why
        name = ready.replicas[replica_id].model
        steps[name] = steps.get(name, 0) + 1
    asked = {replica.model for replica in ready.replicas.values() if replica.restarting is not None}
    assert steps == dict.fromkeys(asked, 1)


@EXAMPLES
@given(fleets())
def test_a_refusal_tells_why(view):
    """Say why: a sentence, a code, and the nearest candidates."""
    made = make(view)
    for said in made.refused.values():
        assert said.message
        assert (said.code == "no_nodes") == (not view.nodes)
        assert all(verdict.reasons for verdict in said.verdicts)
