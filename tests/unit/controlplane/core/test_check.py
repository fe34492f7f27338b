"""The independent check: each invariant is broken on purpose, and seen."""

from dataclasses import replace as changed

import msgspec
import pytest

from controlplane.events import Cordon, ServingSet
from controlplane.planning import step
from controlplane.planning.check import check, check_view
from controlplane.planning.plan import Drain, Place, Plan, ShardPlace, Stop
from controlplane.planning.view import ModelHealth, Restart, Settling
from llmgw.wire.messages import PortRange
from tests.unit.controlplane.core.harness import GIB, Harness, gpus, inventory, spec
from tests.unit.controlplane.core.test_placement import GPU, catalog, change_profile, fleet, profile, running


def placing(view, replica="tiny-00000001", node="n1", **changes) -> Place:
    p = view.catalog.models["tiny"].profiles[0]
    fields = {"profile": p.name, "memory_bytes": p.memory_bytes, "cpu_cores": p.cpu_cores, "port": 20001, **changes}
    return Place(replica, "tiny", p.name, p.fingerprint, (ShardPlace(node, spec(replica, **fields)),), "because")


def said(view, *actions) -> str:
    return "; ".join(violation.message for violation in check(Plan(view.version, list(actions)), view))


def test_a_good_plan_passes():
    """The check does not cry wolf."""
    view = fleet(n1=inventory())
    running(view, "n1", "tiny-a", port=20000)
    assert said(view, placing(view), Drain("tiny-a", "tiny", "why", 1.0)) == ""


def test_a_restart_counts_one_for_two():
    """REC-30: a replacement at the model's max is no replica too many; one more is."""
    view = fleet(catalog(scaling="{min: 1, max: 1}"), n1=inventory())
    running(view, "n1", "tiny-a", port=20000)
    view.replicas["tiny-a"].restarting = asked("queued")
    assert said(view, changed(placing(view), replaces="tiny-a")) == ""
    assert "would have 2 replicas; its max is 1" in said(view, placing(view))
    running(view, "n1", "tiny-b", port=20002)
    view.replicas["tiny-a"].restarting = asked("replacing", "tiny-b")
    assert said(view, Drain("tiny-a", "tiny", "why", 1.0, "replaced")) == ""
    assert "would have 2 replicas; its max is 1" in said(view, placing(view))


def asked(state, replacement=None) -> Restart:
    return Restart("anna", "why", 1, 0.0, state, replacement=replacement)


def _set(obj, **fields):
    for name, value in fields.items():
        setattr(obj, name, value)


@pytest.mark.parametrize(
    ("change", "action", "words"),
    [
        (lambda v: None, lambda v: placing(v, node="n9"), "n9 is not in session"),
        (lambda v: _set(v.nodes["n1"], registered=False), placing, "n1 is not in session"),
        (lambda v: _set(v.nodes["n1"], cordon=Cordon("", "", "")), placing, "n1 is cordoned"),
        (lambda v: _set(v, settling=Settling()), placing, "settles"),
        (lambda v: running(v, "n1", "tiny-b", port=20001), placing, "port 20001 on n1 is held by tiny-b"),
        (lambda v: None, lambda v: placing(v, port=40000), "outside 20000-20009"),
        (lambda v: None, lambda v: placing(v, port=33000), "ephemeral"),
        (lambda v: running(v, "n1", "tiny-00000001"), placing, "tiny-00000001 is taken"),
        (lambda v: running(v, "n1", "x-1", model="x", memory_bytes=30 * GIB), placing, "takes node n1 to"),
        (lambda v: running(v, "n1", "x-1", model="x", cpu_cores=7.0), placing, "9 of 8 cores"),
        (lambda v: None, lambda v: placing(v, devices=("GPU-0",)), "has no device GPU-0"),
        (lambda v: v.health.update(tiny=ModelHealth(parked=True)), placing, "is parked"),
        (lambda v: v.health.update(tiny=ModelHealth(quarantined="x")), placing, "is quarantined"),
        (lambda v: [running(v, "n1", f"tiny-{i}") for i in range(8)], placing, "would have 10 replicas; its max is 9"),
        (lambda v: _set(v, serving=ServingSet(stopped=True)), placing, "while serving is stopped"),
        (
            lambda v: (_set(v.nodes["n1"], own_labels={"rack": "r1"}), _set(v, holds={"rack=r1": Cordon("", "", "")})),
            placing,
            "n1 is in domain rack=r1, which is held",
        ),
        (lambda v: None, lambda v: placing(v, source="hf:org/name"), "n1 cannot fetch hf:org/name"),
        (lambda v: change_profile(v, nodes=2), placing, "over 2 nodes"),
        (
            lambda v: None,
            lambda v: changed(placing(v), replaces="tiny-a"),
            "nobody asked for a restart of replica tiny-a",
        ),
        (lambda v: None, lambda v: Drain("tiny-a", "tiny", "why", 1.0, "in place"), "nobody asked for a restart"),
        (
            lambda v: _set(v.replicas["tiny-a"], restarting=asked("replacing", "tiny-b")),
            lambda v: Drain("tiny-a", "tiny", "why", 1.0, "replaced"),
            "no replacement of it is ready",
        ),
        (
            lambda v: (
                _set(v.replicas["tiny-a"], restarting=asked("queued")),
                running(v, "n1", "tiny-b", port=20003),
                _set(v.replicas["tiny-b"], restarting=asked("replacing", "tiny-c")),
            ),
            lambda v: changed(placing(v), replaces="tiny-a"),
            "replica tiny-a is restarted while replica tiny-b is",
        ),
        (lambda v: None, lambda v: changed(placing(v), reason=""), "without a reason"),
        (lambda v: None, lambda v: changed(placing(v), profile="nope"), "no profile nope"),
        (lambda v: None, lambda v: changed(placing(v), shards=()), "without a shard"),
        (lambda v: None, lambda v: Stop("ghost", "tiny", "why"), "ghost does not exist"),
        (lambda v: None, lambda v: Stop("tiny-a", "tiny", "why"), "it drains before it stops"),
        (lambda v: None, lambda v: Stop("tiny-a", "tiny", ""), "without a reason"),
        (
            lambda v: _set(v.replicas["tiny-a"], state="starting"),
            lambda v: Drain("tiny-a", "tiny", "why", 1.0),
            "only a ready one drains",
        ),
        (
            lambda v: _set(v.replicas["tiny-a"], state="draining", deadline=9.0),
            lambda v: Stop("tiny-a", "tiny", "why"),
            "began to drain just now",
        ),
        (
            lambda v: _set(v.replicas["tiny-a"], unwanted=True),
            lambda v: Stop("tiny-a", "tiny", "why"),
            "already stopping",
        ),
    ],
)
def test_each_invariant_is_seen(change, action, words):
    """One row per invariant of ``check``."""
    view = fleet(n1=inventory())
    running(view, "n1", "tiny-a", port=20000)
    change(view)
    assert words in said(view, action(view))


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (("GPU-0",), "1 devices for a profile of 2"),
        (("GPU-0", "GPU-0"), "1 devices for a profile of 2"),
        (("GPU-0", "GPU-1"), "GPU-0 is held by x-1"),
        (("GPU-1", "A-0"), "class a100, not h100"),
    ],
)
def test_device_invariants(devices, words):
    """One owner per device, of the right class, the right number."""
    other = msgspec.structs.replace(gpus(1, "a100")[0], uuid="A-0")
    view = fleet(catalog(GPU), n1=inventory(devices=(*gpus(3), other)))
    running(view, "n1", "x-1", model="x", devices=("GPU-0",))
    assert words in said(view, placing(view, devices=devices))


def test_two_placements_of_one_plan_are_counted_together():
    """One owner per port, within a plan too."""
    view = fleet(n1=inventory(engine_ports=PortRange(first=20000, last=20009)))
    words = said(view, placing(view), placing(view, "tiny-00000002"))
    assert words == "port 20001 on n1 is held by tiny-00000001"
    assert "two actions on replica" in said(view, placing(view), placing(view, port=20002))


def test_the_whole_view_is_checked_for_double_owners():
    """Two engines on one device are told, whoever started them."""
    view = fleet(catalog(profile()), n1=inventory(devices=gpus(1)))
    running(view, "n1", "tiny-a", port=20000, devices=("GPU-0",))
    assert list(check_view(view)) == [[]]
    running(view, "n1", "tiny-b", port=20001, devices=("GPU-0",))
    (found,) = check_view(view)
    assert [v.message for v in found] == ["device GPU-0 of node n1 is held by tiny-a and by tiny-b"]


def test_a_violation_quarantines_its_model_and_the_rest_goes_on(monkeypatch):
    """A fault of ours stops one model, not the fleet; a new definition frees it."""
    true_spec = step.shard_spec

    def wrong(model, spot, replica_id):
        made = true_spec(model, spot, replica_id)
        return msgspec.structs.replace(made, port=1) if model.name == "bad" else made

    monkeypatch.setattr(step, "shard_spec", wrong)
    row = "{scaling: {min: 1, max: 1}, profiles: [{engine: sim, source: 'sim:', min_memory_gb: 1}]}"
    h = Harness(f"models:\n  bad: {row}\n  good: {row}\n")
    h.advance(30)
    assert h.only("good").state == "ready"
    assert not h.replicas("bad")
    assert len(h.kinds("quarantine")) == 1
    assert h.table["bad"].state == "unplaceable"
    assert "port 1 on n1" in h.table["bad"].reason
    monkeypatch.setattr(step, "shard_spec", true_spec)
    h.reload(f"models:\n  bad: {row.replace('gb: 1', 'gb: 2')}\n  good: {row}\n")
    h.advance(5)
    assert h.only("bad").state == "ready"
