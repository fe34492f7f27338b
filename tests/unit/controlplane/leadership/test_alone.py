"""Who leads where a lock keeps everybody else out: at once, and for as long as it is held (HA-01)."""

from controlplane.leadership.alone import Alone
from controlplane.leadership.lease import LOOK, RENEW, Answered, Claim, Extended, Look, Lost, Row, Unanswered, Won

FOREVER = float("inf")


def leading(row: Row | None = None) -> tuple[Alone, Row]:
    """One that leads."""
    machine = Alone("me", 0.0)
    assert machine.wake(0.0) == [Look()]
    (claim,) = machine.handle(Answered(0.0, row), 0.1)
    assert claim == (Claim() if row is None else Claim(row.owner, row.renewals, renewed_at=row.renewed_at))
    taken = Row("me", 1 if row is None else row.renewals + 1, 1 if row is None else row.epoch + 1)
    assert machine.handle(Answered(0.1, taken), 0.2) == [Won(taken.epoch, FOREVER)]
    return machine, taken


def test_it_leads_at_once_whatever_the_row_says() -> None:
    """HA-01: what another left behind is not waited for; its epoch goes on."""
    assert leading()[0].epoch == 1
    machine, _ = leading(Row("crashed", 7, 4, 30.0, renewed_at=5.0))
    assert machine.leading and machine.epoch == 5 and machine.until == FOREVER


def test_it_looks_from_time_to_time_and_changes_nothing() -> None:
    """HA-01: so the lock is taken again soon after its connection broke."""
    machine, row = leading()
    assert machine.next_wake == 0.2 + RENEW and machine.wake(1.0) == []
    assert machine.wake(6.0) == [Look()]
    assert machine.wake(6.5) == [], "one question at a time"
    assert machine.handle(Answered(6.0, row), 6.5) == [] and machine.leading


def test_a_store_that_is_away_puts_nothing_in_doubt() -> None:
    """HA-01: nobody else may lead."""
    machine, row = leading()
    machine.wake(6.0)
    assert machine.handle(Unanswered("away"), 7.0) == [] and machine.failing == "away"
    assert machine.leading and machine.until == FOREVER and machine.next_wake == 7.0 + LOOK
    machine.wake(9.0)
    machine.handle(Answered(9.0, row), 9.0)
    assert not machine.failing


def test_it_lets_go_once_another_came_in() -> None:
    """HA-01: while the lock was lost with its connection."""
    for other in (Row("other", 9, 3), Row("", 9, 3), None):
        machine, _ = leading()
        machine.wake(6.0)
        (lost,) = machine.handle(Answered(6.0, other), 6.0)
        assert isinstance(lost, Lost) and not machine.leading


def test_an_epoch_that_is_wanted_is_had_from_the_store() -> None:
    """AGT-04: at once, or as soon as the open question is answered."""
    machine, _ = leading()
    machine.want_epoch(41, 1.0)
    assert machine.epoch == 1 and machine.wake(1.0) == [Claim(floor=42)]
    assert machine.handle(Answered(1.0, Row("me", 2, 42)), 1.0) == [Extended(42, FOREVER)]
    machine.want_epoch(41, 2.0)
    assert machine.wake(2.0) == []
    machine.wake(7.0)
    machine.want_epoch(50, 7.0)
    assert machine.handle(Answered(7.0, Row("me", 2, 42)), 7.1) == []
    assert machine.wake(7.1) == [Claim(floor=51)]
    assert machine.handle(Unanswered("away"), 8.0) == []
    assert machine.wake(9.0) == [Claim(floor=51)]


def test_who_does_not_lead_wants_no_epoch() -> None:
    """AGT-04: there is none of ours."""
    machine = Alone("me", 0.0)
    machine.want_epoch(41, 0.0)
    assert machine.wake(0.0) == [Look()]
    machine.handle(Unanswered("the lock is another's"), 0.0)
    assert machine.wake(LOOK) == [Look()]


def test_it_believes_nobody_who_says_that_another_leads() -> None:
    """HA-02: the lock keeps everybody else out."""
    alone, _ = leading()
    assert alone.superseded(99, "cp-2", 1e9) == [] and alone.leading
