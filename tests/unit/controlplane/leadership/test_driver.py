"""What asks the store for the lease machine (HA-01): off the hub, with a time limit, one question at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from controlplane.leadership.alone import Alone
from controlplane.leadership.driver import Leadership, Machine
from controlplane.leadership.lease import Holder, Lease
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

    def write(self, work: Callable[[Transaction], Any], timeout: float | None = None) -> Any:
        self.limits.append(timeout)
        if self.held is not None:
            self.held.wait()
        if self.error is not None:
            raise self.error
        return self.database.transact(work)


@pytest.fixture
def access(place: Place) -> Access:
    return Access(place.open())


@pytest.fixture
def make(access: Access) -> Iterator[Callable[..., Leadership]]:
    """Makes candidates, with a short lease unless they are alone."""
    made: list[Leadership] = []

    def one(*, alone: bool = False, holder: Holder = HOLDER) -> Leadership:
        def machine(owner: str, now: float) -> Machine:
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
    until(lambda: leadership.row is not None and leadership.row.holder.name == "cp-2")
    assert not leadership.won.is_set()


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
