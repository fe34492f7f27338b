"""From routers' batches over the spool into the store: once each, whatever is away."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gevent
import pytest

from controlplane.store.errors import StoreUnavailable
from controlplane.store.feed import MAX_BYTES, Appender, Feeder
from controlplane.store.spool import DAMAGED, Spool, SpoolFull
from controlplane.usage.intake import MAX_UNKNOWN, MOST_TOKENS, OLDEST, OTHER, UsageIntake, put
from llmgw.runtime.clock import ManualClock
from llmgw.wire.routing import RequestRecord, UsageBatch
from tests.unit.controlplane.store.places import Place, hub_is_free, sqlite_place

MODELS = ("big", "small")


def batch(sequence: int, boot: str = "boot", records: int = 1, **more: object) -> UsageBatch:
    fields = {"key": "key-1", "model": "big", "status": 200, "ago": 2.0, "prompt_tokens": 3, "completion_tokens": 4}
    made = tuple(
        RequestRecord(**{"id": f"{boot}-{sequence}-{number}", **fields, **more})  # type: ignore[arg-type]
        for number in range(records)
    )
    return UsageBatch(boot=boot, sequence=sequence, records=made)


class Line:
    """Spool, appender, feeder and intake, over a store."""

    def __init__(self, folder: Path, store, *, feeding: bool = True, max_bytes: int = 10**8) -> None:
        self.clock = ManualClock()
        self.spool = Spool(folder / "spool", max_bytes).open()
        self.log = True
        self.feeder = Feeder("usage", self.spool, store, self._put, linger=0.0)
        self.appender = Appender(self.spool, self.feeder.wake).start()
        self.scopes = {"key-1": "acme/ml", "key-2": ""}
        self.intake = UsageIntake(self.appender, self.clock, lambda: self.scopes, lambda name: name in MODELS)
        if feeding:
            self.feeder.start()

    def _put(self, tx, records: Sequence[bytes]) -> None:
        put(tx, records, log=self.log)

    def close(self) -> None:
        self.appender.stop()
        self.feeder.stop(0.0)
        gevent.sleep(0)
        self.spool.close()


@pytest.fixture
def lines():
    made: list[Line] = []

    def make(*arguments, **options) -> Line:
        made.append(Line(*arguments, **options))
        return made[-1]

    yield make
    for line in made:
        line.close()


def counted(store) -> int:
    return sum(row.requests for row in store.read(lambda tx: tx.usage.rows(0, 4e9, by=())))


def test_a_batch_becomes_sums_and_logged_requests(place: Place, tmp_path: Path, lines) -> None:
    """TEN-06: with the scope its key had when it came, at the moment it began by our clock."""
    store = place.threads()
    line = lines(tmp_path, store)
    now = line.clock.now().timestamp()
    line.intake.take("router-1", UsageBatch(boot="b", sequence=1, waited=10.0, records=batch(1).records))
    line.scopes = {"key-1": "elsewhere"}
    assert line.feeder.drain(10)
    (row,) = store.read(lambda tx: tx.usage.rows(0, 4e9, by=("key", "scope", "model")))
    assert (row.key, row.scope, row.model, row.requests) == ("key-1", "acme/ml", "big", 1)
    assert (row.prompt_tokens, row.completion_tokens) == (3, 4)
    (request,) = store.read(lambda tx: tx.usage.requests(10)).items
    assert request.at == now - 12.0 and request.router == "router-1" and request.id == "boot-1-0"
    assert line.spool.bytes_waiting == 0


def test_nothing_is_logged_one_by_one_if_that_is_switched_off(place: Place, tmp_path: Path, lines) -> None:
    """CLI-05: ``requests.log`` is off: sums are kept, requests are not."""
    store = place.threads()
    line = lines(tmp_path, store)
    line.log = False
    line.intake.take("router-1", batch(1))
    assert line.feeder.drain(10)
    assert counted(store) == 1
    assert store.read(lambda tx: tx.usage.requests(10)).items == ()


def test_what_is_sent_again_counts_once(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: a router repeats a batch whose answer was lost, also to a control plane that
    started since; gaps are no fault; another process of the router counts for itself."""
    store = place.threads()
    line = lines(tmp_path / "1", store)
    for sequence in (1, 1, 2, 2, 1, 5):
        line.intake.take("router-1", batch(sequence))
    line.intake.take("router-1", batch(1, boot="other"))
    line.intake.take("router-2", batch(1))
    assert line.feeder.drain(10)
    assert counted(store) == 5
    again = lines(tmp_path / "2", store)
    for sequence in (2, 5, 6):
        again.intake.take("router-1", batch(sequence))
    assert again.feeder.drain(10)
    assert counted(store) == 6


def test_what_comes_out_of_order_is_kept_and_counts_once(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: whether a batch was counted only the store knows: nothing is acknowledged unread."""
    store = place.threads()
    line = lines(tmp_path, store)
    for sequence in (9, 3, 3, 9, 4, 3):
        line.intake.take("router-1", batch(sequence))
    assert line.feeder.drain(10)
    assert counted(store) == 3


def test_a_crash_between_commit_and_drop_counts_once(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: the next process hands the same records over again."""
    store = place.threads()
    line = lines(tmp_path, store, feeding=False)
    for sequence in range(1, 21):
        line.intake.take("router-1", batch(sequence, records=3))
    chunk = line.spool.read(10, 10**6)
    assert chunk is not None
    store.write(lambda tx: put(tx, chunk.records, log=True))  # committed, and then the process dies
    line.close()
    again = lines(tmp_path, store)
    assert again.feeder.drain(10)
    assert counted(store) == 60
    assert len(store.read(lambda tx: tx.usage.requests(100)).items) == 60


def test_a_locked_store_is_waited_for(tmp_path: Path, lines, sqlite_template: Path) -> None:
    """STO-03: batches are taken while another process keeps the database locked; the hub is never held."""
    with sqlite_place(tmp_path, sqlite_template) as place:
        store = place.threads(timeout=2.0, busy_timeout=0.8)
        line = lines(tmp_path, store)
        other = sqlite3.connect(tmp_path / "llmgw.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with hub_is_free():
            for sequence in range(1, 51):
                line.intake.take("router-1", batch(sequence))
            while not line.feeder.failing:
                gevent.sleep(0.01)
            assert "locked" in line.feeder.failing and line.spool.bytes_waiting > 0
            other.execute("ROLLBACK")
            other.close()
            assert line.feeder.drain(30)
        assert counted(store) == 50 and line.feeder.failing == "" and line.spool.bytes_waiting == 0


class Away:
    """A store that is there when told to be."""

    failing = ""

    def __init__(self, store, answers: list[Exception]) -> None:
        self.store = store
        self.answers = answers

    def write(self, work, timeout=None):
        if self.answers:
            raise self.answers.pop(0)
        return self.store.write(work, timeout)

    def read(self, work, timeout=None):
        return self.store.read(work, timeout)


def test_a_store_that_may_have_committed_is_asked_again(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: an uncertain commit is repeated and counts once."""
    store = place.threads()

    class Uncertain(Away):
        def write(self, work, timeout=None):
            result = self.store.write(work, timeout)
            if self.answers:
                raise self.answers.pop(0)
            return result

    line = lines(tmp_path, Uncertain(store, [StoreUnavailable("who knows", uncertain=True)]))
    line.intake.take("router-1", batch(1, records=5))
    assert line.feeder.drain(10)
    assert counted(store) == 5


def test_one_record_that_the_store_cannot_take_holds_up_no_other(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: it is set aside, counted and told; the rest is written."""
    store = place.threads()
    line = lines(tmp_path, store, feeding=False)
    line.intake.take("router-1", batch(1))
    line.appender.append(b'{"not": "a batch"}')
    line.intake.take("router-1", batch(2))
    line.feeder.start()
    assert line.feeder.drain(10)
    assert counted(store) == 2 and line.feeder.refused == 1
    assert b'{"not": "a batch"}' in (tmp_path / "spool" / DAMAGED).read_bytes()


def test_a_bad_record_alone_waits_for_proof_and_then_goes(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: only when the store takes another record is one at fault; it must not block what comes later."""
    store = place.threads()
    line = lines(tmp_path, store)
    line.appender.append(b'{"not": "a batch"}')
    while not line.feeder.failing:
        gevent.sleep(0.01)
    assert line.feeder.refused == 0
    line.intake.take("router-1", batch(1))
    assert line.feeder.drain(10)
    assert counted(store) == 1 and line.feeder.refused == 1 and line.feeder.failing == ""


def test_a_bad_record_so_large_that_it_comes_alone_goes_too(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: one that fills a transaction by itself is compared with those behind it all the same."""
    store = place.threads()
    line = lines(tmp_path, store, feeding=False)
    line.appender.append(b'{"not": "' + b"x" * MAX_BYTES + b'"}')
    line.intake.take("router-1", batch(1))
    line.feeder.start()
    assert line.feeder.drain(20)
    assert counted(store) == 1 and line.feeder.refused == 1


def test_a_store_that_takes_nothing_loses_nothing(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: when every record is refused it is the store that is at fault: all of them wait."""
    store = place.threads()
    broken = Away(store, [ValueError("broken")] * 1000)
    line = lines(tmp_path, broken)
    for sequence in range(1, 4):
        line.intake.take("router-1", batch(sequence))
    while not line.feeder.failing:
        gevent.sleep(0.01)
    assert "broken" in line.feeder.failing
    broken.answers.clear()
    assert line.feeder.drain(20)
    assert counted(store) == 3 and line.feeder.refused == 0


def test_a_full_spool_is_told_to_the_router(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: bounded; the router keeps what was refused, and it is taken when there is room."""
    store = place.threads()
    line = lines(tmp_path, store, feeding=False, max_bytes=20_000)
    taken = 0
    with pytest.raises(SpoolFull):
        for sequence in range(1, 1000):
            line.intake.take("router-1", batch(sequence, records=10))
            taken += 1
    assert taken > 3 and "bytes wait" in line.appender.failing
    line.feeder.start()
    assert line.feeder.drain(10)
    line.intake.take("router-1", batch(taken + 1, records=10))
    assert line.feeder.drain(10) and line.appender.failing == ""
    assert counted(store) == (taken + 1) * 10


def test_many_routers_at_once_share_a_sync(place: Place, tmp_path: Path, lines) -> None:
    """STO-03: a hundred batches at once are durable with few syncs, and all counted."""
    store = place.threads()
    line = lines(tmp_path, store)
    syncs = 0
    append = line.spool.append

    def counting(records):
        nonlocal syncs
        syncs += 1
        append(records)

    line.spool.append = counting
    jobs = [gevent.spawn(line.intake.take, f"router-{number}", batch(1)) for number in range(100)]
    gevent.joinall(jobs, raise_error=True)
    assert line.feeder.drain(10)
    assert counted(store) == 100 and syncs <= 5


# ---------------------------------------------------------------- routers that lie


def test_names_that_nobody_knows_are_bounded(place: Place, tmp_path: Path, lines) -> None:
    """TEN-06: a router cannot fill the store with names: after ``MAX_UNKNOWN`` they count together."""
    store = place.threads()
    line = lines(tmp_path, store)
    for sequence in range(1, 4):
        records = tuple(
            replace_record(f"m{sequence}-{number}", f"k{sequence}-{number}") for number in range(MAX_UNKNOWN)
        )
        line.intake.take("router-1", UsageBatch(boot="b", sequence=sequence, records=records))
    line.intake.take("router-1", batch(4))
    assert line.feeder.drain(20)
    rows = store.read(lambda tx: tx.usage.rows(0, 4e9, by=("key", "model")))
    assert len(rows) <= 2 * MAX_UNKNOWN + 2
    assert sum(row.requests for row in rows if row.model == OTHER) >= MAX_UNKNOWN
    assert counted(store) == 3 * MAX_UNKNOWN + 1, "none is lost"
    assert ("key-1", "big") in {(row.key, row.model) for row in rows}, "what is known counts as ever"


def replace_record(model: str, key: str) -> RequestRecord:
    return RequestRecord(id="x", ago=0.0, key=key, model=model, status=200)


@pytest.mark.parametrize(("ago", "waited"), [(1e9, 0.0), (0.0, 1e9), (1e9, 1e9)])
def test_moments_are_bounded(place: Place, tmp_path: Path, lines, ago: float, waited: float) -> None:
    """TEN-06: nothing began before there was anything, nor in the future."""
    store = place.threads()
    line = lines(tmp_path, store)
    now = line.clock.now().timestamp()
    line.intake.take("r", UsageBatch(boot="b", sequence=1, waited=waited, records=batch(1, ago=ago).records))
    assert line.feeder.drain(10)
    (request,) = store.read(lambda tx: tx.usage.requests(10)).items
    assert now - OLDEST <= request.at <= now


def test_text_and_figures_that_no_database_takes(place: Place, tmp_path: Path, lines) -> None:
    """TEN-06: NUL, control characters, long names, absurd counts: kept as far as they go, once."""
    store = place.threads()
    line = lines(tmp_path, store)
    strange = {
        "id": "a\0b\x1b[31m" + "x" * 480,
        "asked": "\u202e" * 500,
        "code": "c" * 512,
        "endpoint": "\U0001f680" * 500,
    }
    counts = {"prompt_tokens": 2**40, "completion_tokens": 2**40, "cached_tokens": 2**40, "status": 999}
    for sequence in range(1, 60):
        line.intake.take("router-1", batch(sequence, records=40, **counts, **strange))
    assert line.feeder.drain(20) and line.feeder.refused == 0
    (row,) = store.read(lambda tx: tx.usage.rows(0, 4e9, by=()))
    assert row.requests == 59 * 40 and row.prompt_tokens == 59 * 40 * MOST_TOKENS
    request = store.read(lambda tx: tx.usage.requests(1)).items[0]
    assert "\0" not in request.id and replace(request, id="") != request
