"""What was acknowledged is there after a kill of the writer, or of the database (STO-01)."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from controlplane.store.access import StoreThreads
from controlplane.store.database import Database
from controlplane.store.errors import StoreUnavailable
from controlplane.store.opening import backend_of, threads
from controlplane.store.values import ApiKey
from tests.fakes.postgresql import Server

ROUNDS = int(os.environ.get("LLMGW_KILLS", "4"))

CHILD = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
from controlplane.store.opening import backend_of, threads
from controlplane.store.values import ApiKey, AuditEntry
name, url = sys.argv[1:]
store = threads(backend_of(url, None, None), 30.0).start()
def write(writer):
    for number in range(1_000_000):
        key = f"{name}-{writer}-{number}"
        def work(tx):
            tx.keys.add(ApiKey(key, "n", "s", f"{key:0>64}", 1.0, "t"))
            tx.audit.add(AuditEntry(1.0, "a", "a", "t", "o", "key", key))
        store.write(work)
        sys.stdout.write(key + "\\n")
        sys.stdout.flush()
gevent.joinall([gevent.spawn(write, writer) for writer in range(8)], raise_error=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose commits last."""
    made = Server(durable=True).start()
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database that outlives its writers."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/llmgw.db"
    else:
        with request.getfixturevalue("server").database() as made:
            yield made


def kept(url: str) -> tuple[set[str], set[str]]:
    """The keys in the store, and those that the audit tells of."""
    database = Database(backend_of(url, None, Path("/nowhere"))).open()
    keys = database.transact(lambda tx: {key.id for key in tx.keys.all()})
    told = database.transact(lambda tx: {entry.target for entry in tx.audit.page(1_000_000).items})
    database.close()
    return keys, told


def test_what_was_acknowledged_outlives_the_writer(url: str) -> None:
    """SIGKILL at random moments, again and again: nothing acknowledged is missing, and no change
    without its audit entry is there."""
    chance = random.Random(1)
    acknowledged: set[str] = set()
    for number in range(ROUNDS):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, f"round{number}", url], stdout=subprocess.PIPE, text=True
        )
        acknowledged.add(child.stdout.readline().strip())
        time.sleep(chance.uniform(0.0, 0.4))
        child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().splitlines(keepends=True)
        child.wait()
        child.stdout.close()
        acknowledged |= {line.strip() for line in lines if line.endswith("\n")}
        keys, told = kept(url)
        assert acknowledged <= keys
        assert keys == told
        assert len(keys) - len(acknowledged) <= (number + 1) * 8, "at most what was not answered yet"
    assert len(acknowledged) > ROUNDS
    print(f"{ROUNDS} kills, {len(acknowledged)} acknowledged, all found of {len(keys)}")  # noqa: T201 - with -s


def test_what_was_acknowledged_outlives_the_server(server: Server) -> None:
    """SIGKILL of every process of the server in the middle of writing; it recovers, and so do we."""
    with server.database() as url:
        store: StoreThreads = threads(backend_of(url, None, Path("/nowhere")), 5.0).start()
        acknowledged: list[str] = []

        def write() -> None:
            for number in range(1_000_000):
                key = ApiKey(f"key-{number}", "n", "s", f"{number:064x}", 1.0, "t")
                store.write(lambda tx, key=key: tx.keys.add(key))
                acknowledged.append(key.id)

        writing = gevent.spawn(write)
        with gevent.Timeout(30):
            while len(acknowledged) < 50:
                gevent.sleep(0.005)
        server.stop(signal.SIGKILL)
        with pytest.raises(StoreUnavailable):
            writing.get(timeout=10)
        server.start()
        found = store.read(lambda tx: {key.id for key in tx.keys.all()})
        assert set(acknowledged) <= found
        assert len(found) - len(acknowledged) in (0, 1), "no more than the one that was not answered"
        store.close()
