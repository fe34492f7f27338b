"""What asks the store for the lease machine (HA-01): off the hub, with a time limit, one question at a time."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from controlplane.leadership import lease, onlooker
from controlplane.leadership.alone import Alone
from controlplane.leadership.driver import NAMESAKE, Leadership
from controlplane.leadership.lease import Candidate, Claim, Holder, Lease
from controlplane.store.database import Database
from controlplane.store.errors import NotLeading, StoreUnavailable
from controlplane.store.port import Transaction
from llmgw.runtime.clock import SystemClock
from tests.unit.controlplane.store.conftest import place, sqlite_template
from tests.unit.controlplane.store.places import Place

__all__ = ["place", "sqlite_template"]

HOLDER = Holder("cp-1", {"agents": "10.0.0.1:7001"})


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Let others run until it is so."""
    with gevent.Timeout(seconds):
        while not condition():
            gevent.sleep(0.005)


class Access:
    """A store, until it is told to be away."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.error: Exception | None = None
        self.limits: list[float | None] = []
        self.held: gevent.event.Event | None = None
        self.refuse: Callable[[], bool] = lambda: False

    def write(self, work: Callable[[Transaction], Any], timeout: float | None = None) -> Any:
        self.limits.append(timeout)
        if self.held is not None:
            self.held.wait()
        if self.error is not None:
            raise self.error
        result = self.database.transact(work)
        if self.refuse():
            raise StoreUnavailable("the store may only be read")
        return result


@pytest.fixture
def access(place: Place) -> Access:
    return Access(place.open())


@pytest.fixture
def make(access: Access) -> Iterator[Callable[..., Leadership]]:
    """Makes candidates, with a short lease unless they are alone."""
    made: list[Leadership] = []

    def one(*, alone: bool = False, holder: Holder = HOLDER) -> Leadership:
        def machine(owner: str, now: float) -> Candidate:
            return Alone(owner, now) if alone else Lease(owner, now, ttl=1.0, renew=0.1, margin=0.2)

        made.append(Leadership(machine, access, SystemClock(), holder=holder, limit=1.5))  # type: ignore[arg-type]
        return made[-1]

    yield one
    access.error = None
    for each in made:
        each.stop()


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "one of several"])
def test_it_wins_and_lets_go(make: Callable[..., Leadership], access: Access, alone: bool) -> None:
    """HA-01, HA-02: the row says who and where; a clean end leaves it free."""
    leadership = make(alone=alone)
    leadership.stand_by()
    assert leadership.won.wait(5)
    assert leadership.leading and leadership.sure and leadership.epoch == 1 and leadership.remaining > 0
    row = access.database.transact(lambda tx: tx.leadership.read())
    assert row.owner == leadership.owner and len(row.owner) == 32 and row.holder == HOLDER
    assert set(access.limits) == {1.5}
    leadership.stop()
    assert not leadership.leading and not leadership.won.is_set()
    assert access.database.transact(lambda tx: tx.leadership.read()).owner == ""
    leadership.stand_by()
    assert leadership.won.wait(5) and leadership.epoch == 2, "another term, another id, another epoch"


def test_each_candidacy_has_an_id_of_its_own(make: Callable[..., Leadership]) -> None:
    """HA-01: no copy of the store takes one for another; no transaction of an old one is kept."""
    leadership = make()
    leadership.stand_by()
    assert leadership.won.wait(5)
    first, guard = leadership.owner, leadership.guard()
    access = leadership._store
    access.write(guard)
    leadership.stop()
    leadership.stand_by()
    assert leadership.won.wait(5) and leadership.owner != first
    with pytest.raises(NotLeading, match="cp-1 took over"):
        access.write(guard)


def test_renewals_are_told(make: Callable[..., Leadership]) -> None:
    """HA-01: the loop hears until when; a higher epoch comes with the next."""
    leadership = make()
    told: list[tuple[float, int]] = []
    leadership.on_extended = lambda until, epoch: told.append((until, epoch))
    leadership.stand_by()
    until(lambda: len(told) >= 2)
    assert told[0][0] < told[1][0] and told[0][1] == 1
    leadership.want_epoch(41)
    until(lambda: told[-1][1] == 42)


def test_a_store_that_does_not_answer_is_asked_again(make: Callable[..., Leadership], access: Access) -> None:
    """HA-01: the lead goes on in doubt; why is told; errors of our own are no other case."""
    leadership = make()
    leadership.stand_by()
    assert leadership.won.wait(5)
    access.error = StoreUnavailable("the store is away")
    until(lambda: not leadership.sure)
    assert leadership.leading and leadership.failing == "the store is away" and leadership.unanswered
    access.error = RuntimeError("odd")
    until(lambda: "RuntimeError" in leadership.failing)
    access.error = None
    until(lambda: leadership.sure)
    assert not leadership.failing and leadership.epoch == 1


def test_a_lease_that_another_took_is_lost_once(make: Callable[..., Leadership], access: Access) -> None:
    """HA-02: nothing more is asked until everything was let go and it stands by again."""
    leadership, other = make(), make(holder=Holder("cp-2"))
    leadership.stand_by()
    assert leadership.won.wait(5)
    access.database.transact(lambda tx: tx.leadership.release(leadership.owner))
    assert leadership.lost.wait(5)
    asked = leadership.asked
    other.stand_by()
    assert other.won.wait(5) and other.epoch == 2
    assert leadership.asked == asked
    leadership.stop()
    assert access.database.transact(lambda tx: tx.leadership.read()).owner == other.owner, "it is not ours to release"
    leadership.stand_by()
    until(lambda: leadership.leader == Holder("cp-2"))
    assert not leadership.won.is_set()


def test_why_it_leads_and_leads_no_more(make: Callable[..., Leadership], access: Access) -> None:
    """HA-01: from whom it has the lead, and why; also why it ended."""
    first, second = make(), make(holder=Holder("cp-2"))
    first.stand_by()
    assert first.won.wait(5)
    assert (first.before, first.why_won) == (None, "nobody ever had the lease")
    second.stand_by()
    until(lambda: second.leader == HOLDER)
    first.stop()
    assert second.won.wait(5)
    assert (second.before, second.why_won) == (HOLDER, "cp-1 let go of its lease") and not first.why_lost
    access.database.transact(lambda tx: tx.leadership.release(second.owner))
    assert second.lost.wait(5)
    assert second.why_lost == "the lease is nobody's"


def test_another_of_the_same_name_is_warned_of(
    make: Callable[..., Leadership], access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    """HA-01: once, as long as it leads."""
    first, second = make(), make(holder=Holder(HOLDER.name, {"admin": "elsewhere:1"}))
    first.stand_by()
    assert first.won.wait(5)
    second.stand_by()
    asked = second.asked
    until(lambda: second.namesake == HOLDER)
    until(lambda: second.asked > asked + 3)
    assert [record.message for record in caplog.records].count(NAMESAKE) == 1


def test_a_stop_does_not_wait_for_a_question(make: Callable[..., Leadership], access: Access) -> None:
    """HA-02: the store may not answer at all."""
    access.held = gevent.event.Event()
    leadership = make()
    leadership.stand_by()
    until(lambda: leadership.asked == 1)
    with gevent.Timeout(2):
        leadership.stop()
    assert not leadership.leading
    access.held.set()


def test_a_release_that_fails_is_no_failure_of_the_stop(make: Callable[..., Leadership], access: Access) -> None:
    """HA-02: the next one waits for the lease to run out then."""
    leadership = make()
    leadership.stand_by()
    assert leadership.won.wait(5)
    access.error = StoreUnavailable("away")
    leadership.stop()
    assert not leadership.leading


def test_a_claim_without_an_answer_is_let_go_of_too(make: Callable[..., Leadership], access: Access) -> None:
    """HA-02: one that is stopped while it takes the lease leaves nobody waiting for its end."""
    leadership = make()
    access.refuse = lambda: leadership._machine.may_hold  # the claim is carried out, its answer is lost
    leadership.stand_by()
    until(lambda: leadership.unanswered)
    row = access.database.transact(lambda tx: tx.leadership.read())
    assert row.owner == leadership.owner and not leadership.leading
    access.refuse = lambda: False
    leadership.stop()
    assert access.database.transact(lambda tx: tx.leadership.read()).owner == ""


def test_a_store_that_can_only_be_read_is_told_of_once(
    make: Callable[..., Leadership], access: Access, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STO-03: it answers each look and no claim; the log hears of it once a minute, with a count."""
    caplog.set_level("INFO", "llmgw.leadership")
    monkeypatch.setattr("controlplane.leadership.lease.LOOK", 0.01)

    def told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "llmgw.leadership"]

    leadership = make(alone=True)
    access.refuse = lambda: leadership._machine.may_hold
    leadership.stand_by()
    until(lambda: leadership.unanswered >= 5)
    assert [record.message for record in told()] == ["the store does not answer for the lease"]
    monkeypatch.setattr("llmgw.runtime.repeated.AGAIN", 0.0)
    until(lambda: len(told()) > 1)
    assert told()[1].fields["times"] >= 5  # type: ignore[attr-defined]
    access.refuse = lambda: False
    assert leadership.won.wait(5)
    assert [record.message for record in told()][-2:] == [
        "the store answers for the lease again",
        "this control plane leads",
    ]


def test_a_candidate_tells_when_it_may_lead(make: Callable[..., Leadership]) -> None:
    """HA-01: those who wait for it come back then; who cannot tell says nothing."""
    leader, candidate = make(), make(holder=Holder("cp-2"))
    assert candidate.takes_in is None
    leader.stand_by()
    assert leader.won.wait(5) and leader.takes_in is None
    candidate.stand_by()
    until(lambda: candidate.takes_in is not None)
    assert 0.0 < (candidate.takes_in or 0.0) <= 1.0


def test_nobody_is_sent_to_whom_they_ask(make: Callable[..., Leadership], access: Access) -> None:
    """HA-01: after a crash the row is still that of the process before; that one leads no more."""
    before, after = make(), make()
    before.stand_by()
    assert before.won.wait(5)
    assert before._greenlet is not None
    before._greenlet.kill()
    after.stand_by()
    until(lambda: after.takes_in is not None)
    assert not after.won.is_set() and after.leader is None


def test_who_is_unable_to_lead_only_looks_who_does(make: Callable[..., Leadership], access: Access) -> None:
    """HA-01: the epoch stays, and a row that nobody holds is left to others."""
    unable, able = make(holder=Holder("cp-2")), make()
    unable.stand_by("the token's file is open to others")
    until(lambda: unable.asked == 1 and not unable._machine._asking)
    assert unable.unable and not unable.won.is_set() and unable.leader is None
    assert access.database.transact(lambda tx: tx.leadership.read()) is None
    able.stand_by()
    assert able.won.wait(5) and able.epoch == 1 and not able.unable
    until(lambda: unable.leader == HOLDER)
    access.error = StoreUnavailable("away")
    until(lambda: unable.failing)
    access.error = None
    able.stop()
    unable.stop()
    unable.stand_by()
    assert unable.won.wait(5) and not unable.unable


def test_one_in_doubt_lets_go_as_soon_as_it_is_told_that_another_leads(
    make: Callable[..., Leadership], access: Access
) -> None:
    """HA-02: it does not wait for the store, whose late answer makes nobody lead."""
    leadership = make()
    leadership.stand_by()
    assert leadership.won.wait(5)
    assert leadership.superseded(9, "cp-2") and leadership.sure, "nobody is believed beyond doubt"
    access.held = gevent.event.Event()
    until(lambda: not leadership.sure)
    assert leadership.superseded(1, "cp-2") and not leadership.lost.is_set()
    assert not leadership.superseded(9, "cp-2") and leadership.lost.is_set()
    leadership.won.clear()
    access.database.transact(lambda tx: tx.leadership.release(leadership.owner))  # what a candidate would take
    access.held.set()
    assert leadership._greenlet is not None
    leadership._greenlet.join(5)
    assert leadership._greenlet.dead and not leadership.leading and not leadership.won.is_set()


def test_who_was_replaced_is_known_but_for_ourselves(make: Callable[..., Leadership]) -> None:
    """HA-02: one that comes back after a crash takes the lease from the process it was before."""
    first, other, again = make(), make(holder=Holder("cp-2")), make(holder=Holder("cp-2"))
    for each, replaced in ((first, None), (other, HOLDER), (again, None)):
        each.stand_by()
        assert each.won.wait(5) and each.replaced == replaced
        assert each._greenlet is not None
        each._greenlet.kill()


def test_a_leader_that_renews_no_more_is_told_once(
    make: Callable[..., Leadership], access: Access, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HA-01: as a warning on the one that stands by, which could not lead here; and when it renews again."""
    monkeypatch.setattr(lease, "LATE", 0.1)
    monkeypatch.setattr(lease, "LOOK", 0.02)
    monkeypatch.setattr(onlooker, "LOOK", 0.02)
    caplog.set_level("INFO", "llmgw.leadership")
    other = Holder("cp-2", {})

    def renew(holder: Holder = other) -> None:
        access.database.transact(lambda tx: tx.leadership.claim("b" * 32, Claim(), ttl=30.0, holder=holder))

    def told(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    renew()
    standby = make()
    standby.stand_by("its schema is newer")
    until(lambda: standby.overdue)
    until(lambda: told("the leader did not renew its lease when it should have"))
    asked = standby.asked
    until(lambda: standby.asked > asked + 5)
    assert told("did not renew its lease") == 1 and standby.leader == other
    assert standby.unrenewed is not None and standby.unrenewed > 0.2 and standby.takes_in is None
    renew()
    until(lambda: told("the lease is renewed again"))
    until(lambda: told("did not renew its lease") == 2)
    renew(HOLDER)
    until(lambda: standby.leader is None)
    until(lambda: standby._machine.overdue(SystemClock().monotonic()))
    assert standby.unrenewed is None and not standby.overdue, "our own before a crash: nobody else is late"
