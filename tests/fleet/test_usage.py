"""Usage from routers through a real control plane: what was acknowledged is counted, once,
whatever is killed or away."""

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from controlplane.store.database import Database
from controlplane.store.opening import backend_of
from controlplane.store.spool import waiting
from llmgw.wire.messages import HeartbeatAck, Welcome
from llmgw.wire.routing import MAX_REPORT, decode_table
from tests.fakes.controlplane import ControlPlane, until
from tests.fakes.postgresql import Server
from tests.harness.stalls import Stalls

DIES_BEFORE_DROP = """
import os, runpy, signal, sys
from controlplane.store.spool import Spool

def die(self, end):
    os.kill(os.getpid(), signal.SIGKILL)

if os.path.exists(sys.argv[0] + ".armed"):
    Spool.drop = die
sys.argv[0] = "controlplane.main"
runpy.run_module("controlplane.main", run_name="__main__")
"""


def batch(sequence: int, records: int = 2, boot: str = "boot") -> dict[str, Any]:
    fields = {"key": "key-1", "model": "sim-small", "status": 200, "prompt_tokens": 3, "completion_tokens": 4}
    made = [{"id": f"{boot}-{sequence}-{number}", "ago": 0.5, **fields} for number in range(records)]
    return {"boot": boot, "sequence": sequence, "records": made}


def post(control_plane: ControlPlane, body: Any, **options: Any) -> requests.Response:
    with control_plane.router() as router:
        return router.post(f"{control_plane.routers}/router/v1/usage", json=body, timeout=20, **options)


def counted(control_plane: ControlPlane, url: str = "") -> tuple[int, int]:
    """Requests in the sums and in the log, from the store itself."""
    database = Database(backend_of(url, None, control_plane.state)).open()
    try:
        return database.transact(
            lambda tx: (
                sum(row.requests for row in tx.usage.rows(0, 4e9, by=())),
                len(tx.usage.requests(100_000).items),
            )
        )
    finally:
        database.close()


def spooled(control_plane: ControlPlane) -> int:
    return waiting(control_plane.state / "usage")[0]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[ControlPlane]:
    control_plane = ControlPlane(tmp_path).start()
    yield control_plane
    control_plane.stop(signal.SIGKILL)


def test_the_listener_takes_batches_from_routers_only(started: ControlPlane) -> None:
    """TEN-06, SEC-01: authenticated as the other paths are, bounded, faults in words."""
    assert post(started, batch(1), headers={"Llmgw-Router": ""}).status_code == 403
    assert post(started, batch(1), headers={"Llmgw-Router": "router-2"}).status_code == 403
    good = post(started, batch(1))
    assert good.status_code == 204 and good.content == b""
    for body in (
        {},
        [],
        {"boot": "b"},
        {**batch(1), "sequence": 0},
        {**batch(1), "sequence": -1},
        {**batch(1), "sequence": 2**53 + 1},
        {**batch(1), "boot": ""},
        {**batch(1), "boot": "x" * 65},
        {**batch(1), "waited": -1.0},
        {"boot": "b", "sequence": 1, "records": [{"id": "a"}]},
        {"boot": "b", "sequence": 1, "records": [{**batch(1)["records"][0], "prompt_tokens": -1}]},
        {"boot": "b", "sequence": 1, "records": [{**batch(1)["records"][0], "ago": 1e300}]},
        {"boot": "b", "sequence": 1, "records": [{**batch(1)["records"][0], "status": 1000}]},
        {"boot": "b", "sequence": 1, "records": [{**batch(1)["records"][0], "key": "k" * 513}]},
        batch(1, records=5001),
    ):
        answer = post(started, body)
        assert answer.status_code == 400 and answer.json()["code"] == "validation_failed", str(body)[:80]
    url = f"{started.routers}/router/v1/usage"
    assert started.router().post(url, data=b" " * (MAX_REPORT + 1), timeout=20).status_code == 413
    assert started.router().post(url, data=b"[" * 100_000, timeout=20).status_code == 400
    assert started.router().get(url, timeout=20).status_code == 405
    assert post(started, batch(2, records=5000)).status_code == 204
    until(lambda: counted(started) == (5002, 5002), "the requests in the store")


def test_a_kill_between_commit_and_drop_counts_once(tmp_path: Path) -> None:
    """STO-03: kill -9 at exactly that point, by a process that dies there: three times in a row."""
    script = tmp_path / "dies_before_drop.py"
    script.write_text(DIES_BEFORE_DROP)
    armed = tmp_path / "dies_before_drop.py.armed"
    control_plane = ControlPlane(tmp_path)
    control_plane.program = [str(script)]
    os.environ["PYTHONPATH"] = str(Path.cwd())
    try:
        for sequence in range(1, 4):
            armed.touch()
            control_plane.start()
            # What an earlier life left is handed over at once, so it may die before the answer.
            try:
                status = post(control_plane, batch(sequence)).status_code
            except requests.ConnectionError:
                status = 0
            assert control_plane.process is not None
            assert control_plane.process.wait(20) == -signal.SIGKILL
            if status == 0:
                armed.unlink()
                control_plane.start()
                assert post(control_plane, batch(sequence)).status_code == 204
                until(lambda: spooled(control_plane) == 0, "an empty spool")
                control_plane.stop(signal.SIGKILL)
            assert counted(control_plane) == (2 * sequence, 2 * sequence), "committed, once"
        armed.unlink(missing_ok=True)
        left = spooled(control_plane)
        control_plane.start()
        until(lambda: spooled(control_plane) == 0, "an empty spool")
        assert counted(control_plane) == (6, 6)
        assert left > 0 or status == 0, "a record was handed over twice in this test"
    finally:
        del os.environ["PYTHONPATH"]
        if control_plane.process is not None and control_plane.process.poll() is None:
            control_plane.stop()


def test_kills_at_any_moment_count_what_was_acknowledged_once(tmp_path: Path) -> None:
    """STO-03: kill -9 while batches pour in, five times: a router that repeats until it
    gets its 204 finds each request counted once."""
    control_plane = ControlPlane(tmp_path).start()
    chance = random.Random(3)
    sent = 0
    kills = 0
    try:
        for _ in range(5):
            assert control_plane.process is not None
            timer = threading.Timer(chance.uniform(0.05, 1.6), os.kill, (control_plane.process.pid, signal.SIGKILL))
            timer.start()
            while True:
                try:
                    answer = post(control_plane, batch(sent + 1, records=3))
                except requests.ConnectionError:
                    break
                assert answer.status_code == 204
                sent += 1
            timer.join()
            kills += control_plane.process.wait(10) == -signal.SIGKILL
            control_plane.stop()
            control_plane.start()
        assert post(control_plane, batch(sent + 1, records=3)).status_code == 204  # the repeat of the last
        sent += 1
        until(lambda: spooled(control_plane) == 0, "an empty spool")
        assert kills == 5 and sent > 100
        assert counted(control_plane) == (3 * sent, min(3 * sent, 100_000))
    finally:
        control_plane.stop()


class Fleet:
    """An agent that heartbeats and a router that polls, all the time; how long each had to wait."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        self.slowest = {"heartbeat": 0.0, "table": 0.0}
        self.rounds = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: Exception | None = None

    def __enter__(self) -> "Fleet":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            agent = self.control_plane.agent().upgrade().hello()
            agent.expect(Welcome)
            agent.register()
            router = self.control_plane.router()
            while not self._stop.is_set():
                self.rounds += 1
                began = time.monotonic()
                agent.heartbeat(self.rounds)
                while agent.expect(HeartbeatAck).sequence != self.rounds:
                    continue
                self._note("heartbeat", began)
                began = time.monotonic()
                answer = router.get(f"{self.control_plane.routers}/router/v1/table", timeout=20)
                decode_table(answer.content)
                self._note("table", began)
                self._stop.wait(0.02)
            agent.close()
        except Exception as error:  # noqa: BLE001 - raised again in the test
            self._failure = error

    def _note(self, what: str, began: float) -> None:
        self.slowest[what] = max(self.slowest[what], time.monotonic() - began)


def pour(control_plane: ControlPlane, first: int, number: int) -> int:
    """Send so many batches; the next sequence."""
    for sequence in range(first, first + number):
        assert post(control_plane, batch(sequence)).status_code == 204
    return first + number


def test_a_locked_store_holds_up_nobody_and_loses_nothing(started: ControlPlane) -> None:
    """STO-03: SQLite, locked by another process for seconds: batches are acknowledged,
    heartbeats and route table answered, and all is counted once it is free."""
    following = pour(started, 1, 5)
    until(lambda: counted(started)[0] == 10, "the first requests")
    assert started.process is not None
    with Stalls(started.process.pid, started.log_file) as stalls, Fleet(started) as fleet:
        lock = sqlite3.connect(started.state / "llmgw.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        until(lambda: fleet.rounds > 5, "a fleet")
        following = pour(started, following, 30)
        until(lambda: "what is spooled waits" in started.log(), "the store is missed", timeout=20)
        following = pour(started, following, 30)
        assert spooled(started) >= 60
        lock.execute("ROLLBACK")
        lock.close()
        until(lambda: spooled(started) == 0, "an empty spool", timeout=40)
    assert counted(started) == (2 * (following - 1),) * 2
    assert max(fleet.slowest.values()) < 2.0 and fleet.rounds > 20, fleet.slowest
    held, what = stalls.longest
    assert held < 0.1, what


def test_a_stopped_postgresql_holds_up_nobody_and_loses_nothing(tmp_path: Path) -> None:
    """STO-03: the database server is stopped while batches come, and started again later;
    the control plane itself is killed and waits for the store at its next start, too."""
    server = Server(durable=True).start()
    try:
        with server.database() as url:
            control_plane = ControlPlane(tmp_path, store={"url": url}).start()
            try:
                following = pour(control_plane, 1, 5)
                until(lambda: counted(control_plane, url)[0] == 10, "the first requests")
                with Fleet(control_plane) as fleet:
                    until(lambda: fleet.rounds > 5, "a fleet")
                    server.stop()
                    following = pour(control_plane, following, 40)
                    until(lambda: "what is spooled waits" in control_plane.log(), "the store is missed", timeout=20)
                    following = pour(control_plane, following, 20)
                    rounds = fleet.rounds
                    until(lambda: fleet.rounds > rounds + 20, "heartbeats without a store")
                    server.start()
                    until(lambda: spooled(control_plane) == 0, "an empty spool", timeout=40)
                assert counted(control_plane, url) == (2 * (following - 1),) * 2
                assert max(fleet.slowest.values()) < 2.0, fleet.slowest
                server.stop()
                following = pour(control_plane, following, 10)
                control_plane.stop(signal.SIGKILL)
                server.start()
                control_plane.start()
                until(lambda: spooled(control_plane) == 0, "an empty spool", timeout=40)
                assert counted(control_plane, url) == (2 * (following - 1),) * 2
            finally:
                control_plane.stop(signal.SIGKILL)
    finally:
        server.close()


def test_a_spool_without_room_is_told_and_recovers(tmp_path: Path) -> None:
    """STO-03: 503 with Retry-After and words; the same batch is taken once there is room."""
    control_plane = ControlPlane(tmp_path, usage={"spool_bytes": 1024 * 1024}).start()
    try:
        until((control_plane.state / "llmgw.db").exists, "a store")
        lock = sqlite3.connect(control_plane.state / "llmgw.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        sequence, answer = 0, None
        while answer is None or answer.status_code == 204:
            sequence += 1
            answer = post(control_plane, batch(sequence, records=1000))
            assert sequence < 50
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
        assert answer.json()["code"] == "busy" and "send it again" in answer.json()["message"]
        lock.execute("ROLLBACK")
        lock.close()
        until(lambda: post(control_plane, batch(sequence, records=1000)).status_code == 204, "room", timeout=40)
        until(lambda: counted(control_plane)[0] == 1000 * sequence, "all of it", timeout=40)
    finally:
        control_plane.stop()


def test_events_reach_the_store_when_it_returns(tmp_path: Path) -> None:
    """STO-03: what is decided while the store is away is in the journal, and in the store
    afterwards, each once, also over a kill -9."""
    control_plane = ControlPlane(tmp_path).start()

    def kept() -> list[str]:
        connection = sqlite3.connect(control_plane.state / "llmgw.db")
        try:
            return [row[0] for row in connection.execute("SELECT id FROM events ORDER BY at, id")]
        finally:
            connection.close()

    def journal() -> list[str]:
        import json

        return [json.loads(line)["id"] for line in (control_plane.state / "decisions.jsonl").read_text().splitlines()]

    try:
        agent = control_plane.agent().upgrade().hello()
        agent.expect(Welcome)
        agent.register()
        until(lambda: len(kept()) >= 2 and kept() == journal(), "the first events")
        before = len(journal())
        lock = sqlite3.connect(control_plane.state / "llmgw.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        agent.close()
        until(lambda: len(journal()) > before, "an event without a store")
        control_plane.stop(signal.SIGKILL)
        lock.execute("ROLLBACK")
        lock.close()
        control_plane.start()
        until(lambda: len(kept()) > before and kept() == journal(), "what was missed")
        assert len(set(journal())) == len(journal())
        (control_plane.state / "decisions.jsonl.stored").unlink()
        control_plane.stop()
        control_plane.start()
        until((control_plane.state / "decisions.jsonl.stored").exists, "everything again")
        assert kept() == journal()[: len(kept())]
    finally:
        control_plane.stop()
