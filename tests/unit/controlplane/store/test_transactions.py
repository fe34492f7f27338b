"""One call is one transaction, from whatever greenlet (STO-01, STO-03), on every database."""

import subprocess
import sys
import threading
import time

import gevent
import pytest

from controlplane.services.changes import Replayed
from controlplane.services.errors import Refused
from controlplane.store import access
from controlplane.store.access import CAPACITY, StoreThreads
from controlplane.store.database import Database
from controlplane.store.errors import StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.values import AuditEntry, Scope
from tests.unit.controlplane.store.places import Place, hub_is_free
from tests.unit.controlplane.store.test_identity import key


@pytest.fixture
def store(place: Place) -> StoreThreads:
    return place.threads(timeout=3.0)


def ids(store: StoreThreads) -> list[str]:
    return [one.id for one in store.read(lambda tx: tx.keys.all())]


def scope(path: str) -> Scope:
    return Scope(path, "", 1.0, "ada")


# ---------------------------------------------------------------- together or not at all


@pytest.mark.parametrize(
    "error", [Refused("conflict", "no", status=409), Replayed("models/a"), KeyError("x"), ZeroDivisionError()]
)
def test_what_the_work_raises_undoes_it_and_is_raised(store: StoreThreads, error: Exception) -> None:
    """API-05: a change and its audit entry stand or fall together; the thread lives on."""

    def work(tx: Transaction) -> None:
        tx.keys.add(key(1))
        tx.audit.add(AuditEntry(1.0, "a", "a", "t", "o", "k", "x"))
        raise error

    with pytest.raises(type(error)) as raised:
        store.write(work)
    assert raised.value is error
    assert store.read(lambda tx: (tx.keys.all(), tx.audit.page(1).items)) == ((), ())
    assert (store.failures, store.failing) == (0, "")
    store.write(lambda tx: tx.keys.add(key(2)))
    assert ids(store) == ["key-2"]


def test_work_sees_what_it_wrote(store: StoreThreads) -> None:
    """Several queries are one transaction."""

    def work(tx: Transaction) -> list[str]:
        tx.scopes.put(scope("a"))
        tx.scopes.put(scope("a/b"))
        return [one.path for one in tx.scopes.all()]

    assert store.write(work) == ["a", "a/b"]


def test_a_reader_sees_what_was_kept_and_only_that(store: StoreThreads) -> None:
    """Reading holds up no writing and sees one moment: not half a change."""
    seen = []

    def work(tx: Transaction) -> None:
        tx.scopes.put(scope("a"))
        time.sleep(0.1)
        tx.scopes.put(scope("b"))

    writing = gevent.spawn(store.write, work)
    while not writing.ready():
        seen.append(len(store.read(lambda tx: tx.scopes.all())))
    writing.get()
    seen.append(len(store.read(lambda tx: tx.scopes.all())))
    assert set(seen) == {0, 2} and seen[0] == 0 and seen[-1] == 2


def test_a_long_report_holds_up_no_change(store: StoreThreads) -> None:
    """STO-03: two threads, two connections."""

    began, changed = threading.Event(), threading.Event()

    def report(tx: Transaction) -> int:
        before = len(tx.scopes.all())
        began.set()
        assert changed.wait(10), "the change waits for the report"
        return before + len(tx.scopes.all())

    reading = gevent.spawn(store.read, report, 20.0)
    with gevent.Timeout(10):
        while not began.is_set():
            gevent.sleep(0.005)
    store.write(lambda tx: tx.scopes.put(scope("a")))
    changed.set()
    assert reading.get() == 0, "and the report is of one moment"


def test_a_reader_cannot_write(store: StoreThreads, place: Place) -> None:
    """The reading connection is told so by the database itself, whatever the query."""
    works = [
        lambda tx: tx.keys.add(key(1)),
        lambda tx: tx.scopes.remove("a"),
        lambda tx: tx.leadership.probe(),
        lambda tx: tx.audit.drop_before(1.0, 1),
    ]
    for number, work in enumerate(works):
        with pytest.raises(StoreUnavailable, match="only be read"):
            store.read(work)
        assert store.failures == number + 1
    assert "only be read" in store.failing
    assert ids(store) == []
    assert store.failing == ""
    with pytest.raises(StoreUnavailable, match="only be read"):
        place.open(write=False).transact(lambda tx: tx.scopes.put(scope("x")))


def test_a_store_that_failed_is_asked_whether_it_is_back(store: StoreThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: since when it is away is told, and that it is no longer, though nobody else asks."""
    monkeypatch.setattr(access, "PROBE", 0.02)
    assert store.failing_for is None
    with pytest.raises(StoreUnavailable):
        store.read(lambda tx: tx.keys.add(key(1)))
    first = store.failing_for
    assert first is not None and first >= 0.0
    with pytest.raises(StoreUnavailable):
        store.read(lambda tx: tx.keys.add(key(1)))
    again = store.failing_for
    assert again is not None and again >= first, "since the first of them"
    with gevent.Timeout(10):
        while store.failing:
            gevent.sleep(0.01)
    assert store.failing_for is None and store.failures == 2


# ---------------------------------------------------------------- patience


def test_what_nobody_waits_for_is_undone(store: StoreThreads) -> None:
    """STO-03: "nothing was changed" is true after a time-out; what waits behind is not begun."""
    begun = []

    def slow(tx: Transaction) -> None:
        begun.append("slow")
        time.sleep(0.8)
        tx.keys.add(key(1))

    def behind(tx: Transaction) -> None:
        begun.append("behind")
        tx.keys.add(key(2))

    refusals = []

    def give_up(work, timeout: float) -> None:
        with pytest.raises(StoreUnavailable) as refused:
            store.write(work, timeout)
        refusals.append(refused.value)

    calls = [gevent.spawn(give_up, slow, 0.2), gevent.spawn(give_up, behind, 0.1)]
    with hub_is_free():
        gevent.joinall(calls, raise_error=True)
        assert store.write(lambda tx: tx.keys.all()) == ()
    assert len(refusals) == 2 == store.failures
    assert all("nothing was changed" in str(one) and not one.uncertain for one in refusals)
    assert begun == ["slow"]


class LateCommit(Database):
    """Takes its time between the last statement and the commit."""

    delay = 0.7

    def transact(self, work, before_commit=None, wanted=lambda: True):
        def late() -> None:
            before_commit()
            time.sleep(self.delay)

        return super().transact(work, late, wanted)


@pytest.fixture
def late(place: Place):
    backend = place.backend()
    started = StoreThreads(lambda: LateCommit(backend), lambda: Database(backend, write=False), timeout=5.0).start()
    yield started
    started.close()


def test_a_commit_that_began_is_waited_for(late: StoreThreads) -> None:
    """STO-03: past the point of no return the caller learns the outcome."""
    late.write(lambda tx: tx.keys.add(key(1)), timeout=0.4)
    assert ids(late) == ["key-1"]


def test_a_commit_that_does_not_end_is_uncertain(late: StoreThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: the answer does not claim that nothing changed."""
    monkeypatch.setattr(access, "COMMIT_ALLOWANCE", 0.05)
    with pytest.raises(StoreUnavailable, match="not known yet") as refused:
        late.write(lambda tx: tx.keys.add(key(1)), timeout=0.4)
    assert refused.value.uncertain
    assert [one.id for one in late.write(lambda tx: tx.keys.all())] == ["key-1"]


def test_waiting_calls_are_bounded(store: StoreThreads) -> None:
    """STO-03: a dead store does not gather callers without end; the writer's crowd keeps no reader out."""
    hold = threading.Event()
    blocked = [gevent.spawn(store.write, lambda tx: hold.wait(10), 30.0)]
    blocked += [gevent.spawn(store.write, lambda tx: None, 30.0) for _ in range(CAPACITY - 1)]
    with gevent.Timeout(10):
        while store.waiting < CAPACITY:
            gevent.sleep(0.005)
    with pytest.raises(StoreUnavailable, match="wait for the store already"):
        store.write(lambda tx: None)
    assert ids(store) == []
    hold.set()
    gevent.joinall(blocked, raise_error=True)
    assert store.waiting == 0


def test_a_caller_that_is_killed_leaves_nothing_behind(store: StoreThreads) -> None:
    """STO-03: a request whose client went away changes nothing after it."""

    def slow(tx: Transaction) -> None:
        time.sleep(0.2)
        tx.keys.add(key(1))

    caller = gevent.spawn(store.write, slow)
    gevent.sleep(0.05)
    caller.kill()
    assert store.write(lambda tx: tx.keys.all()) == ()
    assert store.waiting == 0


def test_closing_finishes_what_waits(place: Place) -> None:
    """STO-01: an orderly end loses no change that was asked for."""
    store = place.threads()
    jobs = [gevent.spawn(store.write, lambda tx, n=n: tx.keys.add(key(n))) for n in range(20)]
    gevent.sleep(0)
    store.close(timeout=5.0)
    gevent.joinall(jobs, raise_error=True)
    assert len(place.open().transact(lambda tx: tx.keys.all())) == 20


# ---------------------------------------------------------------- many at once


def test_fifty_writers_lose_nothing_and_hold_up_nobody(store: StoreThreads) -> None:
    """STO-01, STO-03: greenlets share one thread; every acknowledged row is there."""
    jobs = [gevent.spawn(lambda n=n: store.write(lambda tx: tx.keys.add(key(n)))) for n in range(50)]
    with hub_is_free():
        gevent.joinall(jobs, raise_error=True)
    assert len(ids(store)) == 50
    assert store.waiting == 0


CLAIMS = """
import secrets, sys
from controlplane.leadership.lease import Holder, taking
from controlplane.store.database import Database
from controlplane.store.opening import backend_of
database = Database(backend_of(sys.argv[1], None, None)).open()
sys.stdin.readline()
for _ in range(25):
    claim = taking(database.transact(lambda tx: tx.leadership.read()))
    owner = secrets.token_hex(8)
    row = database.transact(lambda tx: tx.leadership.claim(owner, claim, ttl=30.0, holder=Holder(owner)))
    if row.owner == owner:
        print(row.epoch, row.renewals)
"""


def test_of_two_processes_that_saw_the_same_lease_one_takes_it(place: Place) -> None:
    """HA-01, AGT-04: at the same time, on one database: an epoch has one leader."""
    backend = place.backend()
    url = f"sqlite:///{backend.file}" if place.kind == "sqlite" else backend.url
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, "-c", CLAIMS, url], **pipes) for _ in range(2)]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=60)[0].splitlines() for child in children]
    assert all(child.returncode == 0 for child in children)
    won = sorted(tuple(map(int, line.split())) for lines in said for line in lines)
    assert won == [(number, number) for number in range(1, len(won) + 1)] and len(won) >= 25


def test_a_change_that_rests_on_what_it_read_is_not_made_twice(place: Place) -> None:
    """API-04: two connections read a version and write the next: no edit is lost."""
    first, second = place.open(), place.open()
    first.transact(lambda tx: tx.scopes.put(scope("a")))
    rounds = []

    def raise_version(tx: Transaction) -> None:
        (old,) = tx.scopes.all()
        if not rounds and place.kind == "postgresql":  # SQLite lets in one writer at a time
            rounds.append("another comes in between")
            second.transact(lambda tx: tx.scopes.put(Scope("a", "", 1.0, "eve", version=old.version + 1)))
        tx.scopes.put(Scope("a", "", 1.0, "ada", version=old.version + 1))

    if place.kind == "sqlite":
        second.transact(raise_version)
    first.transact(raise_version)
    assert first.transact(lambda tx: tx.scopes.all())[0].version == 3
