"""What can go wrong with a SQLite file (STO-01, STO-03)."""

import os
import random
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from controlplane.leadership.single import DatabaseLock, StateLock
from controlplane.store.access import StoreThreads
from controlplane.store.database import Database
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.queries import scan
from controlplane.store.sqlite import Sqlite
from controlplane.store.values import RequestEntry
from llmgw.runtime.faults import SettingsError
from tests.unit.controlplane.store.places import Place, count_batch, hub_is_free, take_epoch
from tests.unit.controlplane.store.test_identity import key
from tests.unit.controlplane.store.test_scans import entry as log_entry


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "llmgw.db"


def test_the_file_is_for_its_owner_only(place: Place, file: Path) -> None:
    """SEC-03: the store holds secrets; so do its WAL files."""
    file.chmod(0o644)
    place.open().transact(lambda tx: tx.keys.add(key(1)))
    names = {entry.name for entry in file.parent.iterdir()}
    assert "llmgw.db-wal" in names
    for entry in file.parent.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600, entry


def test_how_the_database_is_opened(place: Place) -> None:
    """STO-01: WAL, a full sync at each commit, a bounded WAL; a reader that cannot write."""
    names = ("journal_mode", "synchronous", "wal_autocheckpoint", "busy_timeout", "foreign_keys", "query_only")

    def pragmas(database: Database) -> list[object]:
        return [database._connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    assert pragmas(place.open()) == ["wal", 2, 1000, 300, 1, 0]
    assert pragmas(place.open(write=False))[5] == 1


def test_a_locked_database_is_an_error_in_words_and_never_holds_the_hub(place: Place, file: Path) -> None:
    """STO-03: another process holds the write lock: the hub goes on, readers too."""
    store = place.threads(busy_timeout=0.8)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with hub_is_free():
        with pytest.raises(StoreUnavailable, match="another process keeps it locked: nothing was changed"):
            store.write(lambda tx: tx.keys.add(key(1)))
        assert time.monotonic() - began >= 0.7, "it did wait for the lock"
        assert store.read(lambda tx: tx.keys.all()) == ()
    assert "locked" in store.failing
    other.execute("ROLLBACK")
    other.close()
    store.write(lambda tx: tx.keys.add(key(1)))
    assert (store.failures, store.failing) == (1, "")


def test_a_file_that_was_removed_or_replaced_takes_nothing(place: Place, file: Path, tmp_path: Path) -> None:
    """STO-01: a change that would not outlive the process is refused, not confirmed."""
    store = place.threads()
    epoch = store.write(take_epoch)
    file.rename(tmp_path / "aside")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            store.write(take_epoch)
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            store.read(lambda tx: tx.keys.all())
        file.touch()
    (tmp_path / "aside").replace(file)
    assert store.write(take_epoch) == epoch + 1


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"\0" * 8192], ids=["text", "zeros"])
def test_a_file_that_is_no_database_is_refused_in_words(file: Path, content: bytes) -> None:
    """STO-01: the file is named with a remedy, it is left as it is, no words of the driver are shown."""
    file.write_bytes(content)
    backend = Sqlite(file)
    with pytest.raises(StoreError, match=r"llmgw\.db: this file is no SQLite database: move it aside") as refused:
        StoreThreads(lambda: Database(backend), lambda: Database(backend, write=False)).start()
    assert "sqlite3" not in str(refused.value)
    assert file.read_bytes() == content


def test_a_damaged_database_is_refused_in_words(file: Path, sqlite_template: Path) -> None:
    """STO-01: pages that hold something else: told, with a remedy."""
    content = bytearray(sqlite_template.read_bytes())
    content[100:4096] = b"\xff" * 3996
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"llmgw\.db: the database is damaged: .*llmgw store restore"):
        Database(Sqlite(file)).open()


def test_a_database_that_gets_damaged_in_use_is_told(place: Place, file: Path) -> None:
    """STO-01: reads of what is broken fail in words; the process lives."""
    place.open().transact(lambda tx: [tx.keys.add(key(number, name="x" * 200)) for number in range(200)])
    place.close()
    content = bytearray(file.read_bytes())
    last = len(content) - 5 * 4096  # where those keys are
    content[last:] = b"\xff" * 5 * 4096
    file.write_bytes(content)
    store = place.threads()
    with pytest.raises(StoreUnavailable, match="damaged"):
        store.read(lambda tx: tx.keys.all())


@pytest.mark.parametrize("what", ["directory", "missing"])
def test_a_place_where_no_file_can_be_is_refused_in_words(tmp_path: Path, what: str) -> None:
    """STO-01: the path is named."""
    file = tmp_path / "store"
    if what == "directory":
        file.mkdir()
    else:
        file = file / "llmgw.db"
    with pytest.raises(StoreError, match=r"store.*cannot be opened"):
        Database(Sqlite(file)).open()


def test_a_second_control_plane_is_kept_out(file: Path) -> None:
    """HA-01: by the kernel, as long as the first lives; the holder is named."""
    lock = DatabaseLock(file)
    with pytest.raises(StoreError, match=rf"another control plane uses it \(process {os.getpid()}\): stop that one"):
        DatabaseLock(file)
    lock.release()
    DatabaseLock(file).release()


def test_a_state_directory_in_use_is_told_by_its_setting(tmp_path: Path) -> None:
    """HA-01: whatever names the store."""
    lock = StateLock(tmp_path)
    with pytest.raises(SettingsError) as refused:
        StateLock(tmp_path)
    (fault,) = refused.value.faults
    assert fault.path == "state_dir" and fault.message.startswith(f"{tmp_path}: another control plane uses it")
    lock.release()


def test_the_lock_of_a_store_whose_folder_is_missing_names_the_folder(tmp_path: Path) -> None:
    """STO-01: a folder, not a file that nobody asked for."""
    with pytest.raises(StoreError, match=f"^{tmp_path}/nodir: does not exist: make this folder first"):
        DatabaseLock(tmp_path / "nodir" / "x.db")


FULL = """
import resource, sys
from pathlib import Path
from controlplane.store.database import Database
from controlplane.store.errors import StoreUnavailable
from controlplane.store.values import ApiKey
from controlplane.store.sqlite import Sqlite
file = Path(sys.argv[1])
database = Database(Sqlite(file)).open()
kept = []
def add(number):
    key = ApiKey(f"key-{number}", "n" * 200, "s", f"{number:064x}", 1.0, "t")
    database.transact(lambda tx: tx.keys.add(key))
    kept.append(key.id)
add(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
refused = ""
for number in range(1, 3000):
    try:
        add(number)
    except StoreUnavailable as error:
        refused = str(error)
        break
assert refused, "the limit was never met"
assert len(database.transact(lambda tx: tx.keys.all())) == len(kept)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
add(9000)
assert {one.id for one in database.transact(lambda tx: tx.keys.all())} == set(kept)
print(refused)
"""


def test_a_full_disk_is_an_error_in_words_and_harms_nothing(tmp_path: Path) -> None:
    """STO-01: a write beyond what there is room for is undone; with room again, all goes on."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "llmgw.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "disk" in done.stdout and "full" in done.stdout


def test_a_full_file_system(tmp_path: Path) -> None:
    """STO-01: the same on a real small disk (needs to be root)."""
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        database = Database(Sqlite(disk / "llmgw.db")).open()
        database.transact(lambda tx: tx.keys.add(key(0)))
        ballast = disk / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(b"x" * 2**20)
        with pytest.raises(StoreUnavailable, match="full"):
            for number in range(1, 500):
                database.transact(lambda tx, number=number: tx.keys.add(key(number)))
        before = len(database.transact(lambda tx: tx.keys.all()))
        ballast.unlink()
        database.transact(lambda tx: tx.keys.add(key(900)))
        assert len(database.transact(lambda tx: tx.keys.all())) == before + 1
        database.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_report_that_nobody_waits_for_is_broken_off(place: Place) -> None:
    """STO-03: the reader is free again soon after its caller gave up."""
    store = place.threads()
    entries = [RequestEntry(float(n), f"r{n}", "k", "s", "m", 200, "r") for n in range(400)]
    store.write(lambda tx: count_batch(tx, "r", "b", 1, entries, log=True))

    def endless(tx: Transaction) -> None:
        sql = "SELECT count(*) FROM requests a, requests b, requests c, requests d"
        tx.usage._sql.connection.exec_driver_sql(sql)

    with pytest.raises(StoreUnavailable, match="did not answer"):
        store.read(endless, timeout=0.1)
    assert len(store.read(lambda tx: tx.usage.requests(500).items, timeout=3.0)) == 400


def test_a_log_that_somebody_removed_is_noticed(place: Place, file: Path) -> None:
    """STO-01: what is acknowledged without it would be lost in a crash; all that was is saved at the end."""
    store = place.threads()
    for number in range(3):
        store.write(lambda tx, n=number: tx.keys.add(key(n)))
    assert len(store.read(lambda tx: tx.keys.all())) == 3
    Path(f"{file}-wal").unlink()
    with pytest.raises(StoreUnavailable, match=r"-wal was removed while the store was in use.*restart"):
        store.write(lambda tx: tx.keys.add(key(9)))
    with pytest.raises(StoreUnavailable, match="-wal was removed"):
        store.read(lambda tx: tx.keys.all())
    store.close()
    again = place.threads()
    assert len(again.read(lambda tx: tx.keys.all())) == 3
    again.write(lambda tx: tx.keys.add(key(9)))


# ---------------------------------------------------------------- work


def steps(store: StoreThreads, **which: Any) -> int:
    """Steps of SQLite's virtual machine, in thousands, that a page takes."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    def read(tx: Any) -> None:
        tx.usage.requests(10, **which)  # what the statements are compiled to is known afterwards
        driver = tx.usage._sql.connection.connection.driver_connection
        driver.set_progress_handler(count, 1000)
        tx.usage.requests(10, **which)
        driver.set_progress_handler(None, 0)

    store.read(read)
    return counted


def test_a_page_takes_no_longer_in_a_longer_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: of a scope with no or few rows, and of filters that no index serves together:
    the reading connection is never held for the length of the log."""
    monkeypatch.setattr(scan, "MOST", 500)
    store = place.threads()
    chance = random.Random(1)
    asked = (
        {"scope": "none"},
        {"scope": "a"},
        {"scope": "quiet"},
        {"model": "m1", "failed": True, "replica": "none"},
        {"scope": "a", "model": "none"},
        {"replica": "none"},
        {"failed": False, "replica": "none"},
    )
    taken = []
    for batch in range(2):
        entries = [log_entry(number, chance) for number in range(batch * 10_000, (batch + 1) * 10_000)]
        entries.append(RequestEntry(1.0, f"q{batch}", "k", "quiet", "m1", 200, "r"))
        store.write(lambda tx, b=batch, e=entries: count_batch(tx, "r", "b", b + 1, e, log=True), 30)
        taken.append([steps(store, **which) for which in asked])
    assert max(taken[1]) < 60, taken  # 20,000 rows would be some hundreds
    assert all(later <= 2 * first + 3 for first, later in zip(*taken, strict=True)), taken
