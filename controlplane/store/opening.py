"""Which database the settings name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import conninfo
from sqlalchemy import inspect, literal, select
from sqlalchemy.exc import DBAPIError

from controlplane.store.access import StoreThreads
from controlplane.store.database import Backend, Database
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.postgresql import Postgresql
from controlplane.store.sqlite import Sqlite
from controlplane.store.tables import (
    admin_tokens,
    api_keys,
    holds,
    identities,
    join_tokens,
    models,
    node_intents,
    scopes,
    settings,
    users,
)
from llmgw.runtime.settings import Address, SettingsError, read_secret

FILE = "llmgw.db"
"""The store in the state directory, unless ``store.url`` names another."""

PEOPLES = (
    admin_tokens,
    api_keys,
    holds,
    identities,
    join_tokens,
    models,
    node_intents,
    scopes,
    settings,
    users,
)
"""Tables of what people made; the others fill by themselves."""

_SECRET = ("password", "sslpassword")


def url_fault(url: str) -> str:
    """What is wrong with a ``store.url``, in words that follow its name; empty if nothing.
    Never repeats the URL: it may hold a password."""
    if not url:
        return ""
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        return "" if _sqlite_file(url) else "must be sqlite:///PATH with an absolute path"
    if scheme not in ("postgresql", "postgres"):
        return "must begin with postgresql:// or sqlite:///"
    try:
        parameters = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return "must be like postgresql://user@host:5432/database"
    if any(name in parameters for name in _SECRET):
        return "must not hold a password: put it in a file (mode 0600) and name that in store.password_file"
    if not parameters.get("dbname"):
        return "must name the database: postgresql://user@host:5432/database"
    return ""


def remote(url: str) -> bool:
    """Whether the database that ``url``, which has no fault, names is on another machine than this."""
    if not url or _sqlite_file(url) is not None:
        return False
    hosts = str(conninfo.conninfo_to_dict(url).get("host") or "").split(",")
    return not all(not host or host.startswith(("/", "@")) or Address(host, 0).loopback for host in hosts)


def backend_of(url: str, password_file: Path | None, default: Path, **more: Any) -> Backend:
    """The database that ``url`` names; a SQLite file in the directory ``default`` if it is
    empty. ``more`` is handed to ``Postgresql``. ``url`` has no fault."""
    if not url:
        return Sqlite(default / FILE)
    file = _sqlite_file(url)
    if file is not None:
        return Sqlite(file)
    password: Callable[[], str] | None = None
    if password_file is not None:
        password = partial(_password, password_file)
    return Postgresql(url, password, **more)


def threads(
    backend: Backend, timeout: float, guard: Callable[[Transaction], None] | None = None, *, upgrade: bool = True
) -> StoreThreads:
    """A writer and a reader on the database, not started yet. ``guard``: see ``StoreThreads``; an
    older schema is upgraded if it passes, and not without ``upgrade``."""

    def may_upgrade(tx: Transaction) -> bool:
        if guard is not None:
            guard(tx)
        return upgrade

    return StoreThreads(
        lambda: Database(backend, upgrade=may_upgrade), lambda: Database(backend, write=False), timeout, guard
    )


def used(backend: Backend) -> bool:
    """Whether a store, of whatever schema, holds anything that people made; one that does not
    exist does not. Changes nothing; blocks. Raises ``StoreUnavailable`` or ``StoreError`` if that
    cannot be told."""
    if isinstance(backend, Sqlite) and not backend.file.exists():
        return False
    engine = backend.engine(write=False)
    try:
        with engine.connect() as connection, connection.begin():
            there = set(inspect(connection).get_table_names())
            queries = (select(literal(1)).select_from(table).limit(1) for table in PEOPLES if table.name in there)
            return any(connection.execute(query).first() is not None for query in queries)
    except DBAPIError as error:
        raise StoreUnavailable(f"{backend.name}: {backend.failure(error).words}") from error
    finally:
        engine.dispose()


def _password(file: Path) -> str:
    try:
        return read_secret(file)
    except SettingsError as error:
        words = "; ".join(fault.message for fault in error.faults)
        raise StoreError(f"store.password_file {file} {words}") from error


def _sqlite_file(url: str) -> Path | None:
    parts = urlsplit(url)
    if parts.scheme.lower() != "sqlite" or parts.netloc or parts.query or parts.fragment:
        return None
    path = unquote(parts.path)
    file = Path("/" + path.lstrip("/"))  # others write four slashes for the same
    return file if path.startswith("/") and file.name else None
