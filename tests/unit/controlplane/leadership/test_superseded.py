"""A leader that is told that another took the lease (HA-02)."""

import pytest

from controlplane.leadership.lease import LOOK, MARGIN, TTL, Claim, Holder, Lost, Row
from tests.unit.controlplane.leadership.rows import TAKEOVER, TICK, Process, Store, led, run


def cut_off(store: Store) -> tuple[Process, Process, float]:
    """A holder that alone does not reach the store any more, who took the lease from it, and the moment."""
    holder, other = led(store), Process("other", store)
    now = run([holder, other], 0.0, 10.0)
    now = run([holder, other], now, now + TTL + TAKEOVER, away=("holder",))
    assert other.sure(now) and holder.lease.leading and not holder.sure(now)
    return holder, other, now


def told(process: Process, epoch: int, now: float) -> bool:
    """Whether it lets go."""
    before = len(process.effects)
    process.superseded(epoch, "cp-2", now)
    return process.effects[before:] == [Lost(f"cp-2 says that it took the lease, with epoch {epoch}")]


def test_a_holder_in_doubt_lets_go_once_it_is_told_that_another_leads() -> None:
    """HA-02: it knows whom it took it from; the one that let go waits like any candidate then."""
    store = Store()
    holder, other, now = cut_off(store)
    assert other.lease.replaced == Holder("holder") and holder.lease.replaced is None
    assert told(holder, other.lease.epoch, now) and not holder.lease.leading
    assert not told(holder, other.lease.epoch, now), "once"
    now = run([holder, other], now, now + 3 * TTL)
    assert other.sure(now) and not holder.lease.leading


def test_a_holder_beyond_doubt_believes_nobody() -> None:
    """HA-01: no other can have the lease."""
    holder = led(Store())
    assert not told(holder, 99, TTL - MARGIN - TICK) and holder.sure(TTL - MARGIN - TICK)
    assert told(holder, 99, TTL - MARGIN + TICK)


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_earlier_leader_replaces_nobody(epoch: int) -> None:
    """AGT-04: one that woke up, or one of the same epoch where the store went back in time."""
    holder, _, now = cut_off(Store())
    assert holder.lease.epoch == 1
    assert not told(holder, epoch, now) and holder.lease.leading


def test_a_candidate_is_told_nothing_new() -> None:
    """HA-02: it waits as it did."""
    store = Store()
    holder, candidate = led(store), Process("candidate", store)
    now = run([holder, candidate], 0.0, 10.0)
    takes_at = candidate.lease.takes_at
    assert not told(candidate, 99, now) and candidate.lease.takes_at == takes_at and not candidate.effects


def test_an_answer_that_comes_after_it_was_told_makes_no_leader() -> None:
    """HA-02: the store did renew, or did not: whoever let go begins anew."""
    for carried_out in (False, True):
        store = Store()
        holder = led(store)
        holder.wake(holder.lease.next_wake - holder.offset)
        assert holder.open is not None
        if carried_out:
            holder.execute()
        now = TTL
        assert told(holder, 2, now) and holder.lease.next_wake is None
        if not carried_out:
            store.put(Row("other", 9, 2))
            holder.execute()
        holder.answer(now)
        assert not holder.lease.leading and isinstance(holder.effects[-1], Lost) and holder.open is None
        assert not holder.lease.may_hold and holder.lease.next_wake == holder.clock(now) + LOOK


def test_who_took_a_free_lease_has_nobody_to_tell() -> None:
    """HA-02: also if it saw another's before."""
    store = Store()
    holder, candidate = led(store), Process("candidate", store)
    now = run([holder, candidate], 0.0, 10.0)
    store.release("holder")
    run([candidate], now, now + 2.0)
    assert candidate.lease.leading and candidate.lease.replaced is None


def test_who_was_replaced_is_known_also_where_the_answer_to_the_claim_was_lost() -> None:
    """HA-02: the row is ours by the next look."""
    store = Store()
    holder, other = led(store), Process("other", store)
    now = run([holder, other], 0.0, 10.0)
    while other.open is None or not isinstance(other.open.question, Claim):
        other.execute()
        other.answer(now)
        now += TICK
        other.wake(now)
    other.execute()
    other.lose(now)
    now = run([other], now, now + 5.0)
    assert other.sure(now) and other.lease.replaced == Holder("holder")
