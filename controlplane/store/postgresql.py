"""The store in a PostgreSQL database: how it is reached, and what its errors mean.

psycopg 3, blocking, in the store's own threads. Writing transactions are SERIALIZABLE, so
that what a change looked at before it wrote still holds when it is kept, whoever else
writes; readers see one moment and cannot write.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import psycopg
from gevent import monkey
from psycopg import conninfo
from psycopg.types.json import set_json_dumps
from sqlalchemy import Connection, Engine, Table, create_engine, event, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from controlplane.store.database import Failure
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.queries.sql import to_json
from llmgw.runtime.logs import Logger

log = Logger("llmgw.store")
_socket = monkey.get_original("socket", "socket")
_sleep = monkey.get_original("time", "sleep")  # in a native thread: its own sleep, no hub's

LEADER_LOCK = 0x6C6C6D6777
"""Advisory lock that a control plane holds while it uses the database: alone, or shared by
those that agree by the lease which of them leads (HA-01)."""

SCHEMA_LOCK = LEADER_LOCK + 1
"""Advisory lock around an upgrade of the schema."""

HANDOVER = 5.0
"""Seconds in which a control plane that just ended lets go of its lock, at the start."""

DEFAULTS = {
    "connect_timeout": "5",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",  # milliseconds
    "client_encoding": "utf8",
}
"""What libpq is told unless the URL says otherwise: a server that went away without a word
is noticed within 10 to 25 seconds."""

LIMITS = {"lock_timeout": "2s", "idle_in_transaction_session_timeout": "10s"}
"""What one that stands still in the middle of a transaction keeps from others, such as the rows
of usage from the next leader, it keeps no longer than that."""
ALIVE = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""What the server is told: a control plane that went away without a word holds its lock no
longer than that."""

WRITING = {"statement_timeout": "30s"}
READING = {"statement_timeout": "40s"}

_BY_STATE = {
    "40001": Failure("too many changes at once touch the same rows", "again"),
    "40P01": Failure("two changes waited for each other", "again"),
    "55P03": Failure("another process keeps it locked"),
    "57014": Failure("the database took too long"),
    "53100": Failure("the database's disk is full: make room on it"),
    "53300": Failure("the database has no free connection: raise max_connections or end others", "lost"),
    "25006": Failure("the database may only be read", "read only"),
    "42501": Failure(
        "the user may not do that: make it the owner of the database (ALTER DATABASE … OWNER TO …) and of its tables",
        "unusable",
    ),
    "42P01": Failure("a table of llmgw is missing: restore the newest backup (llmgw store restore)", "unusable"),
    "42P07": Failure("a table of that name is there already: give llmgw a database of its own", "unusable"),
}
_BY_CLASS = {
    "08": Failure("the connection to the database broke", "lost"),
    "57": Failure("the database is being stopped or started", "lost"),
    "58": Failure("the database's disk failed (see the server's log)", "lost"),
    "XX": Failure(
        "the database is damaged (see the server's log): restore the newest backup (llmgw store restore)", "unusable"
    ),
}
_AT_CONNECT = {
    "password authentication failed": "the user or the password is wrong: see store.url and store.password_file",
    "no password supplied": "the server asks for a password: name its file in store.password_file",
    "no pg_hba.conf entry": "the server lets nobody in from here as that user: add a line to its pg_hba.conf",
    " does not exist": "the server knows no such database or user: make them (CREATE ROLE, CREATE DATABASE … OWNER …)",
}

_UNREACHABLE = re.compile(r"connection to server .*? failed: (.+?) Is the server")
"""What libpq says of a server that is not there, and then asks."""


class Postgresql:
    """``database.Backend`` over one database of a server.

    ``url`` is libpq's, without a password; ``password`` reads it anew for each
    connection. ``lock``: how a writer holds the lock of control planes, if at all. ``back_up``
    copies the database aside before an upgrade from the revision it is given.
    """

    def __init__(
        self,
        url: str,
        password: Callable[[], str] | None = None,
        *,
        lock: Literal["exclusive", "shared"] | None = None,
        back_up: Callable[[str], None] | None = None,
    ) -> None:
        self.url = url
        self._parameters = DEFAULTS | {k: str(v) for k, v in conninfo.conninfo_to_dict(url).items() if v is not None}
        self._password = password
        self._lock = lock
        self._back_up = back_up
        self._led = False
        self.name = _name(self._parameters)

    def engine(self, *, write: bool) -> Engine:
        """See ``Backend``."""
        engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            poolclass=NullPool,
            hide_parameters=True,
            isolation_level="SERIALIZABLE" if write else "REPEATABLE READ",
        )
        limits = LIMITS | ALIVE | (WRITING if write else READING)

        def configure(connection: psycopg.Connection[Any], _record: object) -> None:
            sets = "; ".join(f"SET {name} = '{value}'" for name, value in limits.items())
            connection.execute(sets.encode())
            connection.commit()
            set_json_dumps(to_json, connection)

        event.listen(engine, "connect", configure)
        return engine if write else engine.execution_options(postgresql_readonly=True)

    def insert(self, table: Table) -> Any:
        """See ``Backend``."""
        return insert(table)

    def opened(self, connection: Connection, *, write: bool) -> None:
        """See ``Backend``: the encoding must hold every text, and a control plane locks
        others out, each time it connects."""
        with connection.begin():
            encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8":
            raise StoreError(
                f"{self.name}: its encoding is {encoding}: make the database with ENCODING 'UTF8' TEMPLATE template0"
            )
        if write and self._lock:
            self._lead(connection)

    def check(self) -> None:
        """See ``Backend``: the server knows."""

    def closed(self) -> None:
        """See ``Backend``."""

    @contextmanager
    def upgrading(self, connection: Connection) -> Iterator[None]:
        """See ``Backend``. Locked before the transaction that upgrades: it then sees what
        another has done."""
        limits = LIMITS | WRITING
        with connection.begin():
            for name in limits:
                connection.exec_driver_sql(f"SET {name} = 0")
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": SCHEMA_LOCK})
        try:
            yield
        finally:
            with connection.begin():
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": SCHEMA_LOCK})
                for name, value in limits.items():
                    connection.exec_driver_sql(f"SET {name} = '{value}'")

    def watch(self, connection: Connection, wanted: Callable[[], bool]) -> None:
        """See ``Backend``: the server does (``statement_timeout``)."""

    def break_off(self, connection: Any) -> None:
        """See ``Backend``. The socket is shut, not closed: whoever waits sees its end."""
        try:
            end = _socket(fileno=os.dup(connection.fileno()))
        except (psycopg.Error, OSError):
            return  # it is closed already
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("the connection was gone already", why=error)
        finally:
            end.close()

    def back_up(self, revision: str) -> None:
        """See ``Backend``."""
        if self._back_up is not None:
            self._back_up(revision)

    def failure(self, error: DBAPIError) -> Failure:
        """See ``Backend``."""
        cause = error.orig
        state = getattr(cause, "sqlstate", None)
        if state:
            known = _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
            return known or Failure(cause.diag.message_primary or type(cause).__name__)  # type: ignore[union-attr]
        said = _line(str(cause))
        if unreachable := _UNREACHABLE.search(said):
            return Failure(f"the server cannot be reached ({unreachable[1]})", "lost")
        for part, words in _AT_CONNECT.items():
            if part in said:
                return Failure(words, "unusable")
        lost = error.connection_invalidated or isinstance(cause, psycopg.OperationalError)
        return Failure(said, "lost" if lost else "refused")

    def _connect(self) -> psycopg.Connection[Any]:
        parameters = self._parameters | {"application_name": f"llmgw {socket.gethostname()} process {os.getpid()}"[:63]}
        if self._password is not None:
            parameters["password"] = self._password()
        return psycopg.connect(conninfo.make_conninfo("", **parameters))

    def _lead(self, connection: Connection) -> None:
        deadline = time.monotonic() + (0.0 if self._led else HANDOVER)
        while not self._try_lock(connection):
            if time.monotonic() >= deadline:
                others = "alone (without ha)" if self._lock == "shared" else ""
                words = (
                    f"{self.name}: another control plane uses it{others and ' '}{others} ({self._holder(connection)}): "
                    "stop that one, give this one a database of its own, or let both agree who leads (ha.enabled)"
                )
                raise StoreUnavailable(words) if self._led else StoreError(words)
            _sleep(0.1)
        self._led = True

    def _try_lock(self, connection: Connection) -> bool:
        shared = "_shared" if self._lock == "shared" else ""
        query = text(f"SELECT pg_try_advisory_lock{shared}(:key)")
        with connection.begin():
            return bool(connection.execute(query, {"key": LEADER_LOCK}).scalar_one())

    @staticmethod
    def _holder(connection: Connection) -> str:
        query = text(
            "SELECT a.application_name, a.client_addr FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
            "WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE "
            "datname = current_database()) AND l.classid = :high AND l.objid = :low"
        )
        with connection.begin():
            row = connection.execute(query, {"high": LEADER_LOCK >> 32, "low": LEADER_LOCK & 0xFFFFFFFF}).first()
        if row is None:
            return "unknown which"
        return f"{row.application_name or 'unnamed'} from {row.client_addr or 'the same machine'}"


def _name(parameters: dict[str, str]) -> str:
    """The database's address for people; parameters that may be secrets are left out."""
    user = f"{parameters['user']}@" if "user" in parameters else ""
    host = parameters.get("host") or parameters.get("hostaddr") or ""
    database = parameters.get("dbname", "")
    if host.startswith(("/", "@")):
        return f"postgresql://{user}/{database} (socket in {host})"
    hosts = ",".join(f"[{one}]" if ":" in one else one for one in host.split(","))
    port = f":{parameters['port']}" if "port" in parameters else ""
    return f"postgresql://{user}{hosts}{port}/{database}"


def _line(words: str) -> str:
    """The driver's words on one line, bounded."""
    return " ".join(words.split())[:300]
