"""What a lease in doubt forbids and allows, and whose epoch counts (HA-01, AGT-04)."""

import math

import pytest

from controlplane.events import (
    CatalogChanged,
    Committed,
    Cordon,
    CordonSet,
    EnrolmentChanged,
    EpochGranted,
    EpochSeen,
    LeaseExtended,
    RestartRequested,
)
from controlplane.fleet.lead import ASK_AGAIN, FORGET, LONGEST_PAUSE, MAX_EPOCH, MAX_EPOCH_STEP, ahead
from controlplane.planning.explain import explain
from controlplane.planning.work import Work
from llmgw.wire.messages import Start, Stop, Welcome
from tests.unit.controlplane.core.harness import ONE_MODEL, Harness, catalog_of

TWO = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 2, max: 2}")
NONE = "models: {}"


def until(h, seconds):
    """The store renewed the lease: it is good for so long."""
    h.feed(LeaseExtended(h.clock.monotonic() + seconds))


def commands(h):
    return [message for _, message in h.sent if isinstance(message, Start | Stop)]


def running(**settings):
    """A node with one replica that is ready, and a lease that is beyond doubt for 25 s."""
    h = Harness(**settings)
    h.advance(5)
    assert h.only().state == "ready"
    until(h, 25)
    return h


def test_without_a_lease_nothing_is_done():
    """HA-01: a loop that was not told leads nobody, and says so."""
    h = Harness(connect=False)
    h.until = -math.inf
    h.restart(boot="boot-a")
    h.connect("n1")
    h.advance(20)
    assert not h.decisions and not commands(h)
    assert "has not renewed" in h.table["tiny"].reason
    assert [r.code for r in explain(h.view, "tiny", h.clock.monotonic()).blockers] == ["lease_in_doubt"]
    until(h, 25)
    h.advance(5)
    assert h.only().state == "ready"
    assert not h.kinds("lease-in-doubt") and not h.kinds("lease-sure"), "a start is no doubt"


def test_in_doubt_nothing_is_scaled_drained_or_stopped():
    """HA-01: past the moment what people want waits; it is done once the store answers."""
    h = running()
    h.advance(30)
    assert [note.kind for note in h.notes if note.kind.startswith("lease")] == ["lease-in-doubt"]
    before = commands(h)
    h.reload(TWO)
    h.advance(20)
    assert len(h.replicas()) == 1
    assert h.view.health["tiny"].refusal.code == "lease_in_doubt"
    h.reload(NONE)
    h.advance(20)
    assert h.only().state == "ready"
    h.feed(RestartRequested((h.only().id,), "ada", "test"))
    h.advance(20)
    assert commands(h) == before
    until(h, 1000)
    h.advance(1)
    assert h.only().state == "draining"
    assert len(h.kinds("lease-sure")) == 1


def test_time_decides_not_an_event():
    """HA-01: a process that slept past the moment does nothing when it wakes up."""
    h = running()
    h.reload(NONE)
    h.clock.advance(60)  # no pass, no event
    h.run_pass()
    assert h.only().state == "ready" and not h.kinds("drain")


@pytest.mark.parametrize("tells", [True, False])
def test_a_pass_that_slept_decides_nothing(tells, monkeypatch):
    """HA-01: planned while the lease was beyond doubt, and woken up after: dropped, and not held
    against the model. By the time that the driver sends, or by an event between two slices."""
    monkeypatch.setattr(Work, "SLICE", 1)
    h = running()
    h.reload(TWO)
    work = h.loop.run_pass(h.clock.monotonic())
    next(work)
    h.clock.advance(60)
    if not tells:
        h.loop.handle(EpochSeen("edge-1", 0), h.clock.monotonic())
    with pytest.raises(StopIteration) as ended:
        while True:
            work.send(h.clock.monotonic() if tells else None)
    assert not [effect for effect in ended.value.value if type(effect).__name__ == "Commit"]
    assert len(h.replicas()) == 1
    assert not h.kinds("quarantine")
    until(h, 25)
    h.advance(5)
    assert len(h.replicas("tiny", "ready")) == 2


def test_what_was_committed_in_time_waits_for_the_lease():
    """HA-01: a batch decided while sure and durable in doubt is sent when the store answers."""
    h = running()
    h.held = []
    h.reload(TWO)
    h.run_pass()
    assert len(h.held) == 1
    h.clock.advance(30)
    h.release()
    assert len(h.replicas("tiny", "placing")) == 1 and len(h.starts()) == 1
    h.advance(60)
    assert len(h.replicas("tiny", "placing")) == 1 and len(h.starts()) == 1
    until(h, 25)
    assert len(h.starts()) == 2
    h.advance(5)
    assert len(h.replicas("tiny", "ready")) == 2
    h.feed(Committed(1))
    assert len(h.starts()) == 2


def test_commands_are_not_repeated_in_doubt():
    """HA-01: neither by time nor for an agent that registers anew; they are when sure again."""
    h = running()
    h.agents["n1"].stop_time = 1e9
    h.reload(NONE)
    h.advance(0.5)
    until(h, 1000)
    h.advance(310)
    assert len(h.stops()) == 1
    until(h, 0.0)
    h.disconnect("n1")
    h.connect("n1")
    h.advance(100)
    assert len(h.stops()) == 1
    until(h, 1000)
    h.advance(1)
    assert len(h.stops()) == 2


def test_a_start_without_an_answer_waits_for_the_lease_and_no_longer():
    """HA-01: it is sent again as soon as the store has renewed the lease, not by its patience."""
    h = Harness()
    h.agents["n1"].deaf = True
    h.advance(1)
    until(h, 0.0)
    h.agents["n1"].deaf = False
    h.disconnect("n1")
    h.connect("n1")
    h.advance(20)
    assert not h.starts()
    until(h, 1000)
    h.advance(0.5)
    assert len(h.starts()) == 1


def test_the_end_of_the_lease_is_a_reason_to_wake_up():
    """HA-01: that it is in doubt is known, and told, when it is, not at the next event."""
    h = running(interval=60.0)
    h.run_pass()
    assert h.loop.next_wake == h.view.lease.until
    until(h, 20)
    assert h.loop.next_wake == h.view.lease.until
    h.clock.advance(h.loop.next_wake - h.clock.monotonic())
    h.run_pass()
    assert h.kinds("lease-in-doubt") and h.loop.next_wake > h.clock.monotonic()


def test_every_command_says_until_when_it_may_go_out():
    """HA-01: a frame that waits while the process sleeps is dropped by the driver."""
    h = Harness(connect=False)
    h.until = h.clock.monotonic() + 500.0
    h.restart(boot="boot-a")
    h.connect("n1")
    h.advance(5)
    h.reload(NONE)
    h.advance(310)
    assert h.befores[Start] == h.befores[Stop] == h.until
    assert h.befores[Welcome] == math.inf


# ---------------------------------------------------------------- healing in place


def fail(h):
    """The engine of the one replica dies; no backoff is waited for."""
    replica = h.only("tiny", "ready")
    node = replica.shards[0].node_id
    h.up(node, h.agents[node].kill(replica.shards[0].spec.key))
    return node, replica


def test_a_process_that_died_is_started_again_where_it_was():
    """HA-01: healing in place; the other node, which is free, gets nothing."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    until(h, 0.0)
    node, old = fail(h)
    h.advance(30)
    new = h.only("tiny", "ready")
    assert new.id != old.id and new.shards[0].node_id == node
    placed = [decision for decision in h.decisions if decision.kind == "place"][-1]
    assert placed.figures["heals"] == old.id and "start again there" in placed.reason
    node, _ = fail(h)
    h.advance(60)
    assert h.only("tiny", "ready").shards[0].node_id == node, "as often as it fails"


def test_only_what_was_there_is_healed():
    """HA-01: of two wanted and one that ran, one comes back; the other waits for the lease."""
    h = running()
    until(h, 0.0)
    h.reload(TWO)
    fail(h)
    h.advance(60)
    assert len(h.replicas("tiny", "ready")) == 1
    assert h.view.health["tiny"].refusal.code == "lease_in_doubt"


def test_two_that_failed_both_come_back():
    """HA-01: neither is forgotten because the other one failed too."""
    h = Harness(TWO, nodes=("n1",))
    h.advance(5)
    until(h, 0.0)
    for replica in h.replicas("tiny", "ready"):
        h.up("n1", h.agents["n1"].kill(replica.shards[0].spec.key))
    h.advance(120)
    assert len(h.replicas("tiny", "ready")) == 2


def test_no_more_are_healed_than_are_wanted():
    """HA-01, CAT-07: two failed, and by now one is wanted."""
    h = Harness(TWO, nodes=("n1",))
    h.advance(5)
    until(h, 0.0)
    h.reload(ONE_MODEL)
    for replica in h.replicas("tiny", "ready"):
        h.up("n1", h.agents["n1"].kill(replica.shards[0].spec.key))
    h.advance(120)
    assert len(h.replicas("tiny", "ready")) == 1


def test_a_node_that_is_removed_in_doubt_harms_nothing():
    """HA-01, REC-13: what failed there is healed nowhere."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    until(h, 0.0)
    node, _ = fail(h)
    h.feed(EnrolmentChanged(h.enrolled - {node}))
    h.advance(60)
    assert not h.replicas("tiny", "ready") and h.view.health["tiny"].refusal.code == "lease_in_doubt"


@pytest.mark.parametrize("change", ["node", "model"])
@pytest.mark.parametrize("place", range(4))
def test_what_goes_while_healing_is_planned_harms_nothing(change, place, monkeypatch):
    """HA-01: between any two slices of the pass."""
    monkeypatch.setattr(Work, "SLICE", 1)
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    until(h, 0.0)
    node, old = fail(h)
    h.clock.advance(20)
    left = place

    def between():
        nonlocal left
        left -= 1
        if left == -1:
            gone = EnrolmentChanged(h.enrolled - {node}) if change == "node" else CatalogChanged(catalog_of(NONE))
            h.feed(gone)

    h.between = between
    h.run_pass()
    h.between = None
    h.advance(5)
    assert left < 0, "the pass has that many slices"
    assert not [replica for replica in h.replicas("tiny") if replica.state != "failed" and replica.id != old.id]


def test_nothing_is_healed_on_a_node_that_is_not_in_session():
    """HA-01: another leader may have it."""
    h = running()
    until(h, 0.0)
    fail(h)
    h.disconnect("n1")
    h.advance(100)
    assert not h.replicas("tiny", "ready") and len(h.starts()) == 1
    h.connect("n1")
    h.advance(30)
    assert h.only("tiny", "ready")


def test_a_node_that_cannot_take_it_says_why():
    """HA-01, PLC-24: a cordoned node gets nothing, healing or not; both reasons are told."""
    h = running()
    until(h, 0.0)
    h.feed(CordonSet("n1", Cordon("fan", "ada", "2026-01-01T00:00:00")))
    fail(h)
    h.advance(30)
    refusal = h.view.health["tiny"].refusal
    assert refusal.code == "node_cordoned" and "fan" in refusal.message and "lease" in refusal.message


def test_nothing_is_declared_lost_in_doubt():
    """HA-01, REC-10: it may be we who are cut off; the silence counts all the same."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    until(h, 0.0)
    node = h.only().shards[0].node_id
    h.disconnect(node)
    h.advance(600)
    assert h.view.nodes[node].status == "unreachable" and h.only().state == "ready"
    until(h, 1000)
    h.advance(9)
    assert h.view.nodes[node].status == "unreachable", "it may be on its way back, as the store is"
    h.advance(6)
    assert h.view.nodes[node].status == "lost"


# ---------------------------------------------------------------- epochs


def test_a_higher_epoch_is_proven_before_it_is_topped():
    """AGT-04: a leader that was replaced must not outbid its successor by what agents say:
    the agent is sent away until the store has said that we lead."""
    h = Harness(connect=False)
    h.proves = False
    h.agents["n1"].highest_epoch = 41
    h.connect("n1")
    assert h.epochs == [41] and h.loop.epoch == 1
    (refused,) = [closed.refuse for closed in h.closed]
    assert refused.code == "epoch_unproven" and refused.retry_seconds == 1.0 and "41" in refused.message
    assert h.view.nodes["n1"].session is None
    h.connect("n1")
    assert h.epochs == [41], "asked for once"
    h.clock.advance(ASK_AGAIN)
    h.connect("n1")
    assert h.epochs == [41, 41], "and again if no answer comes"
    h.feed(EpochGranted(42))
    h.connect("n1")
    h.advance(5)
    assert h.starts()[0].epoch == 42
    assert (h.tables[-1].epoch, h.tables[-1].leader) == (42, "leader of boot-a")
    h.disconnect("n1")
    h.connect("n1")
    assert h.epochs == [41, 41]


def test_the_same_epoch_of_another_leader_is_not_ours():
    """AGT-04: a store that was restored can give one epoch to two leaders."""
    h = Harness(connect=False)
    h.proves = False
    agent = h.agents["n1"]
    agent.highest_epoch, agent.leader = 1, "another"
    h.connect("n1")
    assert h.epochs == [1] and h.view.nodes["n1"].session is None
    agent.leader = "leader of boot-a"
    h.connect("n1")
    assert h.view.nodes["n1"].registered
    agent.leader = ""
    h.connect("n1")
    assert h.view.nodes["n1"].registered and h.epochs == [1]


def test_routers_are_witnesses_of_epochs_too():
    """AGT-04: a router's table may be of a leader that came after us."""
    h = running()
    h.proves = False
    h.feed(EpochSeen("edge-1", 1, "leader of boot-a"))
    h.feed(EpochSeen("edge-1", 0, "another"))
    assert h.epochs == []
    h.feed(EpochSeen("edge-1", 1, "another"))
    h.feed(EpochSeen("edge-1", 7, "another"))
    assert h.epochs == [1]
    h.clock.advance(ASK_AGAIN)
    h.feed(EpochSeen("edge-1", 7, "another"))
    h.feed(EpochSeen("edge-1", 7, "another"))
    assert h.epochs == [1, 7]
    h.clock.advance(ASK_AGAIN)
    h.feed(EpochSeen("edge-2", MAX_EPOCH + 1, "another"))
    assert h.epochs == [1, 7], "no fleet gets that far"
    h.feed(EpochGranted(8))
    assert h.tables[-1].epoch == 8
    h.feed(EpochGranted(3))
    assert h.loop.epoch == 8


def test_ever_higher_epochs_are_asked_for_in_no_rush():
    """AGT-04: one peer that claims a higher epoch with every word has the store asked, and every router
    given a new table, no more often than once a second."""
    h = running()
    tables = len(h.tables)
    for claimed in range(10, 510, 10):
        h.feed(EpochSeen("edge-1", claimed, "another"))
    assert h.epochs == [10] and h.loop.epoch == 11
    assert len(h.tables) <= tables + 1
    h.clock.advance(ASK_AGAIN)
    h.feed(EpochSeen("edge-1", 600, "another"))
    assert h.epochs == [10, 600] and h.loop.epoch == 601


def catch_up(h, nodes):
    """These nodes come back each second until all are welcome; how long that took."""
    began = h.clock.monotonic()
    while away := [node for node in nodes if h.view.nodes[node].session is None]:
        for node in away:
            h.connect(node)
        if h.epochs[-1] >= h.loop.epoch:
            h.feed(EpochGranted(h.epochs[-1] + 1))
        h.advance(1)
    return h.clock.monotonic() - began


def test_a_fleet_that_is_far_ahead_is_caught_up_with():
    """AGT-04, STO-02: an older store was put in place, after epochs had been pushed up: nobody is refused
    for good, and people are told until it is over."""
    h = Harness(connect=False)
    h.proves = False
    agent = h.agents["n1"]
    agent.highest_epoch, agent.leader = 2 * MAX_EPOCH_STEP + 5, "another"
    h.connect("n1")
    assert h.closed[-1].refuse.code == "epoch_unproven" and h.epochs == [1 + MAX_EPOCH_STEP]
    h.feed(EpochGranted(2 + MAX_EPOCH_STEP))
    assert ahead(h.view, h.loop.epoch, h.clock.monotonic()) == {"node n1": agent.highest_epoch}
    h.clock.advance(ASK_AGAIN)
    assert catch_up(h, ["n1"]) < 10
    assert h.loop.epoch == 2 * MAX_EPOCH_STEP + 6 and h.tables[-1].epoch == h.loop.epoch
    assert not ahead(h.view, h.loop.epoch, h.clock.monotonic())


def test_a_large_fleet_catches_up_at_a_step_a_second():
    """AGT-04: whose peers all say the same has not to wait as long as one that may lie."""
    nodes = tuple(f"n{number}" for number in range(70))
    h = Harness(nodes=nodes, connect=False)
    h.proves = False
    for agent in h.agents.values():
        agent.highest_epoch, agent.leader = 100 * MAX_EPOCH_STEP, "another"
    assert catch_up(h, nodes) < 110


def test_a_liar_raises_the_epoch_seldom():
    """AGT-04: however often one peer outbids us, it gets a step a minute; others are not kept waiting."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    asked = len(h.epochs)
    for _ in range(3600):
        h.feed(EpochSeen("liar", h.loop.epoch + 10**9, "another"))
        h.clock.advance(1)
    steps = 3600 / LONGEST_PAUSE
    assert steps <= len(h.epochs) - asked < steps + 8
    assert h.loop.epoch <= 1 + (steps + 8) * (MAX_EPOCH_STEP + 1)
    h.feed(EpochSeen("liar", h.loop.epoch + 10**9, "another"))
    h.clock.advance(ASK_AGAIN)
    h.disconnect("n1")
    h.agents["n1"].highest_epoch = wanted = h.loop.epoch + 3
    h.connect("n1")
    assert h.view.nodes["n1"].registered and h.loop.epoch == wanted + 1
    now = h.clock.monotonic()
    assert list(ahead(h.view, h.loop.epoch, now)) == ["router liar"]
    assert not ahead(h.view, h.loop.epoch, now + FORGET)


def test_a_welcome_names_its_leader():
    """AGT-04: an agent keeps whose epoch it obeyed."""
    h = Harness()
    assert h.agents["n1"].leader == "leader of boot-a"


def test_nothing_settles_in_doubt_without_every_node():
    """REC-25, HA-01: the other nodes may be with a later leader, and routers that still hear us
    would drop their endpoints; once the lease is sure, the wait begins anew."""
    h = Harness(nodes=("n1", "n2"), connect=False)
    until(h, 20)
    h.connect("n1")
    h.advance(200)
    assert h.view.settling.active
    assert h.tables[-1].settling
    assert "lease" in h.view.settling.reason
    until(h, 1000)
    h.advance(30)
    assert h.view.settling.active
    h.advance(15)
    assert not h.view.settling.active
