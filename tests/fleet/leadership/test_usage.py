"""Usage and events over a change of leader: what was acknowledged counts once, whoever has it on its disk
(STO-03, HA-01, TEN-06)."""

import json
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.store.database import Database
from controlplane.store.opening import backend_of
from llmgw.wire.messages import Welcome
from tests.fakes.controlplane import until
from tests.fakes.postgresql import Server
from tests.fleet.leadership.pair import Member, Pair, session
from tests.fleet.test_usage import batch, post, spooled

RECORDS = 3
"""Requests in each batch."""


class Store:
    """The store of both. ``stuck()`` keeps what is used out of it meanwhile."""

    def __init__(self, url: str, stuck: Callable[[], Any]) -> None:
        self.url = url
        self.stuck = stuck

    def _read(self, work: Callable[[Any], Any]) -> Any:
        database = Database(backend_of(self.url, None, Path("/nowhere")), write=False).open()
        try:
            return database.transact(work)
        finally:
            database.close()

    def requests(self) -> tuple[int, int, int]:
        """Requests and tokens in the sums, and requests in the log, each under its own id."""

        def work(tx: Any) -> tuple[int, int, int]:
            rows = tx.usage.rows(0, 4e9, by=())
            logged = [entry.id for entry in tx.usage.requests(100_000).items]
            assert len(set(logged)) == len(logged), "none twice"
            return sum(row.requests for row in rows), sum(row.completion_tokens for row in rows), len(logged)

        counted: tuple[int, int, int] = self._read(work)
        return counted

    def events(self) -> set[str]:
        """Ids of the events."""
        return {event.id for event in self._read(lambda tx: tx.events.page(10_000).items)}


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A file that is locked as a whole, or a database of which two tables are."""
    if request.param == "sqlite":
        (tmp_path / "store").mkdir()
        file = tmp_path / "store" / "llmgw.db"

        @contextmanager
        def locked() -> Iterator[None]:
            lock = sqlite3.connect(file, isolation_level=None, timeout=30)
            lock.execute("BEGIN IMMEDIATE")
            yield
            lock.execute("ROLLBACK")
            lock.close()

        yield Store(f"sqlite://{file}", locked)
        return
    server: Server = request.getfixturevalue("postgresql_server")
    with server.database() as url:

        @contextmanager
        def tables_locked() -> Iterator[None]:
            with psycopg.connect(url) as connection:
                connection.execute("LOCK TABLE usage, events IN EXCLUSIVE MODE")
                yield

        yield Store(url, tables_locked)


@pytest.fixture
def pair(tmp_path: Path, store: Store) -> Iterator[Pair]:
    made = Pair(tmp_path, store.url)
    try:
        yield made.start()
    finally:
        made.stop()


def pour(member: Member, numbers: range) -> None:
    """What a router sends; each is acknowledged."""
    for number in numbers:
        answer = post(member, batch(number, records=RECORDS))
        assert answer.status_code == 204, answer.text


def expect(store: Store, batches: int) -> None:
    """Each of so many batches counts once."""
    requests = batches * RECORDS
    until(lambda: store.requests()[0] >= requests, f"{requests} requests in the store")
    assert store.requests() == (requests, requests * 4, requests)


def journal(member: Member) -> set[str]:
    """Ids of what it decided and saw."""
    return {json.loads(line)["id"] for line in (member.state / "decisions.jsonl").read_text().splitlines()}


def test_what_a_leader_that_crashed_had_on_disk_counts_once(pair: Pair, store: Store) -> None:
    """STO-03: kill -9 with acknowledged batches that the store does not have; the next leader counts later
    ones of the same router first; the one that crashed stands by when it is back, and hands over at once."""
    first, second = pair.first, pair.second
    pour(first, range(1, 6))
    expect(store, 5)
    with store.stuck():
        pour(first, range(6, 26))
        before = journal(first)
        agent = session(first)
        agent.expect(Welcome)
        agent.close()
        until(lambda: journal(first) > before, "what was seen is in the journal")
        assert spooled(first) == 20
        first.stop(signal.SIGKILL)
    until(second.serves, "the takeover")
    pour(second, range(25, 41))  # the answer to 25 was lost on its way
    expect(store, 5 + 16)
    assert spooled(first) == 20
    seen = journal(first)
    assert not seen <= store.events(), "what was decided last is on the first one's disk alone"
    first.start()
    until(lambda: spooled(first) == 0, "the first one's disk", timeout=60)
    expect(store, 40)
    until(lambda: seen <= store.events(), "its events", timeout=60)
    assert not first.leads() and second.leads()
    until(lambda: first.metric("llmgw_usage_waiting_bytes ") == 0, "it tells that nothing waits")
    assert post(first, batch(41)).status_code == 503, "it takes none while it stands by"
    pour(second, range(1, 42))  # a router that repeats everything
    expect(store, 41)


def test_one_that_lost_the_lead_hands_over_and_may_crash_meanwhile(pair: Pair, store: Store) -> None:
    """STO-03, HA-01: it slept for longer than its lease, with batches on its disk; it is killed again and again
    while it hands them over, leads again in the end, and all counts once."""
    first, second = pair.first, pair.second
    with store.stuck():
        pour(first, range(1, 201))
        first.tell(signal.SIGSTOP)
    until(second.serves, "the takeover")
    pour(second, range(201, 211))
    until(lambda: store.requests()[0] >= 10 * RECORDS, "those of the second", timeout=60)
    first.tell(signal.SIGCONT)
    for _ in range(3):
        before = spooled(first)
        until(lambda before=before: spooled(first) < before or not before, "some of it", timeout=60)
        first.stop(signal.SIGKILL)
        first.start()
    assert second.stop() == 0
    until(first.serves, "the first leads again")
    pour(first, range(211, 221))
    until(lambda: spooled(first) == 0, "the first one's disk", timeout=60)
    expect(store, 220)
    assert "Traceback" not in first.log() + second.log()
