"""Sessions, adoption, node life, settling, and the restart of the control plane."""

import msgspec
import pytest

from agent import rounds
from controlplane.events import EnrolmentChanged, FrameReceived, SessionClosed, SessionOpened
from controlplane.loop import LoopSettings
from controlplane.planning.work import Work
from controlplane.settings import SETTINGS
from llmgw.wire.messages import (
    Heartbeat,
    Hello,
    Register,
    ShardChanged,
    ShardExit,
    ShardExited,
    ShardStatus,
    Start,
    Unknown,
)
from llmgw.wire.versions import RECONNECT_LIMIT
from tests.unit.controlplane.core.harness import ONE_MODEL, FakeAgent, Harness, inventory, spec


def hello(node_id="n1", **changes):
    base = Hello(node_id=node_id, version="1", oldest_protocol=1, newest_protocol=1)
    return msgspec.structs.replace(base, **changes)


def codes(h):
    return [(c.session, c.refuse.code) for c in h.closed]


@pytest.mark.parametrize(
    ("node_id", "message", "code", "words"),
    [
        ("n1", hello(oldest_protocol=0, newest_protocol=0), "protocol_too_old", "upgrade the agent"),
        ("n1", hello(oldest_protocol=9, newest_protocol=9), "protocol_too_new", "upgrade the control plane"),
        ("n9", hello("n9"), "unknown_node", "not enrolled"),
        ("n1", hello("n2"), "unauthorised", "n2"),
    ],
)
def test_a_hello_is_refused_with_the_remedy(node_id, message, code, words):
    """DEP-03, SEC-01: versions and identity are settled before anything else."""
    h = Harness(connect=False)
    h.feed(SessionOpened("x", node_id, message))
    (closed,) = h.closed
    assert closed.refuse.code == code
    assert words in closed.refuse.message
    assert h.view.nodes["n1"].session is None


def test_where_an_agent_connects_from_is_that_of_its_latest_session():
    """CLI-02: what status says of its address is of now."""
    h = Harness(connect=False)
    for session, came_from in (("a", "10.0.0.7"), ("b", "")):
        h.feed(SessionOpened(session, "n1", hello(), came_from))
        assert h.view.nodes["n1"].elsewhere == came_from


def test_a_newer_session_supersedes_and_frames_of_the_old_one_do_nothing():
    """AGT-03: one session per node; the old connection's late frames and end are void."""
    h = Harness()
    h.advance(5)
    old = h.agents["n1"].session
    h.connect("n1", "new")
    assert codes(h) == [(old, "superseded")]
    h.feed(FrameReceived(old, Register(inventory=inventory())))
    h.feed(SessionClosed(old, "gone"))
    assert h.view.nodes["n1"].session == "new"
    assert h.only().state == "ready"
    h.advance(30)
    assert len(h.agents["n1"].launched) == 1


def test_a_session_begins_with_register():
    """SESSION register_expected: anything else first ends it."""
    h = Harness(connect=False)
    h.agents["n1"].deaf = True
    session = h.connect("n1")
    h.feed(FrameReceived(session, Unknown("later")))
    assert not h.closed
    assert h.loop.unknown_frames == 1
    h.feed(FrameReceived(session, Heartbeat(sequence=1)))
    assert codes(h) == [(session, "register_expected")]


def test_a_silent_session_is_closed():
    """Either side that hears nothing for silence_seconds closes."""
    h = Harness()
    h.advance(5)
    h.agents["n1"].silent = True
    h.advance(40)
    assert [code for _, code in codes(h)] == ["timeout"]
    assert h.view.nodes["n1"].session is None


# ---------------------------------------------------------------- settling


def test_nothing_is_placed_until_all_nodes_registered():
    """REC-24: the second of two nodes ends the wait."""
    h = Harness(nodes=("n1", "n2"), connect=False)
    h.connect("n1")
    h.advance(30)
    assert not h.decisions
    assert h.tables[-1].settling
    assert h.table["tiny"].state == "loading"
    h.connect("n2")
    h.advance(5)
    assert h.only().state == "ready"
    assert not h.tables[-1].settling


@pytest.mark.parametrize(("joins", "ends"), [((0,), 40), ((0, 30), 70), ((0, 30, 60), 90)])
def test_settling_ends_when_steady_or_at_the_limit(joins, ends):
    """REC-24: 40 s without a change, 90 s in any case."""
    nodes = ("n1", "n2", "n3", "n4")
    h = Harness(nodes=nodes, connect=False, interval=1.0)
    start = h.clock.monotonic()
    for node_id, at in zip(nodes, joins, strict=False):
        h.advance(start + at - h.clock.monotonic())
        h.connect(node_id)
    h.advance(start + ends - 2 - h.clock.monotonic())
    assert h.view.settling.active
    h.advance(4)
    assert not h.view.settling.active
    assert len(h.replicas()) == 1


def test_settling_outlasts_the_longest_reconnect_of_agents():
    """REC-24: 40 s against a backoff of at most 30 s, both as they are in force."""
    assert rounds.RECONNECT_LIMIT == RECONNECT_LIMIT
    assert LoopSettings().settling_steady > RECONNECT_LIMIT
    assert SETTINGS.load(None)["settling.steady"] > RECONNECT_LIMIT


def test_no_nodes_at_all_is_said():
    """An empty fleet does not settle for ever; the refusal says what to do."""
    h = Harness(nodes=())
    h.advance(6)
    assert h.view.health["tiny"].refusal.code == "no_nodes"
    assert "no node is enrolled" in h.table["tiny"].reason


# ---------------------------------------------------------------- restart and adoption


def test_a_restarted_control_plane_adopts_and_stops_nothing():
    """REC-20, REC-25, case 17: same engine, same endpoint key, no command at all."""
    h = Harness()
    h.advance(5)
    before = h.table["tiny"].endpoints
    agent = h.agents["n1"]
    agent.commands.clear()
    h.restart()
    h.advance(10)
    assert not h.decisions[1:]
    h.connect("n1")
    h.advance(60)
    assert h.table["tiny"].endpoints == before
    assert not [m for m in agent.commands if type(m).__name__ in ("Start", "Stop")]
    assert len(agent.launched) == 1
    assert h.kinds("adopt")


def test_adoption_takes_the_fingerprint_from_the_agent():
    """CAT-08: another fingerprint is stale, none is unknown."""
    for fingerprint, stale in (("ffff000011112222", True), ("", None)):
        h = Harness(connect=False)
        h.agents["n1"].run(spec(fingerprint=fingerprint))
        h.connect("n1")
        h.advance(5)
        assert h.only().stale is stale
        assert h.only().state == "ready"


def test_an_adopted_engine_of_an_unknown_model_is_drained_and_stopped():
    """CAT-07: it left the catalog while nobody watched."""
    h = Harness(connect=False)
    h.agents["n1"].run(spec("gone-00000001", model="gone"))
    h.connect("n1")
    h.advance(305)
    assert not h.replicas("gone")
    drain, stop = (d for d in h.decisions if d.model == "gone")
    assert (drain.kind, stop.kind) == ("drain", "stop")
    assert "left the catalog" in drain.reason


def test_an_adopted_claim_is_read_from_the_catalog():
    """PLC-04: what the profile declares now counts, whatever the spec said."""
    h = Harness(ONE_MODEL.replace("{min: 1, max: 1}", "{min: 2, max: 2}").replace("gb: 4", "gb: 20"), connect=False)
    h.agents["n1"].run(spec(memory_bytes=1))
    h.connect("n1")
    h.advance(5)
    assert len(h.replicas()) == 1
    assert "12.0 of 32.0 GB free" in h.view.health["tiny"].refusal.message


def test_what_an_agent_does_not_report_is_let_go_at_once():
    """REC-23: no waiting for a time-out; an engine that served is rebuilt without backoff."""
    h = Harness()
    h.advance(5)
    first = h.only()
    h.disconnect("n1")
    h.agents["n1"].shards.clear()
    h.connect("n1")
    assert h.table["tiny"].endpoints == ()
    h.advance(4)
    assert h.only("tiny", "ready").id != first.id
    assert h.view.health.get("tiny") is None or h.view.health["tiny"].failures == 0


def test_a_start_in_flight_is_sent_again_with_its_id():
    """AGT-04: the registration's last command shows that the start never arrived."""
    h = Harness()
    agent = h.agents["n1"]
    agent.deaf = True
    h.settle()
    replica = h.only()
    h.disconnect("n1")
    agent.deaf = False
    h.connect("n1")
    h.advance(4)
    assert h.only().id == replica.id
    assert h.only().state == "ready"
    ids = [message.command_id for _, message in h.sent if isinstance(message, Start)]
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_a_start_that_was_processed_is_not_sent_again():
    """AGT-04, REC-23: the agent took it and nothing runs: failed, not started twice."""
    h = Harness()
    h.settle()
    replica = h.only()
    agent = h.agents["n1"]
    h.disconnect("n1")
    agent.shards.clear()
    h.connect("n1")
    assert len(h.starts()) == 1
    assert h.view.replicas[replica.id].state == "failed"
    assert h.view.health["tiny"].failures == 1
    h.advance(15)
    assert h.only("tiny", "ready").id != replica.id


def test_a_start_decided_while_the_node_is_away_waits_for_it():
    """Commit came while the session was down: sent at registration, once."""
    h = Harness()
    h.held = []
    h.settle()
    h.disconnect("n1")
    h.release()
    assert not h.starts()
    h.connect("n1")
    assert len(h.starts()) == 1
    h.advance(5)
    assert h.only().state == "ready"
    assert len(h.agents["n1"].launched) == 1


def test_a_lost_start_frame_is_repeated():
    """Simulated loss: no answer in 30 s, the same id again."""
    h = Harness()
    agent = h.agents["n1"]
    agent.deaf = True
    h.settle()
    agent.deaf = False
    h.advance(45)
    assert h.only().state == "ready"
    assert len(agent.launched) == 1


def test_a_second_register_in_a_session_changes_nothing():
    """A register replaces everything known, and is harmless when all is the same."""
    h = Harness()
    h.advance(5)
    before = (list(h.view.replicas), len(h.decisions))
    h.up("n1", [h.agents["n1"].register()])
    h.advance(20)
    assert (list(h.view.replicas), len(h.decisions)) == before
    assert len(h.agents["n1"].launched) == 1


def test_a_stop_is_repeated_until_the_exit_is_confirmed():
    """Case 19: the session broke between stop and exit; no shard is left behind."""
    h = Harness()
    h.advance(5)
    agent = h.agents["n1"]
    agent.deaf = True
    h.reload("models: {}")
    h.advance(301)
    assert h.only().state == "stopping"
    h.disconnect("n1")
    agent.deaf = False
    h.connect("n1")
    h.advance(2)
    assert not h.view.replicas
    assert not agent.shards
    assert len(h.stops()) == 1
    assert not agent.exits


def test_an_exit_during_a_lost_session_still_tells_why():
    """The exit is in the registration; it is recorded and acknowledged."""
    h = Harness()
    h.advance(5)
    agent = h.agents["n1"]
    key = h.only().shards[0].spec.key
    h.disconnect("n1")
    agent.kill(key, "exited", -11)
    h.connect("n1")
    assert "exit status -11" in h.view.health["tiny"].last_error
    assert not agent.exits


def test_an_exit_of_an_unknown_shard_is_acknowledged():
    """Otherwise the agent would tell it for ever."""
    h = Harness(connect=False)
    agent = h.agents["n1"]
    ghost = ShardExit(replica_id="ghost-00000001", code="exited")
    agent.exits[ghost.key] = ghost
    h.connect("n1")
    assert not agent.exits


def test_a_stop_by_somebody_else_is_no_failure():
    """A stop of an earlier control plane, confirmed to this one: rebuilt without backoff."""
    h = Harness()
    h.advance(5)
    key = h.only().shards[0].spec.key
    agent = h.agents["n1"]
    agent.shards.pop(key)
    gone = ShardExit(replica_id=key.replica_id, code="stopped", requested=True)
    h.up("n1", [ShardExited(exit=gone)])
    h.advance(4)
    assert h.only().state == "ready"
    assert h.only().id != key.replica_id


def test_a_second_copy_of_one_replica_is_stopped_not_served():
    """Two nodes report one id: the one that came first serves, the other goes, with a decision."""
    h = Harness(nodes=("n1", "n2"), connect=False)
    h.agents["n1"].run(spec())
    h.agents["n2"].run(spec())
    h.connect("n1")
    h.connect("n2")
    h.advance(10)
    assert [e.id for e in h.table["tiny"].endpoints] == ["tiny-0000aaaa"]
    h.advance(305)
    assert len(h.stops("n2")) == 1
    assert not h.stops("n1")
    assert h.stops("n2")[0].replica_id == "tiny-0000aaaa"
    assert not h.agents["n2"].shards
    assert any("second copy" in d.reason for d in h.decisions)


def test_a_start_that_came_up_nowhere_loses_to_a_report():
    """REC-22: our commanded copy on n1 is taken back when n2 reports the id as running."""
    h = Harness(nodes=("n1", "n2"))
    for agent in h.agents.values():
        agent.deaf = True
    h.settle()
    replica = h.only()
    node = replica.shards[0].node_id
    other = {"n1": "n2", "n2": "n1"}[node]
    h.agents[node].deaf = False
    h.agents[other].run(replica.shards[0].spec)
    status = next(iter(h.agents[other].shards.values()))[0]
    h.up(other, [ShardChanged(status=status)])
    h.settle()
    assert h.view.replicas[replica.id].shards[0].node_id == other
    assert h.view.replicas[replica.id].state == "ready"
    h.advance(5)
    assert len(h.stops(node)) == 1
    assert [r.id for r in h.replicas()] == [replica.id]
    assert not h.agents[node].launched


def test_an_engine_that_its_agent_ends_by_itself_counts_until_it_is_gone():
    """No replacement beside one that is going down; its exit is a failure with its reason."""
    h = Harness()
    h.advance(5)
    shard = h.only().shards[0]
    h.up("n1", [ShardChanged(status=ShardStatus(spec=shard.spec, state="stopping", pid=shard.pid))])
    h.advance(20)
    assert len(h.starts()) == 1
    h.up("n1", h.agents["n1"].kill(shard.spec.key, "startup_timeout"))
    h.advance(15)
    assert h.only("tiny", "ready")
    assert h.view.health["tiny"].last_error_code == "startup_timeout"


# ---------------------------------------------------------------- node life


def test_a_node_goes_unreachable_then_lost_and_its_replicas_move():
    """REC-10: two stages far apart; served through the first, rebuilt after the second."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    first = h.only()
    node = first.shards[0].node_id
    other = {"n1": "n2", "n2": "n1"}[node]
    h.agents[node].silent = True
    h.disconnect(node)
    h.advance(20)
    assert h.view.nodes[node].status == "connected"
    h.advance(20)
    assert h.view.nodes[node].status == "unreachable"
    assert [e.id for e in h.table["tiny"].endpoints] == [first.id]
    h.advance(250)
    assert h.only().id == first.id
    h.advance(20)
    assert h.view.nodes[node].status == "lost"
    moved = h.only("tiny", "ready")
    assert moved.shards[0].node_id == other
    assert [e.id for e in h.table["tiny"].endpoints] == [moved.id]
    assert h.view.health.get("tiny") is None or not h.view.health["tiny"].failures


def test_a_lost_node_that_returns_has_its_surplus_stopped_with_a_reason():
    """REC-10, case 15: one model, one replica; the one that came back last goes."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    first = h.only()
    node = first.shards[0].node_id
    h.disconnect(node)
    h.advance(320)
    moved = h.only("tiny", "ready")
    h.connect(node)
    h.advance(5)
    assert h.view.replicas[first.id].state == "draining"
    assert [e.id for e in h.table["tiny"].endpoints] == [moved.id]
    h.advance(305)
    assert [r.id for r in h.replicas()] == [moved.id]
    assert not h.agents[node].shards
    reasons = [d.reason for d in h.decisions if d.kind == "drain"]
    assert reasons == ["model tiny wants 1 replica and has 2"]


def test_a_return_before_the_replacement_is_up_keeps_what_serves():
    """REC-22: the replacement that only starts is taken back."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    first = h.only()
    node = first.shards[0].node_id
    other = {"n1": "n2", "n2": "n1"}[node]
    h.agents[other].load_time = 1e9
    h.disconnect(node)
    h.advance(305)
    assert len(h.replicas("tiny", "starting")) == 1
    h.connect(node)
    h.advance(5)
    assert [e.id for e in h.table["tiny"].endpoints] == [first.id]
    assert [r.id for r in h.replicas()] == [first.id]
    assert len(h.stops(other)) == 1


def test_no_placement_on_a_node_out_of_session():
    """REC-10: also in the first seconds after the session broke."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    h.disconnect("n1")
    h.disconnect("n2")
    h.reload(
        ONE_MODEL + "  more: {scaling: {min: 1, max: 1}, profiles: [{engine: sim, source: 'sim:', min_memory_gb: 1}]}\n"
    )
    h.advance(5)
    assert not h.replicas("more")
    assert "reconnecting" in h.table["more"].reason


def test_a_node_removed_from_enrolment_is_given_up():
    """REC-13: its session ends and its replicas are rebuilt elsewhere."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    node = h.only().shards[0].node_id
    other = {"n1": "n2", "n2": "n1"}[node]
    h.feed(EnrolmentChanged(frozenset({other})))
    h.advance(5)
    assert [code for _, code in codes(h)] == ["unknown_node"]
    assert h.only("tiny", "ready").shards[0].node_id == other
    h.feed(SessionOpened("again", node, hello(node)))
    assert codes(h)[-1] == ("again", "unknown_node")


def test_a_node_enrolled_later_is_used():
    """A new node needs no restart."""
    h = Harness(nodes=())
    h.advance(5)
    h.feed(EnrolmentChanged(frozenset({"n5"})))
    h.agents["n5"] = FakeAgent("n5", h.clock.monotonic)
    h.connect("n5")
    h.advance(5)
    assert h.only("tiny", "ready").shards[0].node_id == "n5"


def test_a_changed_address_keeps_the_replicas():
    """Case 30: identity is not the address; what runs stays where it answers."""
    h = Harness()
    h.advance(5)
    before = h.table["tiny"].endpoints
    h.disconnect("n1")
    h.agents["n1"].inventory = inventory(address="10.0.0.9")
    h.connect("n1")
    h.advance(10)
    assert h.table["tiny"].endpoints == before


def test_an_exit_of_an_earlier_incarnation_ends_nothing():
    """A late exit of a shard's former life is acknowledged; the present one runs."""
    h = Harness(connect=False)
    h.agents["n1"].run(spec(incarnation=3))
    h.connect("n1")
    h.advance(5)
    h.up("n1", [ShardExited(exit=ShardExit(replica_id="tiny-0000aaaa", code="exited", incarnation=2))])
    assert h.only().state == "ready"


def test_a_session_that_stands_keeps_its_node_connected():
    """REC-10: with a longer silence limit than unreachable_after, the session decides."""
    h = Harness(silence=100.0)
    h.advance(5)
    h.agents["n1"].silent = True
    h.advance(60)
    assert h.view.nodes["n1"].status == "connected"
    h.advance(60)
    assert h.view.nodes["n1"].status == "unreachable"


# ---------------------------------------------------------------- events during a pass


def test_events_between_slices_do_not_make_a_plan_act_on_the_past(monkeypatch):
    """The view may change while a plan is made: what no longer holds is planned anew,
    nobody is quarantined, nothing is started twice."""
    monkeypatch.setattr(Work, "SLICE", 1)
    h = Harness(connect=False)
    h.agents["n1"].run(spec())
    h.connect("n1")
    h.settle()
    h.up("n1", h.agents["n1"].kill(spec().key))
    h.view.health["tiny"].backoff_until = None

    def return_of_the_engine() -> None:
        h.between = None
        h.agents["n1"].run(spec())
        h.up("n1", [h.agents["n1"].register()])

    h.between = return_of_the_engine
    h.advance(30)
    assert h.between is None
    assert [r.id for r in h.replicas()] == ["tiny-0000aaaa"]
    assert not h.agents["n1"].launched
    assert not h.kinds("quarantine")


def test_a_node_that_leaves_between_slices_gets_nothing(monkeypatch):
    """As above, for a placement whose node's session ended."""
    monkeypatch.setattr(Work, "SLICE", 1)
    h = Harness()

    def leave() -> None:
        h.between = None
        h.disconnect("n1")

    h.between = leave
    h.settle()
    assert h.between is None
    assert not h.view.replicas
    assert not h.kinds("quarantine")
    h.connect("n1")
    h.advance(5)
    assert h.only().state == "ready"


def many(low: int, high: int) -> str:
    return ONE_MODEL.replace("{min: 1, max: 1}", f"{{min: {low}, max: {high}}}")


def test_a_placement_overtaken_by_an_adoption_is_dropped(monkeypatch):
    """Within max, but no longer missing."""
    monkeypatch.setattr(Work, "SLICE", 1)
    h = Harness(many(1, 3))

    def adopt() -> None:
        h.between = None
        h.agents["n1"].run(spec())
        h.up("n1", [h.agents["n1"].register()])

    h.between = adopt
    h.advance(5)
    assert h.between is None
    assert [r.id for r in h.replicas()] == ["tiny-0000aaaa"]
    assert not h.decisions


def test_a_drain_overtaken_by_a_failure_is_dropped(monkeypatch):
    """Two run, one is wanted; one dies while the plan that drains the other is made."""
    monkeypatch.setattr(Work, "SLICE", 1)
    h = Harness(many(2, 2))
    h.advance(5)
    agent = h.agents["n1"]
    victim = min(h.replicas(), key=lambda r: (-r.since, r.id))
    other = next(r for r in h.replicas() if r is not victim)

    def die() -> None:
        h.between = None
        h.up("n1", agent.kill(other.shards[0].spec.key))

    h.reload(ONE_MODEL)
    h.between = die
    h.advance(5)
    assert h.between is None
    assert h.view.replicas[victim.id].state == "ready"
    assert not [d for d in h.decisions if d.kind == "drain"]
