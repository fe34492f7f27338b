import random

import gevent
import msgspec
import pytest

from llmgw.runtime.clock import ManualClock
from llmgw.wire.routing import MAX_RECORDS, UsageBatch
from router import ledger as module
from router.control import BatchRefused, ControlError
from router.ledger import Ledger
from router.usage import Done

BOOT, NEXT = "0123456789abcdef", "fedcba9876543210"


class Plane:
    """Takes batches, or fails as told. ``counted`` are ids by boot and sequence."""

    def __init__(self):
        self.fail = None
        self.posts = []
        self.counted = {}

    def __call__(self, body):
        self.posts.append(body)
        if self.fail is not None:
            raise self.fail
        batch = msgspec.json.decode(body, type=UsageBatch)
        self.counted.setdefault((batch.boot, batch.sequence), [one.id for one in batch.records])

    @property
    def ids(self):
        return [one for batch in self.counted.values() for one in batch]


@pytest.fixture
def plane():
    return Plane()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def make(tmp_path, plane, clock, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    monkeypatch.setattr(module, "Backoff", lambda rng: Quick())
    made = []

    def makes(boot=BOOT, limit=200_000):
        ledger = Ledger(plane, tmp_path / "usage", boot=boot, limit=limit, clock=clock, rng=random.Random(1))
        made.append(ledger)
        ledger.start()
        return ledger

    yield makes
    for ledger in made:
        if not ledger._ending.is_set():
            ledger.finish(0)


class Quick:
    """A backoff that does not make a test wait."""

    def next(self):
        return 0.005

    def reset(self):
        return


def finished(ledger, clock, *names):
    for name in names:
        ledger.record(Done(clock.monotonic(), name, "k", "m", 200))


def until(condition):
    with gevent.Timeout(10):
        while not condition():
            gevent.sleep(0.002)


def test_records_are_handed_over(make, plane, clock):
    """TEN-06: and forgotten: on disk as in memory."""
    ledger = make()
    finished(ledger, clock, "a", "b")
    until(lambda: plane.ids == ["a", "b"])
    finished(ledger, clock, "c")
    until(lambda: ledger.kept == 0 and plane.ids == ["a", "b", "c"])
    assert list(plane.counted) == [(BOOT, 1), (BOOT, 2)]


def test_a_batch_never_changes(make, plane, clock, tmp_path):
    """STO-03: what comes while it is not taken goes into the next one; many seconds fit into that."""
    plane.fail = ControlError("away")
    ledger = make()
    finished(ledger, clock, "a")
    until(lambda: plane.posts)
    for name in "bcd":
        clock.advance(60)
        finished(ledger, clock, name)
        until(lambda: not ledger._done)
        until(lambda name=name: ledger.kept == ord(name) - ord("a") + 1)
    plane.fail = None
    until(lambda: ledger.kept == 0)
    assert plane.counted == {(BOOT, 1): ["a"], (BOOT, 2): ["b", "c", "d"]}
    last = msgspec.json.decode(plane.posts[-1], type=UsageBatch)
    assert [one.ago for one in last.records] == [120.0, 60.0, 0.0]


def test_many_at_once(make, plane, clock):
    """STO-03: batches are no larger than the control plane takes, and nothing is left out."""
    ledger = make()
    names = [f"r{nth}" for nth in range(3 * MAX_RECORDS)]
    finished(ledger, clock, *names)
    until(lambda: ledger.kept == 0 and len(plane.ids) == len(names))
    assert plane.ids == names
    assert max(len(batch) for batch in plane.counted.values()) <= MAX_RECORDS
    assert max(map(len, plane.posts)) < 2 * 1024 * 1024


def test_large_records(make, plane, clock):
    """STO-03: a batch is bounded in bytes as well."""
    plane.fail = ControlError("away")
    ledger = make()
    for nth in range(1000):
        ledger.record(Done(clock.monotonic(), f"r{nth}", "k", "m", 404, asked="\u0001" * 512))
    until(lambda: ledger.kept == 1000)
    plane.fail = None
    until(lambda: ledger.kept == 0)
    assert len(plane.ids) == 1000
    assert len(plane.counted) > 1
    assert max(map(len, plane.posts)) < 3 * 1024 * 1024


def test_too_many_while_nobody_takes_them(make, plane, clock, tmp_path, caplog):
    """STO-03: the oldest go, by whole batches, and how many is said; the disk does not fill either."""
    plane.fail = ControlError("away")
    ledger = make(limit=3 * MAX_RECORDS)
    names = [f"r{nth}" for nth in range(5 * MAX_RECORDS)]
    for at in range(0, len(names), 1000):
        finished(ledger, clock, *names[at : at + 1000])
        until(lambda: not ledger._done)
    until(lambda: ledger.kept + ledger.dropped == len(names))
    with ledger._lock:  # what is counted is on disk once it is let go
        assert ledger.kept <= 3 * MAX_RECORDS
        assert ledger.dropped >= 2 * MAX_RECORDS
        lines = sum(file.read_bytes().count(b'"ago"') for file in (tmp_path / "usage").glob("*.usage"))
        assert lines == ledger.kept
    assert "usage records dropped, the oldest first" in caplog.text
    plane.fail = None
    until(lambda: ledger.kept == 0)
    # The batch that was being sent all the time is the oldest of all, and was kept.
    assert len(plane.ids) == len(names) - ledger.dropped
    assert plane.ids[-1] == names[-1]
    assert len(set(plane.ids)) == len(plane.ids)


def test_a_batch_that_will_never_be_taken(make, plane, clock, caplog):
    """STO-03: is dropped, counted and told; the next one goes its way."""
    plane.fail = BatchRefused("it answered 400: 'no'")
    ledger = make()
    finished(ledger, clock, "a", "b")
    until(lambda: ledger.refused == 2)
    plane.fail = None
    finished(ledger, clock, "c")
    until(lambda: plane.ids == ["c"])
    assert "the control plane refused usage records: they are dropped" in caplog.text


def test_what_the_dead_left(make, plane, clock, tmp_path):
    """STO-03: is sent under their names, sequences and times, also if they died in the middle of a line."""
    plane.fail = ControlError("away")
    old = make()
    finished(old, clock, "a")
    until(lambda: plane.posts)
    finished(old, clock, "b", "c")
    until(lambda: old.kept == 3)
    old.finish(0)
    file = tmp_path / "usage" / f"{BOOT}-2.usage"
    file.write_bytes(file.read_bytes()[:-9])
    plane.fail = None
    clock.advance(100)
    make(NEXT)
    until(lambda: not list((tmp_path / "usage").glob("*.usage")))
    assert plane.counted == {(BOOT, 1): ["a"], (BOOT, 2): ["b"]}
    batch = msgspec.json.decode(plane.posts[-1], type=UsageBatch)
    assert 100.0 <= batch.waited + batch.records[0].ago < 100.1
    until(lambda: not (tmp_path / "usage" / f"{BOOT}.lock").exists())


def test_a_disk_that_fails(make, plane, clock, tmp_path, caplog):
    """STO-03: records are kept in memory, sent, and it is said once."""
    plane.fail = ControlError("away")
    ledger = make()
    for sequence in range(1, 9):
        (tmp_path / "usage" / f"{BOOT}-{sequence}.usage").mkdir()
    names = [f"r{nth}" for nth in range(3 * MAX_RECORDS)]
    finished(ledger, clock, *names)
    until(lambda: ledger.kept == len(names))
    plane.fail = None
    until(lambda: len(plane.ids) == len(names))
    assert plane.ids == names
    assert caplog.text.count("usage records cannot be kept on disk") == 1


def test_what_is_lost_at_the_end_is_said(make, plane, clock, tmp_path, caplog):
    """STO-03: neither taken nor on disk."""
    plane.fail = ControlError("away")
    (tmp_path / "usage").write_text("")
    ledger = make()
    finished(ledger, clock, "a")
    until(lambda: plane.posts)
    ledger.finish(0.05)
    assert "usage records are lost" in caplog.text
