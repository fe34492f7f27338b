"""One connection to the store's database, and transactions on it.

Blocking: a ``Database`` belongs to one thread (see ``access``). What differs between
databases is in a ``Backend``: ``sqlite`` and ``postgresql``.
"""

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from gevent import monkey
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError

from controlplane.store import schema
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.queries import Queries
from controlplane.store.queries.sql import Sql
from llmgw.runtime.logs import Logger
from llmgw.runtime.repeated import Repeated

log = Logger("llmgw.store")
_sleep = monkey.get_original("time", "sleep")  # in a native thread: its own sleep, no hub's

_allocate_lock = monkey.get_original("_thread", "allocate_lock")

T = TypeVar("T")

ATTEMPTS = 5
"""How often one piece of work is tried if the database asks for it."""

PAUSE = 0.05
"""Seconds before the second try; the others wait longer, and not equally long."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an error of the driver means, in words without a secret.

    ``again``: rolled back, may succeed if repeated. ``lost``: the connection is gone, or
    what a commit did cannot be told. ``read only``: it does not take writes: a standby, to a
    writer. ``refused``: rolled back. ``unusable``: no program of
    ours can use this database until somebody does something about it.
    """

    words: str
    kind: Literal["again", "lost", "read only", "refused", "unusable"] = "refused"


class Backend(Protocol):
    """A kind of database, and which one."""

    name: str
    """For people; without a secret."""

    def engine(self, *, write: bool) -> Engine:
        """Makes connections; those of a reader cannot write."""
        ...

    def insert(self, table: Table) -> Any:
        """The INSERT that knows ON CONFLICT."""
        ...

    def upgrading(self, connection: Connection) -> AbstractContextManager[None]:
        """Keep others from upgrading the schema meanwhile; takes as long as it takes."""
        ...

    def watch(self, connection: Connection, wanted: Callable[[], bool]) -> None:
        """Break a statement off soon after ``wanted`` became false, if the database knows
        no limit of its own for statements."""
        ...

    def break_off(self, connection: Any) -> None:
        """Make whoever waits for the driver's ``connection`` stop waiting. Called from
        another thread; must not block."""
        ...

    def opened(self, connection: Connection, *, write: bool) -> None:
        """A connection was made. Raises ``StoreUnavailable`` or ``StoreError`` if it is not
        to be used."""
        ...

    def check(self) -> None:
        """Before each transaction. Raises ``StoreUnavailable`` if what would be written now
        would not last."""
        ...

    def closed(self) -> None:
        """A connection was closed."""
        ...

    def back_up(self, revision: str) -> None:
        """Copy the database aside before its schema is changed."""
        ...

    def failure(self, error: DBAPIError) -> Failure:
        """What an error means."""
        ...


class Database:
    """A store. ``write=False``: every attempt to write through it is an error.

    ``upgrade`` is asked, in the transaction that would bring an older schema up to this
    program's, whether to; if not, the store cannot be opened, unless ``behind``: then it is
    used as it is, to see who leads and no more.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        write: bool = True,
        upgrade: Callable[[Transaction], bool] = lambda _: True,
        behind: bool = False,
    ) -> None:
        self.backend = backend
        self._write = write
        self._upgrade = upgrade
        self._behind = behind
        self._engine = backend.engine(write=write)
        self._connection: Connection | None = None
        self._raw: Any = None
        self._lock = _allocate_lock()
        self._opened = False
        self._reconnected = False
        self._reconnections = Repeated(log.info, "connected to the store again")
        schema.head()  # now: the database may be away until the package on disk was upgraded

    def open(self) -> "Database":
        """Connect, and bring the schema up to this program's. Raises ``StoreError`` if that
        cannot succeed until somebody acts, ``StoreUnavailable`` if it may later."""
        try:
            connection = self._connected()
            if self._write and not self._is_current(connection):
                with self.backend.upgrading(connection), connection.begin():
                    self._migrate(connection)
            with connection.begin():
                schema.require_head(connection, self.backend, behind=self._behind)
        except DBAPIError as error:
            self.close()
            raise self._told(self.backend.failure(error)) from error
        except BaseException:
            self.close()
            raise
        self._opened = True
        return self

    def transact(
        self,
        work: Callable[[Transaction], T],
        before_commit: Callable[[], None] | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> T:
        """Run ``work`` in one transaction and return its result, durable.

        ``before_commit`` is called between the last statement and the commit. What
        either raises rolls back and is raised here. ``work`` is run again if the database
        asks for it. Once ``wanted`` is false nobody waits for the result: the work may be
        broken off. Raises ``StoreUnavailable``.
        """
        attempt = 1
        while True:
            try:
                return self._once(work, before_commit, wanted)
            except _Again as error:
                if attempt == ATTEMPTS or not wanted():
                    raise StoreUnavailable(f"{self._refusal(error.words)}{self._harmless}") from error.__cause__
            _sleep(PAUSE * attempt * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            attempt += 1

    def break_off(self) -> None:
        """From another thread: give up the connection, so that a server that does not
        answer at all holds up the calls after this one no longer."""
        with self._lock:
            if self._raw is not None:
                self.backend.break_off(self._raw)

    def close(self) -> None:
        """Let go of the connection. The next transaction makes another."""
        connection, self._connection = self._connection, None
        with self._lock:
            self._raw = None
        if connection is not None:
            try:
                connection.close()
            except DBAPIError:
                connection.invalidate()
            self.backend.closed()

    def _once(
        self, work: Callable[[Transaction], T], before_commit: Callable[[], None] | None, wanted: Callable[[], bool]
    ) -> T:
        self.backend.check()
        committing = False
        try:
            connection = self._connected()
            self.backend.watch(connection, wanted)
            with connection.begin():
                result = work(Queries(Sql(connection, self.backend.insert)))
                if before_commit is not None:
                    before_commit()
                committing = True
        except (DataError, IntegrityError, ProgrammingError) as error:
            if self.backend.failure(error).kind == "refused":
                raise  # an error of ours, not of the store
            self._failed(error, committing)
        except DBAPIError as error:
            self._failed(error, committing)
        if self._reconnected:  # now: one that takes no writes is connected to for each that is tried
            self._reconnected = False
            self._reconnections.happened(time.monotonic(), store=self.backend.name, write=self._write)
        return result

    def _failed(self, error: DBAPIError, committing: bool) -> None:
        failure = self.backend.failure(error)
        if failure.kind == "read only":  # a writer may find the primary if it connects anew
            failure = Failure(failure.words, "lost" if self._write and not committing else "refused")
        connected = self._connection is not None
        if failure.kind == "lost":
            self.close()
            if committing:
                raise StoreUnavailable(
                    f"{self._refusal(failure.words)}, in the middle of a commit: whether the change was kept is not "
                    "known yet",
                    uncertain=True,
                ) from error
        if failure.kind == "again" or (failure.kind == "lost" and connected):
            raise _Again(failure.words) from error
        lasting = failure.kind == "unusable"
        raise StoreUnavailable(f"{self._refusal(failure.words)}{self._harmless}", lasting=lasting) from error

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                self._connection = self._connect()
            except StoreError as error:
                if not self._opened:
                    raise
                raise StoreUnavailable(f"{error}{self._harmless}") from error
            with self._lock:
                self._raw = self._connection.connection.driver_connection
        return self._connection

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        try:
            self.backend.opened(connection, write=self._write)
            if self._opened:
                with connection.begin():
                    schema.require_head(connection, self.backend, behind=self._behind)
                self._reconnected = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: Connection) -> None:
        now = schema.current(connection)
        if not schema.has_lease(now) or self._upgrade(Queries(Sql(connection, self.backend.insert))):
            schema.migrate(connection, self.backend)
        elif self._behind:
            log.warning(
                "the store's schema is older than this program's: it stays as it is, for whoever leads",
                store=self.backend.name,
                schema=now,
                ours=schema.head(),
            )

    @staticmethod
    def _is_current(connection: Connection) -> bool:
        with connection.begin():
            return schema.current(connection) == schema.head()

    def _told(self, failure: Failure) -> Exception:
        message = f"{self.backend.name}: {failure.words}"
        return StoreUnavailable(message) if failure.kind in ("again", "lost") else StoreError(message)

    def _refusal(self, words: str) -> str:
        return f"the store {self.backend.name} did not {'take it' if self._write else 'answer'}: {words}"

    @property
    def _harmless(self) -> str:
        return ": nothing was changed" if self._write else ""


class _Again(Exception):
    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words
