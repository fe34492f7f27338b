"""The store in one SQLite file: how it is opened, and what its errors mean.

WAL with a bounded checkpoint, a full sync at every commit, ``BEGIN IMMEDIATE`` so that a
writing transaction never fails half-way for want of the write lock.
"""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from controlplane.store.database import Failure
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.queries.sql import to_json

CHECKPOINT_PAGES = 1000
"""The WAL is folded back after this many pages (4 MiB)."""

WAL_LIMIT = 16 * 1024 * 1024
"""Bytes the WAL file is cut to after a checkpoint."""

WATCH_STEPS = 100_000
"""Steps of SQLite's virtual machine between two looks whether anybody waits: some milliseconds."""

_FAILURES = {
    sqlite3.SQLITE_INTERRUPT: Failure("nobody waited for it any more"),
    sqlite3.SQLITE_BUSY: Failure("another process keeps it locked"),
    sqlite3.SQLITE_LOCKED: Failure("another process keeps it locked"),
    sqlite3.SQLITE_FULL: Failure("the disk is full: make room on it"),
    sqlite3.SQLITE_IOERR: Failure("the disk failed to read or write (see the kernel's log), or is full", "lost"),
    sqlite3.SQLITE_READONLY: Failure("it may only be read", "read only"),
    sqlite3.SQLITE_NOTADB: Failure(
        "this file is no SQLite database: move it aside to begin with an empty store, or put a backup in its place",
        "unusable",
    ),
    sqlite3.SQLITE_CORRUPT: Failure(
        "the database is damaged: stop the control plane and restore the newest backup (llmgw store restore)",
        "unusable",
    ),
    sqlite3.SQLITE_CANTOPEN: Failure("the file, or one beside it that SQLite needs, cannot be opened", "unusable"),
}


class Sqlite:
    """``database.Backend`` over one file, mode 0600.

    ``busy_timeout`` is how long a statement waits in seconds while another process
    holds the database.
    """

    def __init__(self, file: Path, busy_timeout: float = 2.0) -> None:
        self.file = file
        self.name = str(file)
        self._busy_timeout = busy_timeout
        self._identity: tuple[int, int] | None = None
        self._log = file.with_name(f"{file.name}-wal")
        self._log_identity: tuple[int, int] | None = None

    def engine(self, *, write: bool) -> Engine:
        """See ``Backend``. Raises ``StoreError`` if the file cannot be used."""
        try:
            self.file.touch(mode=0o600, exist_ok=True)
            self.file.chmod(0o600)
        except OSError as error:
            raise StoreError(f"{self.file}: cannot be opened: {error.strerror}") from error
        engine = create_engine(
            URL.create("sqlite", database=str(self.file)),
            poolclass=NullPool,
            connect_args={"timeout": self._busy_timeout, "check_same_thread": True},
            hide_parameters=True,
            json_serializer=to_json,
        )
        event.listen(engine, "connect", _configure if write else _configure_reader)
        event.listen(engine, "begin", _begin_immediate if write else _begin)
        return engine

    def insert(self, table: Table) -> Any:
        """See ``Backend``."""
        return insert(table)

    def upgrading(self, connection: Connection) -> AbstractContextManager[None]:  # noqa: ARG002 - the port's
        """See ``Backend``: a writing transaction is alone as it is."""
        return nullcontext()

    def watch(self, connection: Connection, wanted: Callable[[], bool]) -> None:
        """See ``Backend``."""
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: not wanted(), WATCH_STEPS)

    def break_off(self, connection: Any) -> None:
        """See ``Backend``: ``watch`` does, and a disk that hangs cannot be left."""

    def opened(self, connection: Connection, *, write: bool) -> None:  # noqa: ARG002 - the port's
        """See ``Backend``."""
        if write or self._identity is None:
            self._identity = _identity(self.file)

    def check(self) -> None:
        """See ``Backend``: the name still stands for the file that is open."""
        if _identity(self.file) != self._identity:
            raise StoreUnavailable(
                f"the store {self.file} was removed or replaced while it was in use, so nothing written now would "
                "last: put it back, or restart the control plane to begin with what is there"
            )
        log = _identity(self._log)
        if self._log_identity is not None and log != self._log_identity:
            raise StoreUnavailable(
                f"{self._log} was removed while the store was in use, so nothing written now would outlive a crash: "
                "restart the control plane (llmgw server ends with SIGTERM and saves what it has; do not kill it)"
            )
        self._log_identity = log

    def closed(self) -> None:
        """See ``Backend``: the last to close takes the log away."""
        self._log_identity = None

    def back_up(self, revision: str) -> None:
        """See ``Backend``: to a file beside it."""
        copy = self.file.with_name(f"{self.file.name}.before-{revision}")
        try:
            copy.touch(mode=0o600)
            with closing(sqlite3.connect(self.file)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"{self.file}: its schema is to be upgraded, but no copy of it could be put to {copy} first ({error}): "
                "make room there"
            ) from error

    def failure(self, error: DBAPIError) -> Failure:
        """See ``Backend``."""
        code = getattr(error.orig, "sqlite_errorcode", None)
        known = None if code is None else _FAILURES.get(code & 0xFF)
        return known or Failure(str(error.orig))


def _identity(file: Path) -> tuple[int, int] | None:
    """Which file the name stands for now; ``None`` if none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun by us, not guessed by the driver
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
        f"journal_size_limit = {WAL_LIMIT}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _configure_reader(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
