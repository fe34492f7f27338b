"""Restarts that people ask for, through the real loop (REC-30, CAT-08)."""

import pytest

from controlplane.events import Cordon as Why
from controlplane.events import HoldsSet, RestartRequested, ServingSet
from controlplane.planning import step
from llmgw.wire.messages import ShardExit
from tests.unit.controlplane.core.harness import ONE_MODEL, Harness, gpus

TWO = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 2, max: 2}")
ON_DEMAND = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 0, max: 2}")
GPU = ONE_MODEL.replace("min_memory_gb: 4, cpu_cores: 1", "gpu_class: h100, gpus: 1")
QUICK = {"drain_grace": 20.0}


def ask(h: Harness, *replicas: str, in_place: bool = False) -> None:
    h.feed(RestartRequested(replicas or tuple(sorted(h.view.replicas)), "anna", "new driver", in_place))


def gpu_fleet(catalog: str = GPU, devices: int = 1, **options) -> Harness:
    h = Harness(catalog, connect=False, **QUICK, **options)
    h.agents["n1"].inventory = h.agents["n1"].inventory.__class__(
        **{f: getattr(h.agents["n1"].inventory, f) for f in h.agents["n1"].inventory.__struct_fields__}
        | {"devices": gpus(devices)}
    )
    h.connect("n1")
    h.advance(5)
    return h


def ready_count(h: Harness, model: str = "tiny") -> int:
    return len(h.table[model].endpoints)


def test_a_replacement_is_ready_before_the_old_one_drains():
    """REC-30: the old one serves and counts no more, a new one comes beside it, then the
    old one drains and goes; who asked and why is on record."""
    h = Harness(**QUICK)
    h.advance(5)
    old = h.only().id
    ask(h)
    assert h.view.replicas[old].restart == "queued"
    h.settle()
    assert h.view.replicas[old].restart == "replacing"
    (new,) = [r for r in h.replicas() if r.id != old]
    assert new.state == "starting"
    assert ready_count(h) == 1
    lowest = []
    for _ in range(60):
        h.advance(0.5)
        lowest.append(ready_count(h))
    assert min(lowest) == 1
    assert h.only().id == new.id
    (place,) = [d for d in h.decisions if d.figures.get("replaces") == old]
    assert "a restart asked for by anna (new driver): it replaces" in place.reason
    (drain,) = h.kinds("drain")
    assert drain.reason == f"replaced by {new.id}: a restart asked for by anna (new driver)"
    assert not h.kinds("quarantine")


def test_one_at_a_time_of_each_model_and_nothing_else_is_touched():
    """REC-30, rule 4: two replicas are restarted one after the other, at no time are
    fewer ready than before, and another model's replica stays."""
    h = Harness(
        TWO + "  other:\n    scaling: {min: 1, max: 1}\n"
        '    profiles: [{engine: sim, source: "sim:", min_memory_gb: 1, cpu_cores: 1}]\n',
        **QUICK,
    )
    h.advance(5)
    before = {r.id for r in h.replicas()}
    other = h.only("other").id
    ask(h, *sorted(before))
    lowest, under_way, counted = 9, 0, 0
    for _ in range(200):
        h.advance(0.5)
        lowest = min(lowest, ready_count(h))
        under_way = max(under_way, sum(r.restart == "replacing" for r in h.replicas()))
        counted = max(counted, sum(step.counts(r) for r in h.replicas()))
    assert (lowest, under_way, counted) == (2, 1, 2)
    after = {r.id for r in h.replicas()}
    assert len(after) == 2
    assert not after & before
    assert h.only("other").id == other


def test_a_stale_replica_is_rolled():
    """CAT-08: the restart of a stale replica brings one of the present definition."""
    h = Harness(**QUICK)
    h.advance(5)
    h.reload(ONE_MODEL.replace("cpu_cores: 1", "cpu_cores: 2"))
    h.advance(5)
    assert h.only().stale is True
    ask(h)
    h.advance(40)
    assert h.only().stale is False
    assert h.only().state == "ready"


def test_only_the_old_one_is_in_the_way():
    """REC-30: a device for one replica alone. It goes first, the new one takes its place,
    and the log says why there was an outage."""
    h = gpu_fleet()
    old = h.only().id
    ask(h)
    h.settle()
    (drain,) = h.kinds("drain")
    assert drain.replica == old
    assert drain.figures["restart"] == "in place"
    assert "it is restarted in its place; nothing fits beside it: needs 1 x h100, 0 of 1 free" in drain.reason
    assert h.view.replicas[old].restart == "in place"
    assert h.table["tiny"].state == "loading"
    assert "restarted in its place" in h.table["tiny"].reason
    h.advance(40)
    assert h.only().id != old
    assert h.only().state == "ready"
    assert not h.kinds("no-placement")
    assert not h.view.in_place


def test_the_place_is_kept_for_the_model_that_freed_it():
    """REC-30: another model that waits for the same device does not get it."""
    h = gpu_fleet(GPU + GPU.split("models:\n")[1].replace("tiny", "aaa"))
    served, waits = ("aaa", "tiny") if h.replicas("aaa", "ready") else ("tiny", "aaa")
    assert not h.replicas(waits)
    ask(h)
    h.advance(60)
    assert h.only(served).state == "ready"
    assert not h.replicas(waits)


def test_a_restart_that_fits_nowhere_is_given_up():
    """REC-30: the node was cordoned since, so that nothing would come back: the old one
    stays, counts, and the reason is told."""
    h = Harness(**QUICK)
    h.advance(5)
    old = h.only().id
    h.view.nodes["n1"].cordon = Why("repair", "ben", "today")
    ask(h)
    h.advance(30)
    assert h.only().id == old
    assert h.only().restart is None
    assert not h.kinds("drain")
    (note,) = h.kinds("restart-given-up")
    assert note.replica == old
    assert "would fit nowhere, even without this one: the node is cordoned by ben: repair" in note.reason


def test_in_place_on_request_goes_first():
    """REC-30: ``--in-place`` stops first although a new one would fit beside it."""
    h = Harness(**QUICK)
    h.advance(5)
    old = h.only().id
    ask(h, in_place=True)
    h.settle()
    assert h.view.replicas[old].state == "draining"
    h.advance(40)
    assert h.only().id != old
    assert "nothing fits" not in h.kinds("drain")[0].reason


def test_an_on_demand_replica_is_restarted_too():
    """REC-30: also where no replica is wanted at least, beside or in place."""
    h = Harness(ONE_MODEL, **QUICK)
    h.advance(5)
    h.reload(ON_DEMAND)
    for in_place in (False, True):
        old = h.only().id
        ask(h, in_place=in_place)
        h.advance(60)
        assert h.only().id != old
        assert h.only().state == "ready"


def test_a_replacement_that_fails_is_tried_again_then_given_up():
    """REC-30: after the model's ordinary failures it is parked; the old one serves and
    counts again, through every failure."""
    h = Harness(parking_failures=3, **QUICK)
    h.advance(5)
    old = h.only().id
    h.agents["n1"].fail = lambda spec: ShardExit(replica_id=spec.replica_id, code="exited", message="broken")
    ask(h)
    states, lowest = set(), 9
    for _ in range(400):
        h.advance(0.5)
        states.add(h.view.replicas[old].restart)
        lowest = min(lowest, ready_count(h))
    assert states == {"queued", "replacing", None}
    assert lowest == 1
    assert len(h.kinds("failed")) == 3
    assert h.view.health["tiny"].parked
    (note,) = h.kinds("restart-given-up")
    assert "failed 3 times in a row and is parked" in note.reason
    assert step.counts(h.view.replicas[old])


def test_a_restart_waits_until_the_other_replicas_serve():
    """REC-30: while another replica of the model comes up none is taken from those that serve."""
    h = Harness(TWO, **QUICK)
    h.advance(5)
    first, second = sorted(r.id for r in h.replicas())
    h.agents["n1"].load_time = 15.0
    h.up("n1", h.agents["n1"].kill(h.view.replicas[second].shards[0].spec.key))
    ask(h, first)
    h.advance(10)
    assert h.view.replicas[first].restart == "queued"
    h.advance(120)
    assert first not in h.view.replicas
    assert len(h.replicas("tiny", "ready")) == 2


def test_a_replica_that_does_not_serve_is_restarted_in_its_place():
    """REC-30: one that hangs while starting is stopped at once: nothing is lost."""
    h = Harness(**QUICK)
    h.agents["n1"].load_time = 1e6
    h.settle()
    old = h.only().id
    ask(h)
    h.agents["n1"].load_time = 1.0
    h.advance(10)
    assert h.only().id != old
    assert h.only().state == "ready"
    assert not h.kinds("failed")


def test_a_node_that_reconnects_is_waited_for():
    """REC-30: an outage is not chosen because another node lost its session a moment ago."""
    h = gpu_fleet(nodes=("n1", "n2"))
    h.agents["n2"].inventory = h.agents["n1"].inventory
    h.connect("n2")
    h.advance(5)
    old = h.only().id
    other = "n2" if h.only().shards[0].node_id == "n1" else "n1"
    h.disconnect(other)
    ask(h)
    h.advance(3)
    assert h.view.replicas[old].state == "ready"
    h.connect(other)
    h.advance(40)
    assert h.only().id != old
    assert {d.figures.get("restart") for d in h.kinds("drain")} == {"replaced"}


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda h: h.feed(ServingSet(True, "ben")), "serving was stopped by ben"),
        (lambda h: h.reload("models: {}"), "left the catalog"),
        (lambda h: h.reload(ONE_MODEL.replace("{min: 1, max: 1}", "{min: 0, max: 0}")), "is off"),
    ],
)
def test_a_restart_that_lost_its_sense_ends(end, words):
    """REC-30: stopping everything, or taking the model away, ends both replicas."""
    h = Harness(**QUICK)
    h.advance(5)
    ask(h)
    h.settle()
    assert len(h.replicas()) == 2
    end(h)
    h.advance(60)
    assert not h.replicas()
    assert words in h.kinds("restart-given-up")[0].reason
    assert not h.kinds("quarantine")


def test_scaling_down_under_a_restart_leaves_the_right_number():
    """REC-30 and CAT-06 together: a restart that scaling overtakes ends with what is wanted."""
    h = Harness(TWO, **QUICK)
    h.advance(5)
    ask(h)
    h.settle()
    h.reload(ONE_MODEL)
    h.advance(120)
    assert h.only().state == "ready"
    assert h.only().restart is None


def test_unknown_and_going_replicas_are_told():
    """A restart of what is not there does nothing, and says so."""
    h = Harness(**QUICK)
    h.advance(5)
    ask(h, "tiny-00000000")
    (note,) = h.kinds("restart-given-up")
    assert note.reason == "it is gone or going already"
    ask(h)
    ask(h)
    assert len(h.kinds("restart")) == 1


def test_a_control_plane_that_comes_back_amid_a_restart_settles_for_one():
    """REC-20, REC-30: a restart is forgotten with the process; of old and new one stays,
    the one that serves while the other still loads."""
    h = Harness(**QUICK)
    h.advance(5)
    old = h.only().id
    h.agents["n1"].load_time = 100.0
    ask(h)
    h.settle()
    assert len(h.agents["n1"].shards) == 2
    h.restart(**QUICK)
    h.connect("n1")
    h.advance(60)
    assert h.only().id == old
    assert h.only().state == "ready"
    assert h.only().restart is None


def test_a_hold_on_the_only_other_node_is_respected():
    """PLC-15, REC-30: a replacement is new, so it does not go into a held domain."""
    h = Harness(nodes=("n1", "n2"), **QUICK)
    h.advance(5)
    (at,) = (shard.node_id for shard in h.only().shards.values())
    other = "n2" if at == "n1" else "n1"
    h.view.nodes[other].own_labels = {"llmgw.io/rack": "r1"}
    h.feed(HoldsSet({"llmgw.io/rack=r1": Why("power", "ben", "today")}))
    ask(h)
    h.advance(40)
    assert [shard.node_id for shard in h.only().shards.values()] == [at]
