"""The journal's way into the store's events, and what is forgotten again."""

import json
from pathlib import Path

import gevent
import pytest

from controlplane import history
from controlplane.events import Decision
from controlplane.history import JournalSource
from controlplane.journal import Journal
from controlplane.store.errors import StoreUnavailable
from controlplane.store.feed import Feeder
from controlplane.store.port import Transaction
from controlplane.store.retention import BATCH, HOLD, IDEMPOTENCY, Retention
from controlplane.store.values import AuditEntry, EventEntry, IdempotencyRecord, JoinToken, RequestEntry
from llmgw.runtime.clock import ManualClock
from tests.unit.controlplane.store.places import Place, count_batch


class Way:
    """A journal, and a feeder from it into a store."""

    def __init__(self, folder: Path, store, max_bytes: int = 10**7) -> None:
        self.journal = Journal(folder / "d.jsonl", ManualClock(), lambda _: None, 3, max_bytes).start()
        self.source = JournalSource(self.journal.file, lambda: self.journal.durable)
        self.feeder = Feeder("history", self.source, store, history.put, linger=0.0, max_records=50)
        self.journal.on_durable = self.feeder.wake

    def write(self, first: int, number: int) -> None:
        for place in range(first, first + number):
            self.journal.note(Decision("place", f"reason {place}", model="big", figures={"n": place}))
        assert self.journal._idle.wait(10)

    def close(self) -> None:
        self.journal.stop()
        self.feeder.stop(0.0)
        gevent.sleep(0)


@pytest.fixture
def ways():
    made: list[Way] = []

    def make(*arguments, **options) -> Way:
        made.append(Way(*arguments, **options))
        return made[-1]

    yield make
    for way in made:
        way.close()


def reasons(store) -> list[str]:
    items = store.read(lambda tx: tx.events.page(10_000)).items
    assert len({event.id for event in items}) == len(items)
    return sorted((event.reason for event in items), key=lambda reason: int(reason.split()[1]))


def expected(number: int) -> list[str]:
    return [f"reason {place}" for place in range(number)]


def test_decisions_are_kept_in_the_store(place: Place, tmp_path: Path, ways) -> None:
    """API-04: with their figures, and ids that tell them apart for ever."""
    store = place.threads()
    way = ways(tmp_path, store)
    way.feeder.start()
    way.write(0, 3)
    assert way.feeder.drain(10)
    event = store.read(lambda tx: tx.events.page(10)).items[0]
    assert event == EventEntry(event.id, event.at, "place", event.reason, 3, "big", None, None, event.figures)
    assert event.figures == {"n": 2} and event.at == ManualClock().now().timestamp()
    assert {entry.id for entry in way.journal.recent} == {
        found.id for found in store.read(lambda tx: tx.events.page(10)).items
    }
    assert reasons(store) == expected(3)


def test_what_was_missed_is_caught_up_over_rotations_and_processes(place: Place, tmp_path: Path, ways) -> None:
    """STO-03: the files are read from where the store is, through older ones too, each entry once."""
    store = place.threads()
    first = ways(tmp_path, store, max_bytes=6000)
    first.feeder.start()
    first.write(0, 10)
    assert first.feeder.drain(10)
    first.feeder.stop()
    gevent.sleep(0.05)
    for start in range(10, 100, 10):
        first.write(start, 10)
    assert (tmp_path / "d.jsonl.2").exists(), "it rotated"
    first.close()
    second = ways(tmp_path, store, max_bytes=6000)
    second.feeder.start()
    second.write(100, 5)
    assert second.feeder.drain(10)
    assert reasons(store) == expected(105)
    second.close()
    (tmp_path / "d.jsonl.stored").write_text("rubbish")
    third = ways(tmp_path, store, max_bytes=6000)
    third.feeder.start()
    assert third.feeder.drain(10)
    assert reasons(store) == expected(105), "all of it again, and still once"


def test_a_journal_of_an_older_release_and_lines_that_are_none(place: Place, tmp_path: Path, ways) -> None:
    """STO-03: entries without ids get the same one each time; a line that a crash cut is left out."""
    store = place.threads()
    old = [{"at": "2026-01-01T00:00:00.000+00:00", "kind": "stop", "reason": f"reason {n}"} for n in range(3)]
    lines = [json.dumps(entry) for entry in old]
    (tmp_path / "d.jsonl").write_text(
        "\n".join([*lines, "not json", "", '{"at": "soon", "kind": "x", "reason": "y"}', '{"at'])
    )
    way = ways(tmp_path, store)
    way.feeder.start()
    assert way.feeder.drain(10)
    assert reasons(store) == expected(3) and way.feeder.refused == 0
    way.close()
    (tmp_path / "d.jsonl.stored").unlink()
    again = ways(tmp_path, store)
    again.feeder.start()
    assert again.feeder.drain(10)
    assert reasons(store) == expected(3)


def test_only_what_is_durable_is_handed_over(place: Place, tmp_path: Path) -> None:
    """REC-11: what a failed sync may take back is not history yet."""
    file = tmp_path / "d.jsonl"
    file.write_text('{"at":"2026-01-01T00:00:00Z","kind":"a","reason":"reason 0"}\n' * 2)
    size = file.stat().st_size // 2
    source = JournalSource(file, lambda: size)
    chunk = source.read(10, 10_000)
    assert chunk is not None and len(chunk.records) == 1
    source.drop(chunk.end)
    assert source.read(10, 10_000) is None
    size *= 2
    again = source.read(10, 10_000)
    assert again is not None and len(again.records) == 1


# ---------------------------------------------------------------- retention

NOW = ManualClock().now().timestamp()
AGES = {"requests.retention": 100.0, "usage.retention": 86_400.0, "audit.retention": 300.0, "events.retention": 400.0}


def age(tx: Transaction, seconds: float, number: int) -> None:
    """One of everything that is dropped, of that age; ``number`` makes it unique."""
    at = NOW - seconds
    name = f"{number}"
    entry = RequestEntry(at=at, id=name, key="k", scope="", model="m", status=200, router="r")
    count_batch(tx, "router", name, 1, (entry,), log=True)
    tx.audit.add(AuditEntry(at, "a", "a", "", "x", "key", name))
    tx.events.add((EventEntry(name, at, "x", "y"),))
    tx.idempotency.add(IdempotencyRecord(name, "a", "d", "t", at))
    tx.identities.add_token(JoinToken(name, name, "node", "n", at, "a", at + 900))


def left(store) -> dict[str, set[float]]:
    def work(tx: Transaction) -> dict[str, set[float]]:
        return {
            "requests": {NOW - row.at for row in tx.usage.requests(100).items},
            "audit": {NOW - row.at for row in tx.audit.page(100).items},
            "events": {NOW - row.at for row in tx.events.page(100).items},
            "usage": {row.start for row in tx.usage.rows(0, 4e9, by=("hour",))},
        }

    return store.read(work)


def test_each_kind_goes_at_its_own_age(place: Place) -> None:
    """API-06: no earlier, no later; sums by the hour, when the whole hour is old enough."""
    store = place.threads()
    ages = (50.0, 150.0, 350.0, 450.0, 80_000.0, IDEMPOTENCY + 10, 86_400.0 + 7300)
    for number, seconds in enumerate(ages):
        store.write(lambda tx, s=seconds, n=number: age(tx, s, n))
    retention = Retention(store, AGES.__getitem__, ManualClock(), pause=0.0)
    retention.round()
    found = left(store)
    assert found["requests"] == {50.0}
    assert found["audit"] == {50.0, 150.0}
    assert found["events"] == {50.0, 150.0, 350.0}
    assert sorted(NOW - start for start in found["usage"]) == [3600.0, 82_800.0]
    kept = store.read(lambda tx: [tx.idempotency.find("a", f"{n}") is not None for n in range(len(ages))])
    assert kept == [True] * 5 + [False] * 2
    assert [token.id for token in store.read(lambda tx: tx.identities.tokens())] == ["4", "3", "2", "1", "0"]
    dropped = {"requests": 6, "usage": 2, "audit": 5, "events": 4, "idempotency": 2, "join tokens": 2}
    assert retention.dropped == dropped
    retention.round()
    assert left(store) == found, "a second round finds nothing"


class Counting:
    """A store that remembers how many rows each transaction dropped."""

    failing = ""

    def __init__(self, store) -> None:
        self.store = store
        self.batches: list[int] = []

    def write(self, work, timeout=None):
        result = self.store.write(work, timeout)
        self.batches.append(result)
        return result

    def read(self, work, timeout=None):
        return self.store.read(work, timeout)


def test_old_rows_go_in_bounded_transactions(place: Place) -> None:
    """STO-03: so that nobody waits long: at most ``BATCH`` rows each."""
    store = place.threads()
    rows = (EventEntry("new", NOW, "x", "y"), *(EventEntry(f"{n}", 1.0, "x", "y") for n in range(2 * BATCH + 7)))
    store.write(lambda tx: tx.events.add(rows), 30)
    counting = Counting(store)
    retention = Retention(counting, AGES.__getitem__, ManualClock(), pause=0.0)
    retention.round()
    assert retention.dropped["events"] == 2 * BATCH + 7
    assert max(counting.batches) == BATCH and counting.batches.count(BATCH) == 2


def test_a_store_that_is_away_ends_a_round_and_the_next_one_comes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STO-03: told, and tried again soon, not an interval later: what is told is no longer true then."""
    monkeypatch.setattr("controlplane.store.retention.AGAIN", 0.01)
    store = place.threads()
    store.write(lambda tx: tx.events.add((EventEntry("old", 1.0, "x", "y"), EventEntry("new", NOW, "x", "y"))))

    class Away(Counting):
        calls = 0

        def write(self, work, timeout=None):
            Away.calls += 1
            if Away.calls == 2:
                raise StoreUnavailable("away")
            if Away.calls == 3:
                raise ValueError("unexpected")
            return super().write(work, timeout)

    retention = Retention(Away(store), AGES.__getitem__, ManualClock(), every=600.0, pause=0.0).start()
    with gevent.Timeout(10):
        while not retention.dropped["events"]:
            gevent.sleep(0.01)
        while retention.failing:
            gevent.sleep(0.01)
    retention.stop()


def test_a_clock_that_jumps_ahead_empties_nothing(place: Place) -> None:
    """API-06: neither at a jump, nor at a start with a wrong clock, nor, an hour later, what
    is young by the newest of its kind; an hour is long enough for a clock that is right."""
    store = place.threads()
    for number, seconds in enumerate((10.0, 150.0, 3 * 86_400.0)):
        store.write(lambda tx, s=seconds, n=number: age(tx, s, n))
    everything = left(store)
    clock = ManualClock()
    retention = Retention(store, dict.fromkeys(AGES, 2 * 86_400.0).__getitem__, clock, pause=0.0)
    clock.step_wall(30 * 86_400.0)
    retention.round()
    assert "30.0 days ahead of the newest entry" in retention.holding
    assert left(store) == everything, "found wrong at the start"
    clock.step_wall(-30 * 86_400.0)
    clock.advance(HOLD + 1)
    retention.round()
    assert retention.holding == "" and retention.dropped["requests"] == 1, "the one that was too old"
    everything = left(store)
    clock.step_wall(365 * 86_400.0)
    retention.round()
    assert "jumped 8760.0 h ahead" in retention.holding and left(store) == everything
    clock.advance(HOLD - 1)
    retention.round()
    assert left(store) == everything
    clock.advance(2)
    retention.round()
    assert retention.holding == "" and left(store) == everything, "age counts from the newest"
