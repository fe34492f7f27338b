"""The store in one SQLite file: the queries and how the file is opened.

Blocking, and used by one thread only. WAL with a bounded checkpoint, a full sync at
every commit, ``BEGIN IMMEDIATE`` so that a transaction never fails half-way for want
of the write lock.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, create_engine, event, func, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.pool import NullPool

from controlplane.events import Cordon
from controlplane.store.port import ApiKey, StoreError, StoreUnavailable
from controlplane.store.schema import migrate
from controlplane.store.tables import api_keys, leadership, node_intents, secrets

CHECKPOINT_PAGES = 1000
"""The WAL is folded back after this many pages (4 MiB)."""

WAL_LIMIT = 16 * 1024 * 1024
"""Bytes the WAL file is cut to after a checkpoint."""


class SqliteStore:
    """``controlplane.store.port.Store`` over one file, mode 0600.

    ``busy_timeout`` is how long a statement waits in seconds while another process
    holds the database. Raises ``StoreError`` if the file cannot be used.
    """

    def __init__(self, file: Path, busy_timeout: float = 2.0) -> None:
        self._file = file
        try:
            file.touch(mode=0o600, exist_ok=True)
            file.chmod(0o600)
        except OSError as error:
            raise StoreError(f"{file}: cannot be opened: {error.strerror}") from error
        engine = create_engine(
            f"sqlite:///{file}",
            poolclass=NullPool,
            connect_args={"timeout": busy_timeout, "check_same_thread": True},
        )
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin_immediate)
        try:
            self._connection: Connection = engine.connect()
        except DBAPIError as error:
            raise StoreError(f"{file}: {_words(error)}") from error
        try:
            with self._connection.begin():
                migrate(self._connection, file)
        except BaseException as error:
            self._connection.close()
            if isinstance(error, DBAPIError):
                raise StoreError(f"{file}: {_words(error)}") from error
            raise
        self.before_commit: Callable[[], None] | None = None
        self._identity = _identity(file)

    def take_epoch(self, floor: int = 0) -> int:
        """See the port."""
        with self._transaction() as connection:
            stored = connection.scalar(select(func.max(leadership.c.epoch))) or 0
            epoch = int(max(stored, floor)) + 1
            _set_epoch(connection, epoch)
        return epoch

    def raise_epoch(self, epoch: int) -> None:
        """See the port."""
        with self._transaction() as connection:
            if (connection.scalar(select(func.max(leadership.c.epoch))) or 0) < epoch:
                _set_epoch(connection, epoch)

    def secret(self, name: str, candidate: bytes, now: float) -> bytes:
        """See the port."""
        with self._transaction() as connection:
            statement = insert(secrets).values(name=name, value=candidate, created_at=now)
            connection.execute(statement.on_conflict_do_nothing())
            value = connection.scalar(select(secrets.c.value).where(secrets.c.name == name))
        return bytes(value or b"")

    def api_keys(self) -> tuple[ApiKey, ...]:
        """See the port."""
        with self._transaction() as connection:
            rows = connection.execute(select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)).all()
        return tuple(_key(row) for row in rows)

    def add_key(self, key: ApiKey) -> None:
        """See the port."""
        with self._transaction() as connection:
            connection.execute(
                insert(api_keys).values(
                    id=key.id,
                    name=key.name,
                    shown=key.shown,
                    digest=key.digest,
                    models=None if key.models is None else list(key.models),
                    created_at=key.created_at,
                    created_by=key.created_by,
                    expires_at=key.expires_at,
                )
            )

    def revoke_key(self, key_id: str, now: float, actor: str) -> ApiKey | None:
        """See the port."""
        with self._transaction() as connection:
            connection.execute(
                api_keys.update()
                .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
                .values(revoked_at=now, revoked_by=actor)
            )
            row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).one_or_none()
        return None if row is None else _key(row)

    def cordons(self) -> dict[str, Cordon]:
        """See the port."""
        with self._transaction() as connection:
            rows = connection.execute(select(node_intents).where(node_intents.c.cordon_at.is_not(None))).all()
        return {row.node_id: Cordon(row.cordon_reason or "", row.cordon_actor or "", row.cordon_at) for row in rows}

    def set_cordon(self, node_id: str, cordon: Cordon | None) -> None:
        """See the port."""
        values = {
            "cordon_reason": cordon.reason if cordon else None,
            "cordon_actor": cordon.actor if cordon else None,
            "cordon_at": cordon.at if cordon else None,
        }
        with self._transaction() as connection:
            statement = insert(node_intents).values(node_id=node_id, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["node_id"], set_=values))

    def close(self) -> None:
        """See the port."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        if _identity(self._file) != self._identity:
            raise StoreUnavailable(
                f"the store {self._file} was removed or replaced while it was in use, so nothing written now would "
                "last: put it back, or restart the control plane to begin with what is there"
            )
        try:
            with self._connection.begin():
                yield self._connection
                if self.before_commit is not None:
                    self.before_commit()
        except (IntegrityError, ProgrammingError):
            raise
        except DBAPIError as error:
            raise StoreUnavailable(f"the store {self._file} did not take it: {_words(error)}") from error


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


def _set_epoch(connection: Connection, epoch: int) -> None:
    statement = insert(leadership).values(id=1, epoch=epoch)
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_={"epoch": epoch}))


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        shown=row.shown,
        digest=row.digest,
        created_at=row.created_at,
        created_by=row.created_by,
        models=None if row.models is None else tuple(row.models),
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
    )


def _words(error: DBAPIError) -> str:
    return str(error.orig) if error.orig is not None else str(error)
