"""Backups, restores and moves: everything arrives, in either kind of database, or nothing changes."""

import gzip
import io
import json
import os
import sqlite3
import stat
import tarfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine, text

from controlplane.leadership.lease import Answered, Claim, Extended, Holder, Lease, Lost, Row, Won
from controlplane.store import move as moving
from controlplane.store import schema
from controlplane.store.backup import DATABASE, MANIFEST, BadArchive, back_up, read_manifest, unpacked, upgraded
from controlplane.store.check import look
from controlplane.store.database import Database
from controlplane.store.errors import StoreError
from controlplane.store.move import Mismatch, copy, reading, sums, writing
from controlplane.store.postgresql import Postgresql
from controlplane.store.restore import EPOCHS_SPARED, held_back, replace
from controlplane.store.scratch import PREFIX, scratch
from controlplane.store.sqlite import Sqlite
from controlplane.store.values import AuditEntry
from llmgw.runtime.clock import ManualClock, SystemClock
from tests.unit.controlplane.operations.filled import filled, seen
from tests.unit.controlplane.store.places import Place, count_batch, postgresql_place, sqlite_place, take_epoch

KINDS = ("sqlite", "postgresql")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store with the newest schema and nothing in it, of either kind."""
    if request.param == "sqlite":
        with sqlite_place(tmp_path, request.getfixturevalue("sqlite_template")) as made:
            yield made
    else:
        server, url = request.getfixturevalue("postgresql_server"), request.getfixturevalue("postgresql_empty")()
        with postgresql_place(server, url) as made:
            yield made


@pytest.fixture(params=KINDS)
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[object]:
    """A second, bare database: a backend."""
    if request.param == "sqlite":
        yield Sqlite(tmp_path / "other.db")
    else:
        with request.getfixturevalue("postgresql_server").database() as url:
            yield Postgresql(url)


def moved(source, target) -> dict[str, moving.Sum]:
    Database(target).open().close()
    with reading(source) as reader, writing(target) as writer:
        return copy(reader, writer)


def test_everything_moves_between_any_two_kinds(place: Place, other) -> None:
    """STO-02: each table, each column, secrets too; sums agree, whatever the kind; the
    source is as it was, and numbers that are given out go on."""
    source = place.backend()
    filled(source)
    before = seen(source)
    with reading(source) as connection:
        expected = sums(connection)
    assert moved(source, other) == expected
    assert seen(other) == before == seen(source)
    assert [row.value for row in before["secret"]] == [bytes(range(256)), bytes(256)]
    database = Database(other).open()
    database.transact(lambda tx: tx.audit.add(AuditEntry(1.0, "a", "a", "", "x", "key", "k")))
    new, old = (entry.id for entry in database.transact(lambda tx: tx.audit.page(10)).items)
    assert new == old + 1
    assert database.transact(take_epoch) == 43
    assert not database.transact(lambda tx: count_batch(tx, "router-1", "boot", 7, (), log=True)), "still counted once"
    assert database.transact(lambda tx: count_batch(tx, "router-1", "boot", 6, (), log=True)), (
        "and so is what comes late"
    )
    database.close()


def test_a_difference_is_noticed_and_nothing_is_kept(place: Place, other, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-02: verified before the commit: a row that did not arrive as it was sent undoes it all."""
    filled(place.backend())
    Database(other).open().close()
    add = moving._Adding.add
    spoilt = []

    def spoil(self, batch):
        add(self, batch)
        if "digest" in batch[0] and not spoilt:
            batch[0]["digest"] = "f" * 64
            spoilt.append(1)

    monkeypatch.setattr(moving._Adding, "add", spoil)
    with (
        pytest.raises(Mismatch, match="the checksum differs"),
        reading(place.backend()) as reader,
        writing(other) as writer,
    ):
        copy(reader, writer)
    with reading(other) as connection:
        assert moving.empty(connection)


def test_sums_see_every_change_and_no_order(place: Place) -> None:
    """STO-02: a checksum that would overlook a changed value, or depend on the order, proves nothing."""
    filled(place.backend())
    with reading(place.backend()) as connection:
        before = sums(connection)
    for statement, table in (
        ("UPDATE api_keys SET name = 'x' WHERE id = 'key-1'", "api_keys"),
        ("UPDATE api_keys SET expires_at = NULL WHERE id = 'key-1'", "api_keys"),
        ("DELETE FROM events WHERE id = 'e-2'", "events"),
        ("UPDATE requests SET duration = 0.3333 WHERE id = 'req-1'", "requests"),
    ):
        with writing(place.backend()) as connection:
            connection.execute(text(statement))
        with reading(place.backend()) as connection:
            after = sums(connection)
        assert after[table] != before[table], statement
        assert {name for name in after if after[name] != before[name]} == {table}
        before = after
    with writing(place.backend()) as connection:
        rows = connection.execute(text("SELECT name, created_at, created_by, version FROM users ORDER BY name")).all()
        connection.execute(text("CREATE TEMPORARY TABLE held AS SELECT * FROM grants"))
        connection.execute(text("DELETE FROM grants"))
        connection.execute(text("INSERT INTO grants SELECT * FROM held ORDER BY role DESC, scope DESC"))
    assert rows
    with reading(place.backend()) as connection:
        assert sums(connection) == before


# ---------------------------------------------------------------- backups


def test_a_backup_brings_everything_back_into_either_kind(place: Place, other, tmp_path: Path) -> None:
    """STO-02, AGT-04: round trip over kinds; the epoch is above the backup's and the replaced store's."""
    filled(place.backend())
    made = back_up(place.backend(), tmp_path / "b.backup", SystemClock())
    assert stat.S_IMODE(made.file.stat().st_mode) == 0o600
    before = seen(place.backend())
    later = Database(other).open()
    later.transact(lambda tx: take_epoch(tx, 9000))
    later.close()
    with unpacked(made.file, tmp_path / "u") as (manifest, content):
        assert manifest.schema == schema.head() and manifest.sums()["api_keys"].rows == 2
        epoch = replace(other, upgraded(content))
    assert epoch == 9001 + EPOCHS_SPARED
    assert seen(other) == before
    database = Database(other).open()
    assert database.transact(take_epoch) == epoch + 1
    database.close()
    assert not (tmp_path / "u").exists()
    if isinstance(other, Sqlite):
        assert stat.S_IMODE(other.file.stat().st_mode) == 0o600


def test_an_epoch_that_no_leader_wrote_does_not_outlive_a_restore(other, archive: Path, tmp_path: Path) -> None:
    """AGT-04, STO-02: as somebody's hand put it into the store that is replaced: nothing could follow it."""
    store = Database(other).open()
    store.transact(take_epoch)
    store.close()
    with writing(other) as connection:
        connection.execute(text(f"UPDATE leadership SET epoch = {2**63 - 1}"))  # noqa: S608
    with unpacked(archive, tmp_path / "u") as (_, content):
        assert EPOCHS_SPARED <= replace(other, upgraded(content)) < 2 * EPOCHS_SPARED


def asks(lease: Lease, store: Database, now: float) -> list[object]:
    """What a control plane does that asks at ``now``: what it learns."""
    told, effects = [], lease.wake(now)
    while effects:
        effect = effects.pop(0)
        if isinstance(effect, Won | Extended | Lost):
            told.append(effect)
            continue
        row = store.transact(
            lambda tx, effect=effect: (
                tx.leadership.claim(lease.owner, effect, ttl=lease.ttl, holder=Holder(lease.owner))
                if isinstance(effect, Claim)
                else tx.leadership.read()
            )
        )
        effects += lease.handle(Answered(now, row), now)
    return told


@pytest.mark.parametrize("ttl", [30.0, 60.0])
def test_nobody_leads_a_restored_store_beside_one_that_is_sure(
    other, archive: Path, tmp_path: Path, ttl: float
) -> None:
    """HA-01, STO-02: a leader that nobody saw, cut off from the database while it was
    restored: whoever starts then waits until it is sure no more, by the length of its claim;
    and it lets go once it asks."""
    store = Database(other).open()
    leader = Lease("leader", 0.0, ttl=ttl)
    assert asks(leader, store, 0.0) == [Won(1, ttl - 5.0)]
    assert asks(leader, store, 5.0) == [Extended(1, ttl)]
    store.close()
    with unpacked(archive, tmp_path / "u") as (_, content):
        epoch = replace(other, upgraded(content))
    store = Database(other).open()
    row = store.transact(lambda tx: tx.leadership.read())
    assert (
        row is not None and len(row.owner) == 32 and row == held_back(row.owner, Row("", 0, epoch - EPOCHS_SPARED, ttl))
    )
    newcomer, late = Lease("newcomer", 6.0), Lease("late", 20.0)
    for second in range(6, int(6 + ttl)):
        assert not asks(newcomer, store, float(second)) and not asks(late, store, float(second)), second
    assert not leader.sure(6 + ttl)
    assert asks(newcomer, store, 6 + ttl) == [Won(epoch + 1, 6 + ttl + 25.0)]
    assert asks(leader, store, 7 + ttl) == [Lost("the lease is newcomer's")]
    store.close()


def test_a_leader_that_nobody_saw_lets_go_of_a_restored_store(other, archive: Path, tmp_path: Path) -> None:
    """HA-01: also while it is sure: what it knows is not what the store holds."""
    store = Database(other).open()
    leader = Lease("leader", 0.0)
    assert asks(leader, store, 0.0) == [Won(1, 25.0)]
    store.close()
    with unpacked(archive, tmp_path / "u") as (_, content):
        replace(other, upgraded(content))
    store = Database(other).open()
    (lost,) = asks(leader, store, 5.0)
    assert isinstance(lost, Lost) and not leader.leading
    store.close()


def test_a_backup_is_of_one_moment_while_others_write(place: Place, tmp_path: Path) -> None:
    """STO-02: online: changes made meanwhile are in it whole or not at all, and none is held up."""
    filled(place.backend())
    store = Database(place.backend()).open()
    stop = threading.Event()
    written = []

    def write() -> None:
        mine = Database(place.backend(**({"busy_timeout": 10} if place.kind == "sqlite" else {}))).open()
        while not stop.is_set():
            number = len(written)

            def both(tx, number=number) -> None:
                tx.audit.add(AuditEntry(float(number), "a", "a", "", "both", "key", str(number)))
                tx.settings.put(_setting(number))

            mine.transact(both)
            written.append(number)
        mine.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(3):
            made = back_up(place.backend(), tmp_path / f"{number}.backup", SystemClock())
            with unpacked(made.file, tmp_path / "u") as (_, content):
                copied = Database(content).open()
                audit = [entry.target for entry in copied.transact(lambda tx: tx.audit.page(100_000)).items]
                value = {row.name: row.value for row in copied.transact(lambda tx: tx.settings.all())}.get("both")
                copied.close()
            assert (value is None and audit == ["key-1"]) or audit[0] == str(value), (audit[:2], value)
    finally:
        stop.set()
        thread.join()
        store.close()
    assert len(written) > 10


def _setting(value: int):
    from controlplane.store.values import StoredSetting

    return StoredSetting("both", value, 1.0, "a")


def test_a_backup_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """STO-02: no half backup lies about under the name of a whole one."""
    store = Sqlite(tmp_path / "s.db")
    with pytest.raises(StoreError, match="there is no store yet"):
        back_up(store, tmp_path / "b", SystemClock())
    filled(store)
    with pytest.raises(StoreError, match=r"nowhere.*No such file"):
        back_up(store, tmp_path / "nowhere" / "b", SystemClock())
    (tmp_path / "b").write_text("mine")
    with pytest.raises(StoreError, match="exists already"):
        back_up(store, tmp_path / "b", SystemClock())
    assert (tmp_path / "b").read_text() == "mine"
    (tmp_path / "s.db").write_bytes(b"rubbish" * 1000)
    with pytest.raises(StoreError, match=r"s\.db"):
        back_up(store, tmp_path / "c", SystemClock())
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.startswith("s.db")) == ["b"]


def test_what_a_killed_backup_left_goes_with_the_next(tmp_path: Path) -> None:
    """STO-02, SEC-03: copies of secrets do not lie about; those of a process at work stay."""
    store = Sqlite(tmp_path / "s.db")
    filled(store)
    with scratch(tmp_path) as mine:
        (mine / "store.db").write_text("half")
        killed = tmp_path / f"{PREFIX}killed"
        killed.mkdir(mode=0o700)
        (killed / "store.db").write_text("secrets")
        back_up(store, tmp_path / "b", SystemClock())
        assert not killed.exists()
        assert (mine / "store.db").read_text() == "half"
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.startswith("s.db")) == ["b"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A backup of a filled store."""
    filled(Sqlite(tmp_path / "source.db"))
    return back_up(Sqlite(tmp_path / "source.db"), tmp_path / "good.backup", ManualClock()).file


def refused(file: Path, folder: Path) -> str:
    with pytest.raises(StoreError) as error, unpacked(file, folder):
        pass
    assert not folder.exists()
    assert str(file) in str(error.value)
    return str(error.value)


def test_a_damaged_backup_is_refused(archive: Path, tmp_path: Path) -> None:
    """STO-02: cut at any place, or a byte changed anywhere: an error in words, never a restore."""
    whole = archive.read_bytes()
    hurt = tmp_path / "hurt.backup"
    for part in (0, 1, 17, len(whole) // 4, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        hurt.write_bytes(whole[:part])
        assert "backup" in refused(hurt, tmp_path / "u")
    checksum = range(len(whole) - 8, len(whole) - 4)  # gzip's own, seen when all is read
    for place in (*range(30, len(whole), len(whole) // 40), *checksum):
        hurt.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        if _same(hurt, archive):
            continue  # a bit that means nothing
        assert "damaged" in refused(hurt, tmp_path / "u") or "no backup" in refused(hurt, tmp_path / "u")


def _same(one: Path, other: Path) -> bool:
    try:
        return gzip.decompress(one.read_bytes()) == gzip.decompress(other.read_bytes())
    except (OSError, EOFError, zlib.error):
        return False


def packed(file: Path, members: dict[str, bytes], kind: bytes = tarfile.REGTYPE, link: str = "") -> Path:
    with tarfile.open(file, "w:gz") as made:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data) if kind == tarfile.REGTYPE else 0
            member.type = kind
            member.linkname = link
            made.addfile(member, io.BytesIO(data))
    return file


def parts(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}  # type: ignore[union-attr]


def test_what_is_no_backup_is_refused(archive: Path, tmp_path: Path) -> None:
    """STO-02, SEC-04: foreign files, other archives, links and names that lead elsewhere, a
    database that is not the manifest's, a manifest that lies, one of a later format."""
    foreign = tmp_path / "foreign"
    good = parts(archive)
    assert list(good) == [MANIFEST, DATABASE]
    for data in (b"", b"hello", os.urandom(5000), b"SQLite format 3\0" + b"\0" * 5000, gzip.compress(b"hello")):
        foreign.write_bytes(data)
        assert "no backup" in refused(foreign, tmp_path / "u")
    for members in (
        {"etc/passwd": b"x"},
        {"../../evil": good[MANIFEST], DATABASE: good[DATABASE]},
        {MANIFEST: b"{}"},
        {MANIFEST: b"[" * 100_000},
        {MANIFEST: b" " * 2_000_000},
        {MANIFEST: good[MANIFEST]},
        {MANIFEST: good[MANIFEST], "other.db": good[DATABASE]},
        {MANIFEST: good[MANIFEST], DATABASE: good[DATABASE][:-4096]},
        {MANIFEST: good[MANIFEST], DATABASE: good[DATABASE][:-1] + b"x"},
        {DATABASE: good[DATABASE], MANIFEST: good[MANIFEST]},
    ):
        refused(packed(foreign, members), tmp_path / "u")
    refused(packed(foreign, {MANIFEST: b""}, tarfile.SYMTYPE, "/etc/passwd"), tmp_path / "u")
    manifest = json.loads(good[MANIFEST])
    lies = {**manifest, "tables": {**manifest["tables"], "api_keys": [3, manifest["tables"]["api_keys"][1]]}}
    words = refused(packed(foreign, {MANIFEST: json.dumps(lies).encode(), DATABASE: good[DATABASE]}), tmp_path / "u")
    assert "api_keys: 3 rows were expected, 2 found" in words
    newer = json.dumps({**manifest, "format": 2, "llmgw": "7.0"}).encode()
    assert "restore it with llmgw 7.0" in refused(packed(foreign, {MANIFEST: newer}), tmp_path / "u")
    with pytest.raises(BadArchive):
        read_manifest(foreign)
    os.mkfifo(tmp_path / "pipe")
    assert "regular file" in refused(tmp_path / "pipe", tmp_path / "u")


def older(file: Path) -> None:
    """A store as the first release wrote it."""
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        command.upgrade(schema.configuration(connection), "0001")
        connection.execute(
            text(
                "INSERT INTO api_keys (id, name, shown, digest, created_at, created_by)"
                " VALUES ('key-9', 'old', 'sk', 'd', 1.5, 'ada')"
            )
        )
        connection.execute(text("INSERT INTO leadership (id, epoch) VALUES (1, 7)"))
        connection.execute(text("INSERT INTO node_intents (node_id) VALUES ('n')"))
    engine.dispose()


def test_a_backup_of_an_older_schema_is_upgraded(other, tmp_path: Path) -> None:
    """STO-02: what an older release backed up is restored into this one's store."""
    older(tmp_path / "old.db")
    made = back_up(Sqlite(tmp_path / "old.db"), tmp_path / "old.backup", SystemClock())
    assert made.manifest.schema == "0001" and made.manifest.sums()["api_keys"].rows == 1
    with unpacked(made.file, tmp_path / "u") as (_, content):
        assert replace(other, upgraded(content)) == 7 + EPOCHS_SPARED
    database = Database(other).open()
    (key,) = database.transact(lambda tx: tx.keys.all())
    database.close()
    assert (key.id, key.name, key.models, key.created_at) == ("key-9", "old", None, 1.5)


def test_a_postgresql_store_of_an_older_schema_is_backed_up_as_it_is(postgresql_server, tmp_path: Path) -> None:
    """STO-01: what is made before an upgrade of the schema: absent values stay absent."""
    with postgresql_server.database() as url:
        backend = Postgresql(url)
        with writing(backend) as connection:
            command.upgrade(schema.configuration(connection), "0001")
            connection.execute(
                text(
                    "INSERT INTO api_keys (id, name, shown, digest, created_at, created_by)"
                    " VALUES ('key-9', 'old', 'sk', 'd', 1.5, 'ada')"
                )
            )
            connection.execute(
                text("INSERT INTO secrets (name, value, created_at) VALUES ('engine', :value, 1)"), {"value": b"\0\xff"}
            )
        made = back_up(backend, tmp_path / "old.backup", SystemClock())
    assert made.manifest.schema == "0001"
    with unpacked(made.file, tmp_path / "u") as (_, content):
        connection = sqlite3.connect(content.file)
        assert connection.execute("SELECT id, models, expires_at FROM api_keys").fetchall() == [("key-9", None, None)]
        assert connection.execute("SELECT value FROM secrets").fetchone() == (b"\0\xff",)
        connection.close()


def test_a_backup_of_a_newer_schema_is_refused(archive: Path, tmp_path: Path) -> None:
    """STO-02: an older program does not touch what a newer one wrote."""
    good = parts(archive)
    database = tmp_path / "newer.db"
    database.write_bytes(good[DATABASE])
    connection = sqlite3.connect(database)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=r"9999\) is newer than this program's"):
        upgraded(Sqlite(database))


def test_a_store_that_cannot_be_replaced_stays_as_it_was(
    place: Place, archive: Path, tmp_path: Path, monkeypatch
) -> None:
    """STO-02: a failure in the middle of a restore changes nothing."""
    filled(place.backend())
    database = Database(place.backend()).open()
    database.transact(lambda tx: tx.scopes.put(_scope()))
    database.close()
    before = seen(place.backend())
    with reading(place.backend()) as connection:
        all_before = sums(connection)

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    if place.kind == "sqlite":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr("controlplane.store.restore._hold_back", fail)
    with unpacked(archive, tmp_path / "u") as (_, content), pytest.raises((StoreError, OSError)):
        replace(place.backend(), content)
    monkeypatch.undo()
    with reading(place.backend()) as connection:
        assert sums(connection) == all_before
    assert seen(place.backend()) == before


def _scope():
    from controlplane.store.values import Scope

    return Scope("mine", "mine", 1.0, "a")


# ---------------------------------------------------------------- check


def test_a_look_tells_what_there_is_and_changes_nothing(place: Place, tmp_path: Path) -> None:
    """CLI-04: schema, size, rows, epoch, what waits; while somebody else writes, too."""
    filled(place.backend())
    with reading(place.backend()) as connection:
        before = sums(connection)
    found = look(place.backend(), tmp_path / "spool")
    assert found.faults == [] and found.schema == found.newest_schema == schema.head()
    assert found.rows["api_keys"] == 2 and found.rows["requests"] == 2 and found.epoch == 42
    assert found.bytes is not None and found.bytes > 10_000 and found.spooled == 0
    with reading(place.backend()) as connection:
        assert sums(connection) == before


def test_a_look_finds_what_is_wrong(tmp_path: Path, postgresql_server) -> None:
    """CLI-04: each fault in words, with what to do."""
    store = Sqlite(tmp_path / "s.db")
    (fault,) = look(store, tmp_path / "spool").faults
    assert "no store yet" in fault and not (tmp_path / "s.db").exists(), "a look makes nothing"
    filled(store)
    connection = sqlite3.connect(store.file)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("INSERT INTO grants (user_name, role, scope) VALUES ('nobody', 'admin', '')")
    connection.commit()
    connection.close()
    (fault,) = look(store, tmp_path / "spool").faults
    assert "grants: 1 rows refer to rows of users that are not there" in fault
    connection = sqlite3.connect(store.file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("DROP TABLE holds")
    connection.close()
    assert "tables are missing (holds)" in look(store, tmp_path / "spool").faults[0]
    data = bytearray(store.file.read_bytes())
    for place in range(4096, len(data), 4096):
        data[place : place + 100] = b"\xff" * 100
    store.file.write_bytes(bytes(data))
    assert any("damaged" in fault or "malformed" in fault for fault in look(store, tmp_path / "spool").faults)
    gone = Postgresql(postgresql_server.url("no_such_database"))
    assert (
        "does not exist" in look(gone, tmp_path / "spool").faults[0]
        or "knows no such" in look(gone, tmp_path).faults[0]
    )
    with postgresql_server.database() as url:
        assert "no tables of llmgw" in look(Postgresql(url), tmp_path / "spool").faults[0]
