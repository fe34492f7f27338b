"""Placement: every candidate's verdict, figures, and the order of choice."""

from dataclasses import replace

import msgspec
import pytest

from controlplane.catalog.model import Catalog
from controlplane.events import Cordon
from controlplane.planning.candidates import Candidates
from controlplane.planning.explain import explain
from controlplane.planning.overlay import Overlay
from controlplane.planning.placement import choose
from controlplane.planning.view import FleetView, ModelHealth, NodeView, ReplicaView, Settling, ShardView
from controlplane.planning.work import Work
from llmgw.wire.errors import REASON
from llmgw.wire.messages import Cpu, Device, EngineInstall, PortRange
from tests.unit.controlplane.core.harness import GIB, catalog_of, gpus, inventory, spec

NOW = 100.0


def profile(**fields):
    base = {"engine": "sim", "source": "'sim:'", "min_memory_gb": 8, "cpu_cores": 2}
    base.update(fields)
    return "{" + ", ".join(f"{key}: {value}" for key, value in base.items() if value is not None) + "}"


def catalog(*profiles, scaling="{min: 1, max: 9}") -> Catalog:
    rows = "\n".join(f"      - {row}" for row in profiles or (profile(),))
    return catalog_of(f"models:\n  tiny:\n    scaling: {scaling}\n    profiles:\n{rows}\n")


GPU = profile(gpu_class="h100", gpus=2, min_memory_gb=None, cpu_cores=None)


def fleet(cat: Catalog | None = None, **nodes) -> FleetView:
    view = FleetView(catalog=cat or catalog(), settling=Settling(active=False))
    for node_id, has in nodes.items():
        view.nodes[node_id] = NodeView(
            id=node_id, status="connected", session=f"s-{node_id}", registered=True, inventory=has, last_heard=NOW
        )
    return view


def running(view: FleetView, node_id: str, replica_id: str, **changes) -> None:
    shard = ShardView(spec=spec(replica_id, **changes), node_id=node_id, phase="ready")
    view.replicas[replica_id] = ReplicaView(
        id=replica_id,
        model=shard.spec.model,
        profile=shard.spec.profile,
        fingerprint="",
        state="ready",
        since=0.0,
        created=0.0,
        reason="",
        shards={0: shard},
    )


def place(view: FleetView, name: str = "tiny"):
    work = choose(view, Overlay(view), Candidates(), view.catalog.models[name], work=Work(), now=NOW)
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def why(view: FleetView) -> list[tuple[str, str]]:
    choice = place(view)
    assert choice.spot is None
    return [(reason.code, reason.message) for verdict in choice.refusal().verdicts for reason in verdict.reasons]


def cordoned(view):
    view.nodes["n1"].cordon = Cordon("repair", "anna", "today")


def out_of_session(view):
    view.nodes["n1"].session = None
    view.nodes["n1"].registered = False
    view.nodes["n1"].status = "unreachable"


def not_registered(view):
    view.nodes["n1"].registered = False


def never_heard(view):
    out_of_session(view)
    view.nodes["n1"].last_heard = None


def engine(*installs):
    return lambda view: _has(view, engines=installs)


def _has(view, **changes):
    node = view.nodes["n1"]
    node.inventory = msgspec.structs.replace(node.inventory, **changes)


def held(view):
    """By a label of the agent and by one of people."""
    _has(view, labels={"llmgw.io/rack": "r1", "tier": "silver"})
    view.nodes["n1"].own_labels = {"tier": "gold"}
    view.holds = {
        "llmgw.io/rack=r1": Cordon("power work", "ben", "today"),
        "tier=gold": Cordon("", "ben", "today"),
        "tier=silver": Cordon("not any more", "ben", "today"),
    }


def change_profile(view, **changes):
    """Another profile, as a catalog of a release that knows more has it."""
    model = view.catalog.models["tiny"]
    changed = replace(model, profiles=(replace(model.profiles[0], **changes),))
    view.catalog = replace(view.catalog, models={"tiny": changed})


def _can(view, *capabilities):
    view.nodes["n1"].capabilities = frozenset(capabilities)


SEVERAL = "needs 2 nodes; this release places a replica on one node only"
CANNOT = (
    "weights from {}: are fetched by the node's agent, and this one (of unknown version) cannot: "
    "put them on the node and name them with file:"
)


@pytest.mark.parametrize(
    ("cat", "change", "expected"),
    [
        (catalog(), cordoned, [("node_cordoned", "the node is cordoned by anna: repair")]),
        (catalog(), out_of_session, [("node_unreachable", "the node is unreachable: it is not in session")]),
        (
            catalog(),
            not_registered,
            [("node_unreachable", "the node is in session but has not registered yet")],
        ),
        (
            catalog(),
            never_heard,
            [("node_unreachable", "the node has not been heard from since this control plane started")],
        ),
        (
            catalog(),
            engine(),
            [("engine_not_ready", "sim is not installed (the node has: none)")],
        ),
        (
            catalog(),
            engine(EngineInstall(name="sim", state="installing", detail="downloading ... (16 MB)")),
            [("engine_not_ready", "sim is installing: downloading ... (16 MB)")],
        ),
        (
            catalog(),
            engine(EngineInstall(name="sim", state="failed", detail="no AVX2")),
            [("engine_not_ready", "sim is failed: no AVX2")],
        ),
        (catalog(), engine(EngineInstall(name="sim", state="probing")), [("engine_probing", "sim is probing")]),
        (
            catalog(profile(node_selector="{tier: gold, room: a}")),
            lambda view: _has(view, labels={"tier": "silver"}),
            [
                ("label_mismatch", "needs label room=a; the node has no such label"),
                ("label_mismatch", "needs label tier=gold; the node has silver"),
            ],
        ),
        (
            catalog(profile(min_memory_gb=24)),
            lambda view: running(view, "n1", "x-1", model="x", memory_bytes=16 * GIB),
            [("memory_claimed", "needs 24.0 GB memory, 16.0 of 32.0 GB free after claims")],
        ),
        (
            catalog(profile(cpu_cores=7.5)),
            lambda view: running(view, "n1", "x-1", model="x", cpu_cores=1.0),
            [("cores_claimed", "needs 7.5 cores, 7 of 8 free after claims")],
        ),
        (catalog(GPU), lambda view: None, [("no_device_of_class", "needs 2 x h100; the node has: none")]),
        (
            catalog(GPU),
            lambda view: _has(view, devices=gpus(4, "a100")),
            [("no_device_of_class", "needs 2 x h100; the node has: a100")],
        ),
        (
            catalog(GPU),
            lambda view: (_has(view, devices=gpus(2)), running(view, "n1", "x-1", model="x", devices=("GPU-1",))),
            [("devices_claimed", "needs 2 x h100, 1 of 2 free after claims")],
        ),
        (
            catalog(GPU),
            lambda view: _has(
                view, devices=(gpus(1)[0], Device(uuid="GPU-9", device_class="h100", excluded="ECC fault"))
            ),
            [("devices_claimed", "needs 2 x h100, 1 of 2 free after claims (GPU-9 is excluded: ECC fault)")],
        ),
        (
            catalog(),
            lambda view: _has(view, engine_ports=PortRange(first=40000, last=40009)),
            [("ports_exhausted", "no port of 40000-40009 is free")],
        ),
        (
            catalog(),
            held,
            [
                ("domain_held", "domain llmgw.io/rack=r1 is held by ben: power work"),
                ("domain_held", "domain tier=gold is held by ben"),
            ],
        ),
        (catalog(), lambda view: change_profile(view, nodes=2), [("multi_node", SEVERAL)]),
        (
            catalog(),
            lambda view: change_profile(view, source="hf:org/name"),
            [("source_not_fetched", CANNOT.format("hf"))],
        ),
        (
            catalog(),
            lambda view: (change_profile(view, source="https://x.example/w.gguf"), _can(view, "fetch:hf")),
            [("source_not_fetched", CANNOT.format("https"))],
        ),
    ],
)
def test_each_refusal_has_a_code_and_figures(cat, change, expected):
    """PLC-02 to PLC-16, PLC-24: one row per reason."""
    view = fleet(cat, n1=inventory())
    change(view)
    assert why(view) == expected
    assert all(code in REASON for code, _ in expected)


@pytest.mark.parametrize(
    "unknown",
    [
        {"memory_bytes": None},
        {"cpu": Cpu()},
        {"engines": None},
        {"engine_ports": None, "ephemeral_ports": None},
    ],
)
def test_unknown_never_refuses(unknown):
    """PLC-12, PLC-16: an agent too old to say is usable."""
    view = fleet(catalog(profile(min_memory_gb=9999 if "memory_bytes" in unknown else 1)), n1=inventory(**unknown))
    if "cpu" in unknown:
        view.catalog = catalog(profile(cpu_cores=9999))
    assert place(view).spot.node.id == "n1"


def test_all_reasons_of_a_candidate_are_told():
    """PLC-24: not only the first."""
    view = fleet(catalog(profile(min_memory_gb=99, cpu_cores=99)), n1=inventory(engines=()))
    cordoned(view)
    assert [code for code, _ in why(view)] == ["node_cordoned", "engine_not_ready", "memory_claimed", "cores_claimed"]


def test_an_agent_that_can_fetch_takes_such_a_source():
    """PLC-12: what counts is the capability of the hello."""
    view = fleet(n1=inventory())
    change_profile(view, source="hf:org/name")
    _can(view, "fetch:hf")
    assert place(view).spot.node.id == "n1"


def test_spread_goes_by_the_labels_of_people():
    """PLC-09, PLC-22: two nodes that people say are in one rack are, whatever agents say."""
    view = fleet(n1=rack("a"), n2=rack("b", "q"), n3=rack("c", "r"))
    running(view, "n1", "t-1")
    view.nodes["n2"].own_labels = {"llmgw.io/rack": "a", "llmgw.io/pdu": "p"}
    assert place(view).spot.node.id == "n3"


def test_ports_skip_claims_the_ephemeral_range_and_strays():
    """PLC-13."""
    has = inventory(engine_ports=PortRange(first=30000, last=30010), ephemeral_ports=PortRange(first=30002, last=30006))
    view = fleet(n1=has)
    running(view, "n1", "x-1", model="x", port=30000)
    view.nodes["n1"].avoid_ports = {30001: NOW + 5, 30007: NOW - 1}
    assert place(view).spot.port == 30007


def test_lowest_free_devices_by_index():
    """PLC-11: by index among the free, keyed by UUID."""
    devices = tuple(Device(uuid=f"U{9 - i}", index=i, device_class="h100") for i in range(4))
    view = fleet(catalog(GPU), n1=inventory(devices=devices))
    running(view, "n1", "x-1", model="x", devices=("U9",))
    assert place(view).spot.devices == ("U8", "U7")


def test_golden_order_of_terms():
    """PLC-23: the order of terms is part of the interface."""
    view = fleet(n1=inventory())
    assert [term for term, _ in place(view).spot.score] == [
        "failed_here",
        "same_rack",
        "same_pdu",
        "same_node",
        "devices_left",
        "untouched",
        "memory_left",
        "node",
    ]


def rack(name, pdu="p"):
    return inventory(labels={"llmgw.io/rack": name, "llmgw.io/pdu": pdu})


@pytest.mark.parametrize(
    ("nodes", "prepare", "chosen"),
    [
        # (1) spread: another rack, then another PDU, then another node
        ({"n1": rack("a"), "n2": rack("a"), "n3": rack("b")}, lambda v: running(v, "n1", "t-1"), "n3"),
        ({"n1": rack("a", "p"), "n2": rack("b", "p"), "n3": rack("c", "q")}, lambda v: running(v, "n1", "t-1"), "n3"),
        ({"n1": inventory(), "n2": inventory()}, lambda v: running(v, "n1", "t-1"), "n2"),
        # (3) packing: a node without devices before one with; a used node before an empty one
        ({"n1": inventory(devices=gpus(2)), "n2": inventory()}, lambda v: None, "n2"),
        (
            {"n1": inventory(), "n2": inventory()},
            lambda v: running(v, "n2", "x-1", model="x", memory_bytes=GIB, port=20001),
            "n2",
        ),
        ({"n1": inventory(), "n2": inventory(memory_bytes=16 * GIB)}, lambda v: None, "n2"),
        # (4) stable key
        ({"n2": inventory(), "n1": inventory()}, lambda v: None, "n1"),
        # where it just failed comes last
        (
            {"n1": inventory(), "n2": inventory()},
            lambda v: v.health.update(tiny=ModelHealth(failures=1, failed_nodes={"n1": 1.0})),
            "n2",
        ),
    ],
)
def test_choice_among_nodes(nodes, prepare, chosen):
    """PLC-21 to PLC-23, term by term."""
    view = fleet(**nodes)
    prepare(view)
    assert place(view).spot.node.id == chosen


def test_spread_is_a_preference_only():
    """PLC-22: the only node is used again."""
    view = fleet(n1=inventory())
    running(view, "n1", "t-1")
    assert place(view).spot.node.id == "n1"


def test_packing_fills_the_gpu_node_in_use():
    """PLC-21: whole nodes stay free."""
    view = fleet(catalog(GPU), n1=inventory(devices=gpus(8)), n2=inventory(devices=gpus(8)))
    running(view, "n2", "x-1", model="x", devices=("GPU-0", "GPU-1"), port=20009)
    assert place(view).spot.node.id == "n2"


def test_the_highest_priority_profile_that_fits():
    """PLC-20: the GPU profile where there is one, else the CPU profile."""
    gpu = profile(name="gpu", priority=10, gpu_class="h100", gpus=1)
    cat = catalog(profile(name="cpu"), gpu)
    assert place(fleet(cat, n1=inventory(), n2=inventory(devices=gpus(1)))).spot.profile.name == "gpu"
    assert place(fleet(cat, n1=inventory())).spot.profile.name == "cpu"


def test_the_refusal_names_the_nearest_candidate():
    """PLC-04: figures of the one that lacks least; the others are counted by code."""
    view = fleet(
        catalog(profile(min_memory_gb=48)),
        n1=inventory(),
        n2=inventory(memory_bytes=40 * GIB),
        n3=inventory(engines=()),
    )
    cordoned(view)
    said = place(view).refusal()
    assert said.code == "memory_claimed"
    assert said.message == (
        "needs 48.0 GB memory, 40.0 of 40.0 GB free after claims (node n2); no better on 2 other nodes: "
        "engine_not_ready on 1, memory_claimed on 2, node_cordoned on 1"
    )
    assert {verdict.node_id for verdict in said.verdicts} == {"n1", "n2", "n3"}


def test_explain_lists_every_candidate():
    """PLC-24: profile x node, each chosen, fitting or with reasons; by alias too."""
    cat = catalog(profile(name="a"), profile(name="b", min_memory_gb=99))
    view = fleet(cat, n1=inventory(), n2=inventory())
    found = explain(view, "tiny", NOW)
    assert len(found.verdicts) == 4
    assert sum(verdict.chosen for verdict in found.verdicts) == 1
    for verdict in found.verdicts:
        assert bool(verdict.reasons) != bool(verdict.score)
    assert found.state == "loading"
    assert found.wanted == 1
    with pytest.raises(KeyError):
        explain(view, "nope", NOW)


def test_explain_says_what_blocks_the_model():
    """Backoff, parking, settling and quarantine stand beside the candidates."""
    view = fleet(n1=inventory())
    view.settling = Settling(active=True, reason="waiting for nodes after start: 1 of 2 registered")
    view.health["tiny"] = ModelHealth(failures=2, backoff_until=NOW + 30, last_error="boom", quarantined="oops")
    found = explain(view, "tiny", NOW)
    assert [reason.code for reason in found.blockers] == ["settling", "quarantined", "backoff"]
    assert "30 s" in found.blockers[2].message
    assert "boom" in found.blockers[2].message
    view.health["tiny"] = ModelHealth(failures=5, parked=True, last_error="boom")
    view.settling.active = False
    found = explain(view, "tiny", NOW)
    assert [reason.code for reason in found.blockers] == ["parked"]
    assert found.state == "parked"
