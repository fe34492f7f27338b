"""The pure session machine."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import session as s
from agent.rounds import Rounds
from llmgw.runtime.settings import Address
from llmgw.wire.messages import (
    Forget,
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Inventory,
    Measurements,
    Refuse,
    Register,
    ShardKey,
    Unknown,
    Welcome,
)

ONE = (Address("127.0.0.1", 7001),)
THREE = tuple(Address("127.0.0.1", port) for port in (7001, 7002, 7003))
WELCOME = Welcome(session_id="s", protocol=1, version="0.1.0", epoch=3, heartbeat_seconds=10, silence_seconds=30)


class Wire:
    """Drives a session by hand and remembers what it did."""

    def __init__(self, addresses=ONE, seed=1, searches=False):
        self.now = 100.0
        self.objection = ""
        self.session = s.Session(
            Rounds(addresses, random.Random(seed), searches),
            hello=lambda now: Hello(node_id="n", version="1", oldest_protocol=1, newest_protocol=1),
            registration=lambda now: Register(inventory=Inventory(address="127.0.0.1")),
            measurements=lambda now: Measurements(load1=now),
            objection=lambda welcome: self.objection,
        )

    def wake(self):
        """Let time pass to the next wake and act on it."""
        self.now = max(self.now, self.session.next_wake)
        return self.session.wake(self.now)

    def feed(self, event):
        return self.session.handle(event, self.now)

    def receive(self, message):
        return self.feed(s.Received(self.session.attempt, message))

    def dial(self):
        (connect,) = self.wake()
        assert isinstance(connect, s.Connect)
        return connect

    def establish(self):
        connect = self.dial()
        self.feed(s.Opened(connect.attempt))
        return self.receive(WELCOME)

    def lose(self, reason="reset"):
        before = self.now
        self.feed(s.Closed(self.session.attempt, reason))
        return self.session.next_wake - before


def sent(effects):
    return [effect.message for effect in effects if isinstance(effect, s.Send)]


def test_hello_then_register_then_heartbeats():
    """AGT-03: the first frame is hello, the registration follows the welcome at once."""
    wire = Wire()
    connect = wire.dial()
    assert [type(m) for m in sent(wire.feed(s.Opened(connect.attempt)))] == [Hello]
    effects = wire.receive(WELCOME)
    assert effects[0] == s.Established(WELCOME)
    assert [type(m) for m in sent(effects)] == [Register]
    first, second = sent(wire.wake()), None
    wire.receive(HeartbeatAck(sequence=1))
    start = wire.now
    second = sent(wire.wake())
    assert (first[0].sequence, second[0].sequence) == (1, 2)
    assert wire.now - start == 10.0
    assert second[0].measurements.load1 == wire.now


def test_silence_ends_the_session():
    """AGT-03: a peer that acknowledges nothing is left after its silence time."""
    wire = Wire()
    wire.establish()
    start = wire.now
    effects = wire.wake()
    while not any(isinstance(e, s.Disconnect) for e in effects):
        assert all(isinstance(m, Heartbeat) for m in sent(effects))
        effects = wire.wake()
    assert wire.now - start == 30.0
    assert "nothing was heard" in effects[0].reason


def test_anything_heard_counts_as_life():
    """AGT-03: liveness is any message, not only acknowledgements."""
    wire = Wire()
    wire.establish()
    end = wire.now + 100
    while wire.now < end:
        assert not any(isinstance(e, s.Disconnect) for e in wire.wake())
        wire.receive(Forget(shards=(ShardKey("m-1", 0, 1),)))


def test_one_session_at_a_time():
    """AGT-03: after a disconnect nothing is dialled before the old connection ended."""
    wire = Wire()
    wire.establish()
    (disconnect,) = wire.receive(Goodbye(reason="restart"))
    assert isinstance(disconnect, s.Disconnect)
    assert wire.session.next_wake is None
    assert wire.session.wake(wire.now + 1000) == []
    wire.lose()
    assert isinstance(wire.dial(), s.Connect)


def test_events_of_an_older_attempt_change_nothing():
    """AGT-03: what still arrives from an old connection is not taken for the new one."""
    wire = Wire()
    wire.establish()
    old = wire.session.attempt
    wire.lose()
    wire.establish()
    assert wire.feed(s.Closed(old, "late")) == []
    assert wire.feed(s.Received(old, Forget(shards=()))) == []
    assert wire.session.live


@given(seed=st.integers(0, 2**32))
def test_backoff_grows_with_jitter_and_never_exceeds_the_limit(seed):
    """AGT-03, REC-24: jittered exponential backoff to 30 s."""
    wire = Wire(seed=seed)
    waits = []
    for _ in range(12):
        wire.dial()
        waits.append(wire.lose())
    assert waits[0] <= 1.0
    assert all(wait <= 30.5 for wait in waits)
    assert all(wait >= 15.0 for wait in waits[-4:])
    assert len({round(wait, 6) for wait in waits[-4:]}) == 4


@given(seed=st.integers(0, 2**32))
def test_a_round_tries_every_address_before_it_backs_off(seed):
    """AGT-03: several addresses do not multiply the wait (REC-24 counts on 30 s)."""
    wire = Wire(THREE, seed=seed)
    gaps, dialled = [], []
    for _ in range(30):
        dialled.append(wire.dial().address)
        gaps.append(wire.lose())
    for start in range(0, 30, 3):
        assert set(dialled[start : start + 3]) == set(THREE)
        assert max(gaps[start : start + 2]) <= 0.1
    assert max(gaps) <= 30.5


def test_a_connection_that_hangs_is_given_up():
    """AGT-03: neither connecting nor the welcome may take for ever."""
    wire = Wire()
    wire.dial()
    (effect,) = wire.wake()
    assert isinstance(effect, s.Disconnect)
    wire.lose()
    wire.feed(s.Opened(wire.dial().attempt))
    (effect,) = wire.wake()
    assert isinstance(effect, s.Disconnect)
    assert "hello" in effect.reason


def test_backoff_is_kept_until_the_session_has_proven_itself():
    """AGT-03: a control plane that drops each agent right after its welcome is not hammered."""
    wire = Wire()
    for _ in range(8):
        wire.establish()
        wait = wire.lose()
    assert wait >= 15.0
    wire.establish()
    wire.wake()
    wire.receive(HeartbeatAck(sequence=1))
    assert wire.lose() <= 0.5


def test_not_leader_goes_to_the_leader_at_once_but_only_once():
    """AGT-03: a standby says where to go; two that name each other make no loop."""
    wire = Wire()
    wire.feed(s.Opened(wire.dial().attempt))
    wire.receive(Refuse(code="not_leader", message="no", leader="10.0.0.9:7001"))
    assert wire.lose() == 0.0
    connect = wire.dial()
    assert connect.address == Address("10.0.0.9", 7001)
    wire.feed(s.Opened(connect.attempt))
    wire.receive(Refuse(code="not_leader", message="no", leader="127.0.0.1:7001"))
    assert wire.lose() > 0.0


def refuse(wire, **fields):
    """Be refused at the next address; how long it waits then."""
    wire.feed(s.Opened(wire.dial().attempt))
    wire.receive(Refuse(message="no", **fields))
    return wire.lose()


def test_not_leader_without_an_address_tries_the_others():
    """AGT-03: a standby that does not know who leads, or cannot reach it, costs no backoff."""
    wire = Wire(THREE)
    assert refuse(wire, code="not_leader") <= 0.1
    assert refuse(wire, code="not_leader") <= 0.1
    wire.establish()
    assert wire.session.address == THREE[2]


def test_a_leader_that_does_not_answer_is_one_try_of_the_round():
    """AGT-03: where a standby sent us nobody is: the next address follows at once."""
    wire = Wire(THREE[:2])
    assert refuse(wire, code="not_leader", leader="10.0.0.9:7001") == 0.0
    assert wire.dial().address == Address("10.0.0.9", 7001)
    assert wire.lose("nothing listens there") <= 0.1
    assert wire.dial().address == THREE[1]


def waits_for_takeover(wire, takeover_at):
    """When a standby is asked, from the crash of the leader until the standby leads: ``wire`` has
    the addresses of both, leader first, and is in session with the leader."""
    leader, standby = wire.session._rounds.addresses
    wire.wake()
    wire.receive(HeartbeatAck(sequence=1))
    wire.lose()
    asked = []
    while True:
        address = wire.dial().address
        if address == standby:
            asked.append(wire.now)
            if wire.now >= takeover_at:
                return asked
            left = takeover_at - wire.now
            wire.feed(s.Opened(wire.session.attempt))
            told = Refuse(code="not_leader", message="no", leader=str(leader), retry_seconds=1.0, takeover_seconds=left)
            wire.receive(told)
        wire.lose()


@given(seed=st.integers(0, 2**32))
def test_a_takeover_is_not_slept_through(seed):
    """AGT-03: after a crash an agent is back soon after the standby leads, and asks seldom before."""
    wire = Wire(THREE[:2], seed=seed)
    wire.establish()
    crash = wire.now
    asked = waits_for_takeover(wire, crash + 30.0)
    assert asked[-1] - (crash + 30.0) <= 5.5
    assert all(later - earlier >= 3.5 for earlier, later in pairwise(asked[:-1]))
    assert len(asked) <= 6


def test_a_fleet_that_waits_for_a_takeover_does_not_return_in_one_instant():
    """AGT-03: each draws its moment."""
    late = []
    for seed in range(300):
        wire = Wire(THREE[:2], seed=seed)
        wire.establish()
        late.append(waits_for_takeover(wire, wire.now + 30.0)[-1] - 130.0)
    assert max(sum(start <= each < start + 0.5 for each in late) for start in range(6)) < 75


def test_the_round_of_a_takeover_begins_at_the_standby():
    """AGT-03: the address of a machine that is gone costs seconds."""
    wire = Wire(THREE)
    wire.dial()
    wire.lose()
    refuse(wire, code="not_leader", takeover_seconds=3.0)
    wire.dial()
    assert wire.lose() > 0.5
    assert wire.dial().address == THREE[1]


def test_after_a_goodbye_a_standby_is_asked_again_soon():
    """HA-02: whoever said goodbye leaves the lease free: the next one leads within seconds."""
    wire = Wire(THREE[:2])
    wire.establish()
    wire.wake()
    wire.receive(HeartbeatAck(sequence=1))
    wire.receive(Goodbye(reason="restart", spread_seconds=2.0))
    wire.lose()
    wire.dial()
    wire.lose("nothing listens there")
    assert refuse(wire, code="not_leader", retry_seconds=1.0, takeover_seconds=28.0) <= 1.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -5.0, 1e300])
def test_a_takeover_that_never_comes_keeps_nobody_away_for_longer(bad):
    """REC-24: settling outlasts the longest wait, whatever a standby says; nor is it hammered."""
    wire = Wire()
    waits = [refuse(wire, code="not_leader", retry_seconds=1.0, takeover_seconds=bad) for _ in range(20)]
    assert all(1.0 <= wait <= 30.5 for wait in waits)


def test_a_leader_outside_the_list_is_found_again():
    """AGT-03: what a standby told counts once; the addresses that a person wrote are asked again."""
    wire = Wire()
    assert refuse(wire, code="not_leader", leader="10.0.0.9:7001") == 0.0
    wire.establish()
    wire.lose()
    assert wire.dial().address == ONE[0]


def test_a_leader_that_must_not_be_obeyed_is_left():
    """AGT-04: its welcome is declined before anything is told, and the next address is tried."""
    wire = Wire(THREE)
    wire.objection = "epoch 3 is older than 5"
    wire.feed(s.Opened(wire.dial().attempt))
    (effect,) = wire.receive(WELCOME)
    assert isinstance(effect, s.Disconnect)
    assert effect.reason == "127.0.0.1:7001 is not obeyed: epoch 3 is older than 5"
    assert wire.lose() <= 0.1
    wire.objection = ""
    wire.establish()
    assert wire.session.live and wire.session.address == THREE[1]


def test_a_leader_that_checks_its_epoch_is_asked_again_soon():
    """AGT-04: ``epoch_unproven`` is over within a renewal of the lease."""
    wire = Wire()
    wire.establish()
    wire.wake()
    wire.receive(HeartbeatAck(sequence=1))
    wire.lose()
    assert 1.0 <= refuse(wire, code="epoch_unproven", retry_seconds=1.0) <= 1.5


class TestSearch:
    """AGT-03: control planes found in the network (mDNS)."""

    def test_looks_before_it_dials(self):
        wire = Wire((), searches=True)
        assert wire.wake() == [s.Search()]
        (connect,) = wire.feed(s.Found(THREE))
        assert connect.address == THREE[0]

    def test_a_session_that_is_lost_needs_no_search(self):
        wire = Wire((), searches=True)
        wire.wake()
        (connect,) = wire.feed(s.Found(ONE))
        wire.feed(s.Opened(connect.attempt))
        wire.receive(WELCOME)
        wire.lose()
        assert wire.dial().address == ONE[0]
        wire.lose()
        assert wire.wake() == [s.Search()]

    def test_nothing_found_is_tried_again_for_ever(self):
        wire = Wire((), searches=True)
        waits = []
        for _ in range(10):
            assert wire.wake() == [s.Search()]
            before = wire.now
            (notice,) = wire.feed(s.Found(()))
            assert "no control plane was found" in notice.message
            waits.append(wire.session.next_wake - before)
        assert waits[0] <= 1.0 and 15 <= waits[-1] <= 30.5

    def test_those_known_before_are_tried_when_nothing_is_found(self):
        wire = Wire((), searches=True)
        wire.wake()
        wire.feed(s.Found(ONE))
        wire.lose()
        assert wire.wake() == [s.Search()]
        (connect,) = wire.feed(s.Found(()))
        assert connect.address == ONE[0]

    def test_a_search_that_hangs_is_given_up_and_may_still_answer(self):
        wire = Wire((), searches=True)
        wire.wake()
        (notice,) = wire.wake()
        assert "no control plane" in notice.message
        assert wire.feed(s.Found(ONE)) == []
        assert wire.dial().address == ONE[0]

    def test_what_is_found_is_bounded(self):
        wire = Wire((), searches=True)
        wire.wake()
        wire.feed(s.Found(tuple(Address("127.0.0.1", port) for port in range(1, 500))))
        assert len(wire.session._rounds.addresses) == 16


@pytest.mark.parametrize("leader", ["", "nonsense", "host:", ":7001", "host:99999", "host:x"])
def test_a_bad_leader_address_is_ignored(leader):
    """AGT-03: what comes from outside is checked."""
    wire = Wire()
    wire.feed(s.Opened(wire.dial().attempt))
    wire.receive(Refuse(code="not_leader", message="no", leader=leader))
    wire.lose()
    assert wire.dial().address == ONE[0]


def test_refusal_with_a_time_waits_at_least_that_long():
    """AGT-03: ``retry_seconds`` is the least wait."""
    wire = Wire()
    wire.feed(s.Opened(wire.dial().attempt))
    wire.receive(Refuse(code="overloaded", message="later", retry_seconds=20))
    assert wire.lose() >= 20


def test_superseded_waits_long():
    """AGT-03: two agents of one name do not evict each other in a tight loop."""
    wire = Wire()
    wire.establish()
    wire.receive(Refuse(code="superseded", message="newer session"))
    assert wire.lose() >= 30


def test_goodbye_spreads_a_fleet():
    """AGT-03: after a goodbye each agent draws its moment within the spread."""
    waits = []
    for seed in range(200):
        wire = Wire(seed=seed)
        wire.establish()
        wire.receive(Goodbye(reason="restart", spread_seconds=8))
        waits.append(wire.lose())
    assert 0 <= min(waits) < 1
    assert 7 < max(waits) <= 8


@pytest.mark.parametrize("bad", [math.nan, math.inf, -5.0, 1e300])
def test_durations_from_outside_are_bounded(bad):
    """AGT-03: a broken control plane cannot send the agent away for ever."""
    wire = Wire()
    wire.establish()
    wire.receive(Goodbye(reason="x", spread_seconds=bad))
    assert 0 <= wire.lose() <= 300
    wire.feed(s.Opened(wire.dial().attempt))
    wire.receive(Welcome(session_id="s", protocol=1, version="1", epoch=1, heartbeat_seconds=bad, silence_seconds=bad))
    assert wire.session.next_wake == wire.now
    wire.wake()
    assert wire.now < wire.session.next_wake <= wire.now + 60


def test_unknown_messages_are_counted_and_ignored():
    """DEP-03: a newer control plane may say more than this build knows."""
    wire = Wire()
    wire.establish()
    wire.receive(Unknown("dance"))
    assert wire.session.live
    assert wire.session.unknown_messages == 1


def test_a_command_before_the_welcome_ends_the_session():
    """AGT-03: the control plane answers the hello first."""
    wire = Wire()
    wire.feed(s.Opened(wire.dial().attempt))
    (effect,) = wire.receive(Forget(shards=()))
    assert isinstance(effect, s.Disconnect)


def test_reports_outside_a_session_are_dropped():
    """AGT-03: the next registration tells everything anyway."""
    wire = Wire()
    message = Register(inventory=Inventory(address="a"))
    assert wire.session.report(message) == []
    wire.establish()
    assert sent(wire.session.report(message)) == [message]


def test_shut_down_disconnects_and_stays_away():
    """AGT-09: the agent leaves without a word about its engines."""
    wire = Wire()
    wire.establish()
    (effect,) = wire.feed(s.ShutDown())
    assert isinstance(effect, s.Disconnect)
    wire.feed(s.Closed(wire.session.attempt, "closed"))
    assert wire.session.next_wake is None
    assert wire.session.wake(1e9) == []
