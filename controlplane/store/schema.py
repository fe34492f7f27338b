"""Bringing a database to the schema of this program (STO-01).

The steps are in the ``migrations`` package, which imports nothing of ours and is
found wherever it is installed.
"""

import importlib.util
import sqlite3
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import Connection

from controlplane.store.port import StoreError


def configuration(connection: Connection | None = None, **attributes: Any) -> Config:
    """Alembic's configuration for the shipped steps, on ``connection``."""
    found = importlib.util.find_spec("migrations")
    if found is None or found.origin is None:
        raise StoreError("the package 'migrations' is missing: install llmgw again")
    config = Config()
    config.set_main_option("script_location", str(Path(found.origin).parent).replace("%", "%%"))
    config.attributes.update(attributes, connection=connection)
    return config


def head() -> str:
    """The newest step this program knows."""
    newest = ScriptDirectory.from_config(configuration()).get_current_head()
    if newest is None:
        raise StoreError("the package 'migrations' holds no steps: install llmgw again")
    return newest


def current(connection: Connection) -> str | None:
    """The step a database is at; ``None`` for an empty one."""
    return MigrationContext.configure(connection).get_current_revision()


def migrate(connection: Connection, file: Path) -> None:
    """Walk the database up to this program's schema, in the caller's transaction.

    A database of an older schema is copied aside first. Raises ``StoreError`` for a
    schema this program does not know, which a newer one wrote.
    """
    config = configuration(connection)
    now = current(connection)
    if now == head():
        return
    if now is not None:
        try:
            ScriptDirectory.from_config(config).get_revision(now)
        except (ResolutionError, CommandError) as error:
            raise StoreError(
                f"{file}: its schema ({now}) is newer than this program's ({head()}): "
                "run the newer llmgw that wrote it, or restore the backup made before that upgrade"
            ) from error
        _back_up(file, now)
    command.upgrade(config, "head")


def _back_up(file: Path, revision: str) -> None:
    copy = file.with_name(f"{file.name}.before-{revision}")
    copy.touch(mode=0o600)
    source, target = sqlite3.connect(file), sqlite3.connect(copy)
    try:
        source.backup(target)
    finally:
        target.close()
        source.close()
