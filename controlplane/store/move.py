"""Copies a whole store, secrets and all, between databases of any kind (STO-02).

The target is written in one transaction, so that it holds everything or nothing, and is
read back before the commit: what counts is that the number and the checksum of the rows
of every table agree. Memory is bounded by ``BATCH`` rows. Blocking.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import JSON, Connection, LargeBinary, MetaData, Table, func, inspect, select, text
from sqlalchemy.exc import DBAPIError

from controlplane.leadership.single import DatabaseLock
from controlplane.store import schema
from controlplane.store.database import Backend
from controlplane.store.errors import StoreError
from controlplane.store.sqlite import Sqlite
from controlplane.store.tables import leadership, metadata

BATCH = 2000
"""Rows held in memory at once."""

Progress = Callable[[str, int], None]
"""Told the table and how many of its rows are done."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A table's content: how many rows, and a checksum that does not depend on their
    order nor on the kind of database."""

    rows: int
    checksum: str


class Mismatch(StoreError):
    """What was written is not what was read."""


def nothing(_table: str, _rows: int) -> None:
    """A ``Progress`` that tells nobody."""


@contextmanager
def reading(backend: Backend) -> Iterator[Connection]:
    """A connection that sees the store as of one moment and cannot write. Raises
    ``StoreError`` if the database cannot be read."""
    with _connected(backend, backend.engine(write=False)) as connection:
        yield connection


@contextmanager
def writing(backend: Backend) -> Iterator[Connection]:
    """A connection in a transaction, which is committed at the end. Raises ``StoreError``."""
    with _connected(backend, backend.engine(write=True)) as connection:
        yield connection


@contextmanager
def alone(exclusive: Backend) -> Iterator[None]:
    """Keeps every control plane out of a store. Raises ``StoreError`` while one uses it.
    A PostgreSQL one must lock exclusively, and another object than what is worked with."""
    with ExitStack() as stack:
        try:
            if isinstance(exclusive, Sqlite):
                stack.callback(DatabaseLock(exclusive.file).release)
                give_to_owner(exclusive.file.with_name(f"{exclusive.file.name}.lock"))
            else:
                connection = stack.enter_context(exclusive.engine(write=True).connect())
                exclusive.opened(connection, write=True)
        except DBAPIError as error:
            raise StoreError(f"{exclusive.name}: {exclusive.failure(error).words}") from error
        except StoreError as error:  # the advice is for a second control plane
            raise StoreError(re.sub(": stop that one, .*", ": stop it first", str(error))) from error
        yield


def give_to_owner(file: Path) -> None:
    """What root made in a directory of the service's user is that user's to use."""
    if os.geteuid() == 0:
        owner = file.parent.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


@contextmanager
def _connected(backend: Backend, engine: Any) -> Iterator[Connection]:
    try:
        with engine.connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":  # its limits are for the control plane's short work
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            yield connection
    except DBAPIError as error:
        raise StoreError(f"{backend.name}: {backend.failure(error).words}") from error
    finally:
        engine.dispose()


def tables_of(connection: Connection) -> MetaData:
    """The tables of a store of any schema: ours at this program's, else as they are found."""
    if schema.current(connection) == schema.head():
        return metadata
    found = MetaData()
    found.reflect(connection)
    found.remove(found.tables["alembic_version"])
    for table in found.tables.values():
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type.none_as_null = True  # absent stays absent
    return found


def count(connection: Connection) -> dict[str, int]:
    """Rows of each table."""
    return {
        table.name: int(connection.scalar(select(func.count()).select_from(table)) or 0)
        for table in tables_of(connection).sorted_tables
    }


def empty(connection: Connection) -> bool:
    """Whether a store holds nothing: no tables, or no rows in them."""
    if schema.current(connection) is None:
        return not inspect(connection).get_table_names()
    return not any(
        connection.execute(select(table).limit(1)).first() is not None for table in tables_of(connection).sorted_tables
    )


def sums(connection: Connection, progress: Progress = nothing) -> dict[str, Sum]:
    """The sum of each table."""
    made = {}
    for table in tables_of(connection).sorted_tables:
        adding = _Adding(table)
        for batch in _batches(connection, table):
            adding.add(batch)
            progress(table.name, adding.rows)
        made[table.name] = adding.sum()
    return made


def copy(source: Connection, target: Connection, progress: Progress = nothing) -> dict[str, Sum]:
    """Copy every table into ``target``, which has the same schema and is empty; verify it.
    Returns the sums. Raises ``Mismatch``."""
    theirs = tables_of(target).tables
    read = {}
    for table in tables_of(source).sorted_tables:
        adding = _Adding(table)
        for batch in _batches(source, table):
            adding.add(batch)
            target.execute(theirs[table.name].insert(), batch)
            progress(table.name, adding.rows)
        read[table.name] = adding.sum()
    _go_on_counting(target, theirs)
    compare(read, sums(target), "what was written")
    return read


def compare(expected: Mapping[str, Sum], found: Mapping[str, Sum], what: str) -> None:
    """Raise ``Mismatch`` unless the sums agree."""
    wrong = [
        f"{name}: {expected[name].rows} rows were expected, {found[name].rows if name in found else 'none'} found"
        if name not in found or expected[name].rows != found[name].rows
        else f"{name}: the checksum differs"
        for name in expected
        if found.get(name) != expected[name]
    ]
    if wrong:
        raise Mismatch(f"{what} is not what was read; {'; '.join(wrong)}")


def clear(connection: Connection) -> None:
    """Remove every row."""
    for table in reversed(tables_of(connection).sorted_tables):
        connection.execute(table.delete())


def epoch(connection: Connection) -> int:
    """The last epoch that was taken; 0 if none."""
    return int(connection.scalar(select(func.max(leadership.c.epoch))) or 0)


# ---------------------------------------------------------------- rows


class _Adding:
    """Sums up rows as they come."""

    def __init__(self, table: Table) -> None:
        self._binary = [column.name for column in table.columns if isinstance(column.type, LargeBinary)]
        self._names = [column.name for column in table.columns]
        self._encoder = msgspec.json.Encoder(order="sorted")
        self._total = 0
        self.rows = 0

    def add(self, batch: list[dict[str, Any]]) -> None:
        """Rows by column name; bytes are made of whatever the driver calls them."""
        for row in batch:
            for name in self._binary:
                row[name] = None if row[name] is None else bytes(row[name])
            data = self._encoder.encode([row[name] for name in self._names])
            self._total += int.from_bytes(blake2b(data, digest_size=16).digest(), "big")
        self.rows += len(batch)

    def sum(self) -> Sum:
        """What it comes to."""
        return Sum(self.rows, f"{self._total % 2**128:032x}")


def _batches(connection: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    rows = connection.execute(select(table), execution_options={"yield_per": BATCH}).mappings()
    for part in rows.partitions():
        yield [dict(row) for row in part]


def _go_on_counting(connection: Connection, tables: Mapping[str, Table]) -> None:
    """Numbers that PostgreSQL gives out go on after the greatest that was copied."""
    if connection.dialect.name != "postgresql":
        return
    for table in tables.values():
        column = table.autoincrement_column
        if column is None:
            continue
        sequence = connection.scalar(
            text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": table.name, "column": column.name}
        )
        greatest = connection.scalar(select(func.max(column)))
        if sequence is not None and greatest is not None:
            connection.execute(text("SELECT setval(:sequence, :value)"), {"sequence": sequence, "value": greatest})
