"""Bringing a database to the schema of this program (STO-01).

The steps are in the ``migrations`` package, which imports nothing of ours and is
found wherever it is installed.
"""

import functools
import importlib.util
from pathlib import Path
from typing import Any, Protocol

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from controlplane.store.errors import StoreError, StoreUnavailable

LEASE = "0004"
"""The step from which on a database tells who leads."""


class Upgraded(Protocol):
    """What is migrated; see ``database.Backend``."""

    name: str

    def back_up(self, revision: str) -> None:
        """Copy the database aside."""
        ...


def configuration(connection: Connection | None = None, **attributes: Any) -> Config:
    """Alembic's configuration for the shipped steps, on ``connection``."""
    found = importlib.util.find_spec("migrations")
    if found is None or found.origin is None:
        raise StoreError("the package 'migrations' is missing: install llmgw again")
    config = Config()
    config.set_main_option("script_location", str(Path(found.origin).parent).replace("%", "%%"))
    config.attributes.update(attributes, connection=connection)
    return config


@functools.cache
def head() -> str:
    """The newest step this program knows. Looked up once, before any database is asked: what
    an upgrade of the package has put on disk since is not this process's schema."""
    newest = ScriptDirectory.from_config(configuration()).get_current_head()
    if newest is None:
        raise StoreError("the package 'migrations' holds no steps: install llmgw again")
    return newest


def current(connection: Connection) -> str | None:
    """The step a database is at; ``None`` for an empty one."""
    return MigrationContext.configure(connection).get_current_revision()


def migrate(connection: Connection, database: Upgraded) -> None:
    """Walk the database up to this program's schema, in the caller's transaction, while no
    other does.

    A database of an older schema is copied aside first. Raises ``StoreError`` for what a
    newer program wrote, and for what is no store of ours.
    """
    now = current(connection)
    if now is None:
        tables = sorted(set(inspect(connection).get_table_names()) - {"alembic_version"})
        if tables:
            raise StoreError(
                f"{database.name}: it holds tables of another program ({', '.join(tables[:3])}"
                f"{', …' if len(tables) > 3 else ''}): give llmgw a database of its own"
            )
    elif now == head():
        return
    else:
        _require_known(now, database.name)
        database.back_up(now)
    command.upgrade(configuration(connection), head())


def has_lease(revision: str | None) -> bool:
    """Whether a database at this step, which this program knows, tells who leads."""
    return revision is not None and revision >= LEASE and revision in _known()


def require_head(connection: Connection, database: Upgraded, *, behind: bool = False) -> None:
    """Raise ``StoreUnavailable`` unless the database is at this program's schema; ``behind``: or
    at an older one that tells who leads. Raises ``StoreError`` for one that this program does not
    know."""
    now = current(connection)
    if now != head() and not (behind and has_lease(now)):
        if now is not None:
            _require_known(now, database.name)
        raise StoreUnavailable(
            f"{database.name}: its schema is {now or 'none'} and not {head()}: it was replaced, or is being upgraded; "
            "restart the control plane if this lasts"
        )


def _known() -> set[str]:
    """This program's steps."""
    return {step.revision for step in ScriptDirectory.from_config(configuration()).walk_revisions("base", head())}


def _require_known(revision: str, name: str) -> None:
    if revision in _known():
        return
    if revision.isdigit() and revision > head():
        raise StoreError(
            f"{name}: its schema ({revision}) is newer than this program's ({head()}): "
            "run the newer llmgw that wrote it, or restore the backup made before that upgrade"
        )
    raise StoreError(f"{name}: its schema ({revision[:40]}) is none of llmgw's: give llmgw a database of its own")
