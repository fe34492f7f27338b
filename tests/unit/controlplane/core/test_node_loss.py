"""Node life in the loop: limits on losses, mass loss, routers as witnesses, our own pauses
(REC-10, REC-11)."""

from controlplane.events import EnrolmentChanged, LeaseExtended, LossAccepted
from controlplane.planning.explain import explain
from llmgw.wire.routing import EndpointLoad, Report
from tests.unit.controlplane.core.harness import ONE_MODEL, Harness

THREE = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 3, max: 3}")


def nodes(count):
    return tuple(f"n{number:02}" for number in range(count))


def lost(h):
    return sorted(node.id for node in h.view.nodes.values() if node.status == "lost")


def silence(h, *names):
    for name in names:
        h.disconnect(name)


def test_losses_are_declared_one_at_a_time_in_a_small_fleet():
    """REC-10: a tenth of the fleet, at least one node, in five minutes; who waits is known."""
    h = Harness(nodes=nodes(6), interval=1.0)
    silence(h, "n00", "n01", "n02")
    h.advance(310)
    assert lost(h) == ["n00"] and h.view.late_losses == ("n01", "n02")
    h.advance(290)
    assert len(lost(h)) == 1
    h.advance(20)
    assert lost(h) == ["n00", "n01"]
    h.advance(300)
    assert len(lost(h)) == 3 and h.view.nodes_lost == 3 and not h.view.late_losses


def test_a_mass_loss_rebuilds_nothing_until_they_return():
    """REC-11: nothing is placed anew, the state is told once, and the routes stay as they were."""
    h = Harness(THREE, nodes=nodes(4), interval=1.0)
    h.advance(5)
    table = h.table["tiny"]
    silence(h, "n00", "n01", "n02")
    h.advance(3000)
    assert not lost(h) and len(h.kinds("place")) == 3
    assert h.table["tiny"].endpoints == table.endpoints
    assert h.view.mass_loss.nodes == {"n00", "n01", "n02"}
    (told,) = h.kinds("mass-loss")
    assert "3 of 4 nodes" in told.reason and "accept-loss" in told.reason
    for name in ("n00", "n01", "n02"):
        h.connect(name)
    h.advance(5)
    assert h.view.mass_loss is None and len(h.kinds("mass-loss-over")) == 1
    assert len(h.replicas("tiny", "ready")) == 3


def test_an_operator_accepts_the_loss():
    """REC-11: what was on those nodes is rebuilt on the others, at once."""
    h = Harness(THREE, nodes=nodes(4), interval=1.0)
    h.advance(5)
    silence(h, "n00", "n01", "n02")
    h.advance(60)
    h.feed(LossAccepted(frozenset({"n00", "n01", "n02"}), "ada"))
    h.advance(10)
    assert lost(h) == ["n00", "n01", "n02"] and h.view.mass_loss is None
    assert [replica.shards[0].node_id for replica in h.replicas("tiny", "ready")] == ["n03"] * 3
    (told,) = h.kinds("loss-accepted")
    assert told.reason.startswith("ada says that 3 nodes are lost")
    assert not h.kinds("mass-loss-over")
    h.feed(LossAccepted(frozenset({"n00", "n01", "n02"}), "ada"))
    assert len(h.kinds("loss-accepted")) == 1, "there is nothing left to accept"


def test_who_was_not_named_stays_in_the_mass_loss():
    """REC-11: a person accepts what they were shown; who fell silent since is as little lost as before, for as long as
    it takes, and back or accepted in its turn."""
    h = Harness(THREE, nodes=nodes(9), interval=1.0)
    h.advance(5)
    first, then = nodes(5), nodes(9)[5:8]
    silence(h, *first)
    h.advance(31)
    silence(h, *then)
    h.advance(31)
    since = h.view.mass_loss.since
    assert h.view.mass_loss.nodes == {*first, *then}
    h.feed(LossAccepted(frozenset((*first, "n08", "nobody")), "ada"))
    assert h.view.mass_loss.nodes == set(then) and h.view.mass_loss.since == since
    h.advance(3000)
    assert lost(h) == list(first) and h.view.mass_loss.nodes == set(then)
    assert not h.kinds("mass-loss-over") and len(h.kinds("mass-loss")) == 1
    h.connect(then[0])
    h.advance(5)
    h.feed(LossAccepted(frozenset(then[1:]), "ada"))
    h.advance(5)
    assert lost(h) == [*first, *then[1:]] and h.view.mass_loss is None


def test_a_pause_of_ours_ends_no_mass_loss():
    """REC-11: nobody came back meanwhile, and what a person says of them still counts."""
    h = Harness(THREE, nodes=nodes(4), interval=1.0)
    h.advance(5)
    silence(h, "n00", "n01", "n02")
    h.advance(60)
    since = h.view.mass_loss.since
    h.clock.advance(600)
    h.run_pass()
    assert h.view.mass_loss.nodes == {"n00", "n01", "n02"} and h.view.mass_loss.since == since
    assert len(h.kinds("mass-loss")) == 1 and not h.kinds("mass-loss-over")
    h.feed(LossAccepted(frozenset({"n00", "n01", "n02"}), "ada"))
    h.advance(1)
    assert lost(h) == ["n00", "n01", "n02"]


def test_a_start_that_sees_few_of_its_nodes_rebuilds_nothing():
    """REC-10, REC-11, REC-24: every enrolled node starts unreachable and counts, for each term."""
    h = Harness(THREE, nodes=nodes(5), interval=1.0)
    h.advance(5)
    h.restart(THREE, interval=1.0)
    assert {node.status for node in h.view.nodes.values()} == {"unreachable"}
    assert h.view.settling.active
    h.connect("n04")
    h.advance(20)
    assert h.view.mass_loss is None, "they may be on their way: no alarm yet"
    h.advance(900)
    assert h.view.mass_loss.nodes == {"n00", "n01", "n02", "n03"}
    assert not lost(h)


# ---------------------------------------------------------------- witnesses


def reporting(h, loads):
    """A router that reports every second what ``loads()`` says then."""

    def reports():
        sequence = int(h.clock.monotonic() * 2)
        return [("r1", Report(boot="r", sequence=sequence, version="1", generation="boot-a-1", endpoints=loads()))]

    h.report_routers = reports


def witness(h, replica, answered):
    """A router whose last answer was so long ago when it began."""
    began = h.clock.monotonic()

    def loads():
        ago = h.clock.monotonic() - began + answered if answered is not None else None
        return (EndpointLoad(id=replica.id, answered_seconds=ago),)

    reporting(h, loads)


def test_an_endpoint_that_answers_routers_is_not_rebuilt():
    """REC-10: its node is lost to us, not to its clients; when the answers end it is rebuilt."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    first = h.only()
    node = first.shards[0].node_id
    silence(h, node)
    h.advance(290)
    witness(h, first, 0.0)
    h.advance(20)
    assert lost(h) == [node]
    assert h.only("tiny", "ready").id == first.id
    assert [endpoint.id for endpoint in h.table["tiny"].endpoints] == [first.id]
    assert [note.replica for note in h.kinds("spared")] == [first.id]
    h.advance(60)
    moved = h.only("tiny", "ready")
    assert moved.shards[0].node_id != node
    assert "no router had an answer" in h.kinds("failed")[-1].reason


def test_an_answer_of_long_ago_vouches_for_nothing():
    """REC-10: within sixty seconds; failures of a router's tries are no answers."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    first = h.only()
    witness(h, first, 0.0)
    silence(h, first.shards[0].node_id)
    h.advance(320)
    assert h.only("tiny", "ready").id != first.id and not h.kinds("spared")


def test_a_spared_replica_whose_node_returns_is_as_any_other():
    """REC-10: it was there all the time."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    first = h.only()
    node = first.shards[0].node_id
    silence(h, node)
    h.advance(290)
    witness(h, first, 0.0)
    h.advance(20)
    h.connect(node)
    h.advance(200)
    only = h.only("tiny", "ready")
    assert only.id == first.id and not only.spared
    assert len(h.agents[node].launched) == 1


def test_a_spared_replica_stays_while_our_own_sight_is_in_doubt():
    """HA-01: routers that fall silent too are no reason to rebuild while the lease is in doubt."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    first = h.only()
    silence(h, first.shards[0].node_id)
    h.advance(290)
    witness(h, first, 0.0)
    h.advance(20)
    h.report_routers = list
    h.feed(LeaseExtended(h.clock.monotonic()))
    h.advance(300)
    assert h.only("tiny", "ready").id == first.id
    h.feed(LeaseExtended(h.clock.monotonic() + 1000))
    h.advance(20)
    assert h.only("tiny", "ready").id != first.id


def test_a_spared_replica_that_drains_says_why_to_the_end():
    """REC-06, REC-10: that its node returns changes nothing of that."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    first = h.only()
    node = first.shards[0].node_id
    silence(h, node)
    h.advance(290)
    served(h, [first], answered_seconds=0.0, inflight=1)
    h.advance(20)
    assert first.spared
    h.reload(ONE_MODEL.replace("{min: 1, max: 1}", "{min: 0, max: 0}"))
    h.advance(5)
    h.connect(node)
    h.advance(5)
    assert (first.state, first.spared) == ("draining", False)
    assert "is off" in first.reason


def test_a_removed_node_is_given_up_whatever_answers():
    """REC-13: nothing may be sent to it any more."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    first = h.only()
    node = first.shards[0].node_id
    witness(h, first, 0.0)
    h.advance(1)
    h.feed(EnrolmentChanged(frozenset({"n1", "n2"} - {node})))
    h.advance(10)
    assert h.only("tiny", "ready").id != first.id


# ---------------------------------------------------------------- our own pauses


def test_a_process_that_stood_still_blames_nobody():
    """REC-10, REC-11: after a pause of ten minutes everybody has time to be heard."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    first = h.only()
    h.clock.advance(600)
    h.run_pass()
    assert len(h.sessions) == 2 and {node.status for node in h.view.nodes.values()} == {"connected"}
    assert len(h.kinds("paused")) == 1
    h.advance(20)
    assert h.only("tiny", "ready").id == first.id
    silence(h, "n1", "n2")
    h.advance(40)
    h.clock.advance(600)
    h.run_pass()
    assert not lost(h)
    h.advance(310)
    assert len(lost(h)) == 1


# ---------------------------------------------------------------- a leader that hears few of its nodes


def served(h, replicas, **load):
    """A router that has these endpoints from an earlier leader's table."""
    reporting(h, lambda: tuple(EndpointLoad(id=replica.id, **load) for replica in replicas))


def test_what_routers_are_served_by_is_not_rebuilt_by_a_new_leader():
    """REC-10, REC-11, REC-25: it leads, settles, and has heard one node of five. Its table says that endpoints
    may be missing, so routers keep them; once they answer no more, they are rebuilt."""
    h = Harness(THREE, nodes=nodes(5), interval=1.0)
    h.advance(5)
    before = h.replicas("tiny", "ready")
    (home,) = {replica.shards[0].node_id for replica in before[:1]}
    h.restart(THREE, interval=1.0)
    served(h, before, answered_seconds=1.0)
    (other,) = [name for name in nodes(5) if name != home][-1:]
    h.connect(other)
    h.advance(200)
    assert not h.view.settling.active
    known = len(h.replicas("tiny"))
    assert h.view.vouched == {"tiny": 3 - known} and not h.kinds("place")[3:]
    assert h.tables[-1].settling
    (told,) = h.kinds("vouched")
    assert told.model == "tiny" and "not rebuilt" in told.reason
    served(h, before, answered_seconds=100.0, failures=1)
    h.advance(20)
    assert not h.view.vouched and len(h.replicas("tiny", "ready")) == 3
    assert not h.tables[-1].settling


def one_unheard():
    """A restart after which one node of five stays silent, while what runs there answers routers: what runs there,
    and the node."""
    h = Harness(THREE, nodes=nodes(5), interval=1.0)
    h.advance(5)
    before = h.replicas("tiny", "ready")
    home = before[0].shards[0].node_id
    h.restart(THREE, interval=1.0)
    away = [replica for replica in before if replica.shards[0].node_id == home]
    served(h, away, answered_seconds=1.0)
    for name in nodes(5):
        if name != home:
            h.connect(name)
    return h, away, home


def test_one_silent_node_of_many_is_waited_for_as_well():
    """REC-10: no mass loss; an endpoint that nobody asks is no reason to wait, one that answers is."""
    h, away, _ = one_unheard()
    h.advance(120)
    assert h.view.vouched == {"tiny": len(away)} and len(h.kinds("place")) == 3
    served(h, away)
    h.advance(20)
    assert not h.view.vouched and len(h.replicas("tiny", "ready")) == 3


def test_what_answers_routers_is_not_rebuilt_when_its_node_is_lost_unheard():
    """REC-10: lost changes nothing of what a router is served by, whether an agent told of it or not."""
    h, away, home = one_unheard()
    h.advance(400)
    assert lost(h) == [home]
    assert h.view.vouched == {"tiny": len(away)} and len(h.kinds("place")) == 3 and h.tables[-1].settling
    assert "1 more on nodes that are out of sight" in explain(h.view, "tiny", h.clock.monotonic()).sentence
    served(h, away, answered_seconds=100.0)
    h.advance(20)
    assert not h.view.vouched and len(h.replicas("tiny", "ready")) == 3


def test_nothing_is_vouched_for_when_every_node_is_heard():
    """REC-20: then the agents know better than a router with an old table."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    ghost = h.only()
    served(h, [type("Gone", (), {"id": "tiny-0000dead"})()], answered_seconds=0.0)
    h.advance(30)
    assert not h.view.vouched and h.only().id == ghost.id and not h.tables[-1].settling


def test_nothing_more_is_vouched_for_on_a_node_that_has_registered():
    """SEC-01, REC-10: what it runs is known while it is away. Else whoever holds a router's certificate could keep
    models from being placed, and tables from being whole, for as long as any node is away."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    home = h.only().shards[0].node_id
    served(h, [type("Ghost", (), {"id": f"tiny-{number:08x}"})() for number in range(5)], answered_seconds=0.0)
    h.disconnect("n1" if home == "n2" else "n2")
    h.advance(20)
    assert not h.view.vouched and not h.tables[-1].settling


def test_nobody_is_lost_right_after_a_doubt():
    """HA-01, REC-10: what kept the store away may have kept nodes and routers away too."""
    h = Harness(nodes=("n1", "n2"), interval=1.0)
    h.advance(5)
    silence(h, h.only().shards[0].node_id)
    h.advance(290)
    h.feed(LeaseExtended(h.clock.monotonic()))
    h.advance(60)
    h.feed(LeaseExtended(h.clock.monotonic() + 1000))
    h.advance(8)
    assert not lost(h)
    h.advance(5)
    assert len(lost(h)) == 1
