"""What can go wrong with a PostgreSQL server (STO-01, STO-03)."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from controlplane.leadership.lease import Claim, Holder
from controlplane.store import access, database, postgresql
from controlplane.store.access import StoreThreads
from controlplane.store.database import Database
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.opening import backend_of
from controlplane.store.port import Transaction
from controlplane.store.postgresql import Postgresql
from controlplane.store.values import Scope
from tests.fakes.postgresql import Server
from tests.unit.controlplane.store.places import Place, hub_is_free, postgresql_place, take_epoch
from tests.unit.controlplane.store.test_identity import key

PASSWORD = "s3cret-Passw0rd"


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that tests stop and start."""
    server = Server().start()
    yield server
    server.close()


@pytest.fixture
def own(own_server: Server) -> Iterator[Place]:
    """A database on it."""
    with own_server.database() as url, postgresql_place(own_server, url) as made:
        yield made
        if own_server._process is None:
            own_server.start()


def scope(path: str) -> Scope:
    return Scope(path, "", 1.0, "ada")


def opening(place_or_url: Place | str, **more: object) -> Database:
    backend = Postgresql(place_or_url, **more) if isinstance(place_or_url, str) else place_or_url.backend(**more)
    return Database(backend).open()


# ---------------------------------------------------------------- how it is opened


def test_how_connections_are_made(place: Place) -> None:
    """STO-03: what a connection may take, and that changes at once cannot spoil each other."""
    names = ("transaction_isolation", "transaction_read_only", "statement_timeout", "lock_timeout", "client_encoding")

    def shown(database: Database) -> list[object]:
        with database._connection.begin():
            return [database._connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    assert shown(place.open()) == ["serializable", "off", "30s", "2s", "UTF8"]
    assert shown(place.open(write=False)) == ["repeatable read", "on", "40s", "2s", "UTF8"]
    info = place.open()._connection.connection.driver_connection.info.get_parameters()
    assert (info["connect_timeout"], info["tcp_user_timeout"], info["keepalives_idle"]) == ("5", "10000", "10")
    assert info["application_name"].startswith("llmgw ")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://postgres@/nowhere?host={folder}", "knows no such database or user"),
        ("postgresql://nobody@/postgres?host={folder}", "knows no such database or user"),
        ("postgresql://sealed@/postgres?host={folder}", "name its file in store.password_file"),
    ],
)
def test_a_database_that_lets_nobody_in_is_told_with_a_remedy(postgresql_server: Server, url: str, words: str) -> None:
    """STO-01: waiting would not help."""
    with pytest.raises(StoreError, match=words):
        opening(url.format(folder=postgresql_server.folder))


def test_a_user_without_rights_is_told_with_a_remedy(postgresql_server: Server) -> None:
    """STO-01: PostgreSQL lets nobody but the owner make tables."""
    postgresql_server.execute("CREATE ROLE guest LOGIN")
    try:
        with postgresql_server.database() as url, pytest.raises(StoreError, match="ALTER DATABASE … OWNER TO"):
            opening(url.replace("postgres@", "guest@"))
    finally:
        postgresql_server.execute("DROP ROLE guest")


def test_an_encoding_that_cannot_hold_every_text_is_refused(postgresql_server: Server) -> None:
    """STO-01: told at the start, not by the first name that does not fit."""
    icu = "LOCALE_PROVIDER libc " if postgresql_server.version >= 15 else ""
    postgresql_server.execute(f"CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C' {icu}")
    try:
        with pytest.raises(StoreError, match="encoding is LATIN1: make the database with ENCODING 'UTF8'"):
            opening(postgresql_server.url("latin"))
    finally:
        postgresql_server.execute("DROP DATABASE latin")


def test_the_password_comes_from_its_file_and_is_shown_nowhere(
    postgresql_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-03: read anew for each connection; in no name, error, log or representation."""
    caplog.set_level(logging.DEBUG)
    postgresql_server.execute(f"CREATE ROLE sealed LOGIN PASSWORD '{PASSWORD}'")
    passwords = [PASSWORD, f"wrong-{PASSWORD}", PASSWORD]
    try:
        with postgresql_server.database() as url:
            name = url.partition("?")[0].rpartition("/")[2]
            postgresql_server.execute(f"ALTER DATABASE {name} OWNER TO sealed")
            backend = Postgresql(url.replace("postgres@", "sealed@"), lambda: passwords.pop(0))
            store = Database(backend).open()
            store.close()
            with pytest.raises(StoreUnavailable, match="user or the password is wrong") as refused:
                store.transact(lambda tx: tx.keys.all())
            told = [str(refused.value), repr(refused.value.__cause__), str(refused.value.__cause__)]
            assert store.transact(lambda tx: tx.keys.all()) == (), "the file was put right"
            told += [
                backend.name,
                repr(backend),
                repr(store),
                repr(store._engine),
                repr(store._connection),
                caplog.text,
            ]
            store.close()
            assert PASSWORD not in "\n".join(told)
    finally:
        postgresql_server.execute("DROP ROLE sealed")


def test_a_password_file_that_went_missing_is_told(place: Place, tmp_path: Path) -> None:
    """SEC-03, STO-03: when the connection has to be made again; the file put right, all goes on."""
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("not-asked-for")
    store = Database(backend_of(place.backend().url, file, tmp_path)).open()
    store.close()
    file.chmod(0o644)
    with pytest.raises(StoreUnavailable, match=r"password can be read by others.*nothing was changed"):
        store.transact(lambda tx: tx.keys.all())
    file.chmod(0o600)
    assert store.transact(lambda tx: tx.keys.all()) == ()
    store.close()


def test_errors_hold_no_values(place: Place) -> None:
    """SEC-03: what a query was given, such as a digest, is not in the error that it caused."""
    store = place.open()

    def broken(tx: Transaction) -> None:
        sql = "INSERT INTO api_keys (id, digest) VALUES (%(id)s, %(digest)s)"
        tx.keys._sql.connection.exec_driver_sql(sql, {"id": "key-1", "digest": PASSWORD})

    with pytest.raises(Exception, match="api_keys") as failed:
        store.transact(broken)
    assert PASSWORD not in str(failed.value).partition("DETAIL")[0]


# ---------------------------------------------------------------- one control plane


def test_a_second_control_plane_is_kept_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """HA-01: as long as the first is connected; the holder is named; others may look and help."""
    monkeypatch.setattr(postgresql, "HANDOVER", 0.2)
    first = opening(place, lock="exclusive")
    with pytest.raises(
        StoreError, match=r"another control plane uses it \(llmgw .* process \d+ from the same machine\)"
    ):
        opening(place, lock="exclusive")
    place.open().transact(lambda tx: tx.scopes.put(scope("a")))
    first.close()
    opening(place, lock="exclusive").close()


def test_a_control_plane_that_just_ended_is_waited_for(place: Place) -> None:
    """HA-01: a restart does not fail for the old process's last breath."""
    first = opening(place, lock="exclusive")
    ending = threading.Timer(0.3, first.close)
    ending.start()
    second = opening(place, lock="exclusive")
    ending.join()
    second.close()


def test_a_lock_that_another_took_meanwhile_ends_our_writing(place: Place) -> None:
    """HA-01: after a broken connection the lock is taken again; if another holds it, nothing is written."""
    backend = place.backend(lock="exclusive")
    first = Database(backend).open()
    first.close()  # as a server's restart does
    second = opening(place, lock="exclusive")
    with pytest.raises(StoreUnavailable, match="another control plane uses it"):
        first.transact(lambda tx: tx.scopes.put(scope("a")))
    second.close()
    first.transact(lambda tx: tx.scopes.put(scope("b")))
    with pytest.raises(StoreUnavailable, match="another control plane"):
        backend._led = True
        Database(backend).open()
    assert [one.path for one in first.transact(lambda tx: tx.scopes.all())] == ["b"]
    first.close()


# ---------------------------------------------------------------- locked, slow


def test_a_locked_table_is_an_error_in_words_and_never_holds_the_hub(place: Place, monkeypatch) -> None:
    """STO-03: another session holds a lock: the hub goes on."""
    monkeypatch.setitem(postgresql.LIMITS, "lock_timeout", "800ms")
    store = place.threads()
    other = place.open()
    with other._connection.begin():
        other._connection.exec_driver_sql("LOCK TABLE api_keys IN EXCLUSIVE MODE")
        with hub_is_free():
            with pytest.raises(StoreUnavailable, match="another process keeps it locked: nothing was changed"):
                store.write(lambda tx: tx.keys.add(key(1)))
            assert store.read(lambda tx: tx.keys.all()) == ()
    store.write(lambda tx: tx.keys.add(key(1)))
    assert (store.failures, store.failing) == (1, "")


def test_a_statement_without_end_is_ended_by_the_server(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: a report that nobody waits for any more does not keep the reader for ever."""
    monkeypatch.setitem(postgresql.READING, "statement_timeout", "300ms")
    store = place.threads()
    with pytest.raises(StoreUnavailable, match="did not answer: the database took too long"):
        store.read(lambda tx: tx.keys._sql.connection.exec_driver_sql("SELECT pg_sleep(30)"))
    assert store.read(lambda tx: tx.keys.all()) == ()


def test_a_slow_server_never_holds_the_hub(place: Place) -> None:
    """STO-03: a second in the server is nothing to the hub."""
    store = place.threads()
    with hub_is_free():
        store.write(lambda tx: tx.keys._sql.connection.exec_driver_sql("SELECT pg_sleep(1)"))


def test_work_is_run_again_until_it_fits(place: Place) -> None:
    """API-04: a change that another overtook is made again on what is there now."""
    first, second = place.open(), place.open()
    seen = []

    def work(tx: Transaction) -> None:
        seen.append(len(tx.scopes.all()))
        if len(seen) < 3:
            second.transact(lambda tx: tx.scopes.put(scope(f"s{len(seen)}")))
        tx.scopes.put(scope(f"s{len(seen)}"))

    first.transact(work)
    assert seen == [0, 1, 2]


def test_work_that_never_fits_ends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: trying again has an end, and says in words why."""
    monkeypatch.setattr(database, "PAUSE", 0.001)
    first, second = place.open(), place.open()
    tries = []

    def never(tx: Transaction) -> None:
        tries.append(len(tx.scopes.all()))
        second.transact(lambda tx: tx.scopes.put(scope(f"s{len(tries)}")))
        tx.scopes.put(scope(f"s{len(tries)}"))

    with pytest.raises(StoreUnavailable, match="too many changes at once touch the same rows: nothing was changed"):
        first.transact(never)
    assert len(tries) == database.ATTEMPTS


# ---------------------------------------------------------------- absent


def test_a_server_that_went_away_is_found_again(own_server: Server, own: Place) -> None:
    """STO-03: stopped: refused in words, nothing changed; started: all goes on, the lock is ours again."""
    store = own.threads(lock="exclusive")
    store.write(lambda tx: tx.keys.add(key(1)))
    own_server.stop()
    for call, words in ((store.write, "did not take it"), (store.read, "did not answer")):
        with hub_is_free(), pytest.raises(StoreUnavailable, match=f"{words}: the server cannot be reached") as refused:
            call(lambda tx: tx.keys.add(key(2)))
        assert not refused.value.uncertain
        assert str(refused.value).endswith(": nothing was changed") == (call == store.write)
        assert "Is the server running" not in str(refused.value), "libpq's question is not the reader's"
    assert store.failing
    own_server.start()
    store.write(lambda tx: tx.keys.add(key(3)))
    assert [one.id for one in store.read(lambda tx: tx.keys.all())] == ["key-1", "key-3"]
    assert store.failing == ""
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    assert own_server.execute(locks) == [(1,)]


def test_a_server_that_takes_no_writes_does_not_flood_the_log(
    own_server: Server, own: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """STO-03: each write that is tried makes a connection anew; that is told once one was of use."""
    caplog.set_level(logging.INFO)
    store = own.threads()
    ((name,),) = own.query("SELECT current_database()")
    own_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    own_server.stop()
    own_server.start()
    for number in range(3):
        with pytest.raises(StoreUnavailable, match="may only be read"):
            store.write(lambda tx, number=number: tx.keys.add(key(number)))
    own_server.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert "connected" not in caplog.text
    store.write(lambda tx: tx.keys.add(key(4)))
    assert caplog.text.count("connected to the store again") == 1


def test_a_restart_between_two_calls_is_not_noticed(own_server: Server, own: Place) -> None:
    """STO-03: the call after it runs on a new connection, once."""
    store = own.threads()
    store.write(lambda tx: tx.keys.add(key(1)))
    own_server.stop()
    own_server.start()
    assert store.write(take_epoch) == 1
    assert len(store.read(lambda tx: tx.keys.all())) == 1
    assert store.failures == 0


def test_a_server_that_hangs_is_given_up(own_server: Server, own: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: frozen, its kernel still answers for it: the calls after it do not wait for ever."""
    monkeypatch.setattr(access, "STUCK", 0.6)
    store = own.threads(timeout=3.0)
    store.write(lambda tx: tx.keys.add(key(1)))
    own_server.freeze()
    try:
        with hub_is_free(), pytest.raises(StoreUnavailable, match=r"did not answer within 0\.8 s: nothing was changed"):
            store.write(lambda tx: tx.keys.add(key(2)), timeout=0.8)
        with gevent.Timeout(20):
            while store.waiting:
                gevent.sleep(0.01)
    finally:
        own_server.thaw()
    store.write(lambda tx: tx.keys.add(key(3)), timeout=5.0)
    assert [one.id for one in store.read(lambda tx: tx.keys.all())] == ["key-1", "key-3"]


class Relay:
    """Between a client and the server's socket; cuts the line when the server has answered
    to a COMMIT, before the client learns of it. ``cut`` says that it did so."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.url_part = folder
        self.cut = threading.Event()
        self.armed = False
        self._target = str(server.folder / ".s.PGSQL.5432")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        committing = threading.Event()

        def upwards() -> None:
            while data := _received(client):
                if self.armed and b"COMMIT" in data:
                    committing.set()
                server.sendall(data)

        threading.Thread(target=upwards, daemon=True).start()
        while data := _received(server):
            if committing.is_set():
                self.cut.set()
                break
            client.sendall(data)
        for end in (client, server):
            end.shutdown(socket.SHUT_RDWR)
            end.close()


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""


def test_a_commit_whose_answer_was_lost_is_uncertain(place: Place, postgresql_server: Server, tmp_path_factory) -> None:
    """STO-03: it is not claimed that nothing changed, and it is not done twice."""
    folder = tmp_path_factory.mktemp("r")
    relay = Relay(folder, postgresql_server)
    url = place.backend().url.partition("?")[0] + f"?host={folder}"
    store = Database(Postgresql(url)).open()
    relay.armed = True
    runs = []

    def work(tx: Transaction) -> int:
        runs.append(1)
        return take_epoch(tx)

    with pytest.raises(StoreUnavailable, match="whether the change was kept is not known yet") as refused:
        store.transact(work)
    assert refused.value.uncertain and relay.cut.is_set() and len(runs) == 1
    relay.armed = False
    assert store.transact(take_epoch) == 2, "it had been kept"
    store.close()
    relay.close()


def test_a_connection_that_broke_before_the_commit_is_made_again(place: Place, postgresql_server: Server) -> None:
    """STO-03: nothing can have been kept, so the work is run again."""
    store = place.threads()
    runs = []

    def work(tx: Transaction) -> int:
        runs.append(1)
        epoch = take_epoch(tx)
        if len(runs) == 1:
            pid = tx.leadership._sql.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            postgresql_server.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
        return epoch + len(tx.keys.all())

    assert store.write(work) == 1
    assert len(runs) == 2


def test_who_stands_still_while_it_takes_the_lease_keeps_nobody_out(place: Place) -> None:
    """HA-02: the row is locked until the commit, and whoever takes over must not wait for a
    minute."""
    frozen, other = place.open(), place.open()
    claimed, over = threading.Event(), threading.Event()

    def work(tx: Transaction) -> None:
        tx.leadership.claim("frozen", Claim(), ttl=6.0, holder=Holder())
        claimed.set()
        over.wait(30)

    def stand_still() -> None:
        with pytest.raises(StoreUnavailable, match="nothing was changed"):
            frozen.transact(work)

    standing = threading.Thread(target=stand_still)
    standing.start()
    assert claimed.wait(10)
    began = time.monotonic()
    while True:
        try:
            row = other.transact(lambda tx: tx.leadership.claim("other", Claim(), ttl=6.0, holder=Holder()))
        except StoreUnavailable:
            assert time.monotonic() - began < 15
        else:
            break
    over.set()
    standing.join()
    assert row.owner == "other"
    assert other.transact(lambda tx: tx.leadership.read()) == row


def test_a_server_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    """STO-03: it may come yet, so it is no fault of the settings; told at once."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"ada@/llmgw \(socket in .*\): the server cannot be reached"):
        opening(f"postgresql://ada@/llmgw?host={tmp_path}")
    assert time.monotonic() - began < 15


def test_two_that_upgrade_at_once_do_it_once(own_server: Server, own: Place) -> None:
    """STO-01: an empty database and several programs that start."""
    results: list[object] = []

    def start() -> None:
        try:
            results.append(own.open().transact(lambda tx: tx.keys.all()))
        except Exception as error:  # noqa: BLE001 - told below
            results.append(error)

    starting = [threading.Thread(target=start) for _ in range(4)]
    for one in starting:
        one.start()
    for one in starting:
        one.join()
    assert results == [()] * 4
    assert isinstance(own.threads(), StoreThreads)
