"""The store and its writer thread, through a real SQLite file."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import gevent
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect

from controlplane.events import Cordon
from controlplane.store.port import ApiKey, StoreError, StoreUnavailable
from controlplane.store.schema import configuration, head
from controlplane.store.sqlite import SqliteStore
from controlplane.store.tables import metadata
from controlplane.store.writer import CAPACITY, StoreWriter
from llmgw.runtime.stall import StallDetector


def key(number: int, **more: object) -> ApiKey:
    fields = {"name": f"key {number}", "shown": "sk-llmgw-abc", "created_at": float(number), "created_by": "test"}
    return ApiKey(id=f"key-{number}", digest=f"{number:064x}", **{**fields, **more})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "llmgw.db"


@pytest.fixture
def writer(file: Path):
    started = StoreWriter(lambda: SqliteStore(file, busy_timeout=0.3), timeout=2.0).start()
    yield started
    started.close()


def test_everything_written_is_read_back_by_the_next_process(file: Path) -> None:
    """STO-01: keys, secrets, cordons and the epoch outlive the program."""
    store = SqliteStore(file)
    store.add_key(key(1, models=("a", "b"), expires_at=9.5))
    store.add_key(key(2))
    assert store.secret("engine", b"first", 1.0) == b"first"
    store.set_cordon("node-1", Cordon("disk", "ada", "2026-01-01T00:00:00Z"))
    store.set_cordon("node-2", Cordon("", "ada", "2026-01-01T00:00:00Z"))
    store.set_cordon("node-2", None)
    revoked = store.revoke_key("key-2", 7.0, "ada")
    assert revoked is not None and revoked.revoked_at == 7.0
    assert store.take_epoch() == 1
    store.close()

    again = SqliteStore(file)
    assert [k.id for k in again.api_keys()] == ["key-1", "key-2"]
    assert again.api_keys()[0] == key(1, models=("a", "b"), expires_at=9.5)
    assert again.api_keys()[1].models is None
    assert again.revoke_key("key-2", 8.0, "eve") == revoked, "revoking twice changes nothing"
    assert again.revoke_key("nobody", 8.0, "eve") is None
    assert again.secret("engine", b"second", 2.0) == b"first"
    assert again.cordons() == {"node-1": Cordon("disk", "ada", "2026-01-01T00:00:00Z")}
    assert again.take_epoch() == 2
    assert again.take_epoch(floor=40) == 41
    again.close()


def test_the_file_is_for_its_owner_only(file: Path) -> None:
    """SEC-03: the store holds secrets; so do its WAL files."""
    store = SqliteStore(file)
    store.add_key(key(1))
    for entry in file.parent.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600, entry
    store.close()


def test_how_the_database_is_opened(file: Path) -> None:
    """STO-01: WAL, a full sync at each commit, a bounded WAL."""
    store = SqliteStore(file)
    read = {
        name: store._connection.exec_driver_sql(f"PRAGMA {name}").scalar()
        for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "busy_timeout")
    }
    assert read == {"journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 1000, "busy_timeout": 2000}
    store.close()


def test_fifty_concurrent_writers_lose_nothing(writer: StoreWriter) -> None:
    """STO-01: greenlets share one writer thread; every acknowledged row is there."""
    jobs = [gevent.spawn(lambda n=n: writer.call(lambda store: store.add_key(key(n)))) for n in range(50)]
    gevent.joinall(jobs, raise_error=True)
    assert len(writer.call(lambda store: store.api_keys())) == 50
    assert writer.waiting == 0


def test_an_error_of_a_call_reaches_its_caller_only(writer: StoreWriter) -> None:
    """STO-03: a failing call leaves the thread alive."""
    with pytest.raises(ZeroDivisionError):
        writer.call(lambda store: 1 // 0)
    assert writer.call(lambda store: store.api_keys()) == ()


def test_a_locked_database_is_an_error_in_words_and_never_holds_the_hub(writer: StoreWriter, file: Path) -> None:
    """STO-03: another process holds the write lock; the hub goes on."""
    detector = StallDetector(threshold=0.1).start()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="locked"):
        writer.call(lambda store: store.add_key(key(1)))
    assert time.monotonic() - began >= 0.25, "it did wait for the lock"
    other.execute("ROLLBACK")
    other.close()
    writer.call(lambda store: store.add_key(key(1)))
    detector.stop()
    assert detector.longest == 0.0
    assert writer.failures == 1


def test_a_slow_database_rolls_back_what_nobody_waits_for(writer: StoreWriter) -> None:
    """STO-03: "nothing was changed" is true after a time-out."""
    detector = StallDetector(threshold=0.1).start()
    native_sleep = time.sleep

    def slow(store: SqliteStore) -> None:
        native_sleep(0.4)
        store.add_key(key(1))

    refusals = []

    def give_up(work, timeout: float) -> None:
        with pytest.raises(StoreUnavailable) as refused:
            writer.call(work, timeout)
        refusals.append(str(refused.value))

    calls = [gevent.spawn(give_up, slow, 0.2), gevent.spawn(give_up, lambda store: store.add_key(key(2)), 0.1)]
    gevent.joinall(calls, raise_error=True)
    assert len(refusals) == 2 and all("nothing was changed" in words for words in refusals)
    assert writer.call(lambda store: store.api_keys()) == ()
    detector.stop()
    assert detector.longest == 0.0


def test_a_commit_that_began_is_waited_for(writer: StoreWriter) -> None:
    """STO-03: past the point of no return the caller learns the outcome."""

    def slow_commit(store: SqliteStore) -> None:
        gate = store.before_commit

        def late() -> None:
            gate()
            time.sleep(0.3)

        store.before_commit = late
        store.add_key(key(1))

    writer.call(slow_commit, timeout=0.1)
    assert [k.id for k in writer.call(lambda store: store.api_keys())] == ["key-1"]


def test_waiting_calls_are_bounded(writer: StoreWriter) -> None:
    """STO-03: a dead store does not gather callers without end."""
    writer._waiting = CAPACITY
    with pytest.raises(StoreUnavailable, match="wait for the store already"):
        writer.call(lambda store: store.api_keys())
    writer._waiting = 0


CHILD = """
import sys
from pathlib import Path
from controlplane.store.port import ApiKey
from controlplane.store.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
for number in range(100000):
    store.add_key(ApiKey(f"key-{number}", name="n", shown="s", digest=f"{number:064x}", created_at=1.0, created_by="t"))
    sys.stdout.write(f"key-{number}\\n")
    sys.stdout.flush()
"""


def test_what_was_acknowledged_survives_a_kill(file: Path) -> None:
    """STO-01: kill -9 in the middle of writing loses no acknowledged row."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(file)], stdout=subprocess.PIPE, text=True)
    acknowledged = [child.stdout.readline().strip() for _ in range(40)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += child.stdout.read().split()
    child.wait()
    child.stdout.close()
    store = SqliteStore(file)
    kept = {k.id for k in store.api_keys()}
    store.close()
    assert len(acknowledged) >= 40
    assert set(acknowledged) <= kept


# ---------------------------------------------------------------- schema


def test_each_step_of_the_schema_walks_up_and_down(file: Path) -> None:
    """STO-01: every migration is reversible, and the last equals what the queries expect."""
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        config = configuration(connection)
        command.upgrade(config, "head")
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        command.downgrade(config, "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}
        command.upgrade(config, "head")
        assert set(metadata.tables) <= set(inspect(connection).get_table_names())


def test_a_schema_of_the_future_is_refused(file: Path) -> None:
    """STO-01: a store that a newer program wrote is not touched."""
    SqliteStore(file).close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match=rf"schema \(9999\) is newer than this program's \({head()}\)"):
        SqliteStore(file)


def test_a_file_that_is_no_database_is_an_error_in_words(file: Path) -> None:
    """STO-01: the file is named, and no traceback of the driver is shown."""
    file.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match=r"llmgw\.db: file is not a database"):
        StoreWriter(lambda: SqliteStore(file)).start()


def test_migrations_import_nothing_of_ours() -> None:
    """STO-01: a migration means the same whatever the code has become."""
    for module in Path("migrations").rglob("*.py"):
        text = module.read_text()
        assert not any(f"{word} {part}" in text for word in ("import", "from") for part in ("controlplane", "llmgw"))
