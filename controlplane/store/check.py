"""A look at the store in use, which changes nothing (CLI-04)."""

from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, Table, and_, exists, func, inspect, not_, select, text
from sqlalchemy.exc import DBAPIError

from controlplane.store import schema, spool
from controlplane.store.database import Backend
from controlplane.store.errors import StoreError
from controlplane.store.move import count, epoch, reading, tables_of
from controlplane.store.sqlite import Sqlite

MOST_FAULTS = 20


@dataclass
class Found:
    """What there is. ``bytes`` and ``epoch`` are ``None`` if not known; ``spooled`` is
    batches of usage that wait for the store; ``faults`` are in words, each with what to do."""

    store: str
    schema: str | None = None
    newest_schema: str = ""
    bytes: int | None = None
    epoch: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    spooled: int | None = None
    spooled_bytes: int | None = None
    faults: list[str] = field(default_factory=list)


def look(backend: Backend, spool_directory: Path) -> Found:
    """Look at everything; what cannot be looked at is a fault."""
    found = Found(backend.name, newest_schema=schema.head())
    _look_at_spool(found, spool_directory)
    if isinstance(backend, Sqlite) and not backend.file.exists():
        found.faults.append(f"{backend.name}: there is no store yet: it is made when the control plane first starts")
        return found
    try:
        with reading(backend) as connection:
            found.schema = schema.current(connection)
            found.bytes = _size(connection, backend)
            if _schema_is_ours(found):
                _look_at_tables(found, connection)
    except StoreError as error:
        found.faults.append(str(error))
    except DBAPIError as error:
        found.faults.append(f"{backend.name}: {backend.failure(error).words}")
    return found


def _look_at_spool(found: Found, directory: Path) -> None:
    try:
        found.spooled, found.spooled_bytes = spool.waiting(directory)
    except OSError as error:
        found.faults.append(f"{directory}: the spool cannot be read: {error.strerror}")


def _size(connection: Connection, backend: Backend) -> int | None:
    if isinstance(backend, Sqlite):
        names = (backend.file.name, f"{backend.file.name}-wal")
        files = [backend.file.with_name(name) for name in names]
        return sum(file.stat().st_size for file in files if file.exists())
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def _schema_is_ours(found: Found) -> bool:
    if found.schema is None:
        found.faults.append(
            f"{found.store}: it has no tables of llmgw: they are made when the control plane first starts"
        )
        return False
    if found.schema > found.newest_schema:
        found.faults.append(
            f"{found.store}: its schema ({found.schema}) is newer than this program's ({found.newest_schema}): "
            "use the llmgw that wrote it"
        )
        return False
    return True


def _look_at_tables(found: Found, connection: Connection) -> None:
    wanted = tables_of(connection)
    there = set(inspect(connection).get_table_names())
    missing = sorted(set(wanted.tables) - there)
    if missing:
        found.faults.append(f"tables are missing ({', '.join(missing)}): restore a backup (llmgw store restore)")
        return
    if connection.dialect.name == "sqlite":
        told = connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_FAULTS})").scalars().all()
        if told != ["ok"]:
            found.faults += [f"integrity: {line}" for line in told]
            found.faults.append("the file is damaged: restore a backup (llmgw store restore)")
            return
    found.rows = count(connection)
    found.epoch = epoch(connection)
    for table in wanted.sorted_tables:
        found.faults += _orphans(connection, table)


def _orphans(connection: Connection, table: Table) -> list[str]:
    """Rows that refer to rows that are not there."""
    faults = []
    for key in table.foreign_key_constraints:
        parent = key.referred_table
        pairs = [(element.parent, element.column) for element in key.elements]
        refers = and_(*(child.is_not(None) for child, _ in pairs))
        there = exists().where(and_(*(child == column for child, column in pairs)))
        rows = connection.scalar(select(func.count()).select_from(table).where(refers, not_(there)))
        if rows:
            faults.append(
                f"{table.name}: {rows} rows refer to rows of {parent.name} that are not there: restore a backup"
            )
    return faults
