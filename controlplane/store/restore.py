"""Puts an unpacked backup in the place of a store, all at once or not at all (STO-02)."""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from controlplane.leadership.lease import Row
from controlplane.store import schema
from controlplane.store.database import Backend, Database
from controlplane.store.errors import StoreError
from controlplane.store.move import (
    Progress,
    clear,
    copy,
    epoch,
    give_to_owner,
    nothing,
    reading,
    writing,
)
from controlplane.store.queries import Queries
from controlplane.store.queries.lease import SPENT
from controlplane.store.queries.sql import Sql
from controlplane.store.sqlite import Sqlite
from controlplane.store.tables import join_tokens, leadership
from llmgw.runtime.files import sync_directory

EPOCHS_SPARED = 1000
"""What a restored store's epoch is raised by: more starts than there were since its backup,
so that agents that saw those obey at once (AGT-04)."""


@dataclass(frozen=True, slots=True)
class Revived:
    """Something that was taken away after the backup was made, and is valid again."""

    kind: str
    id: str
    name: str


def revived(target: Backend, content: Sqlite) -> tuple[Revived, ...] | None:
    """What ``content`` (of this program's schema) gives back that ``target`` holds as
    revoked, disabled or removed. ``None`` if the target cannot tell."""
    try:
        now = _rights(target)
    except StoreError:
        return None
    then = _rights(content)
    if now is None or then is None:
        return None
    certificates = [
        Revived("certificate", f"{kind}/{name}", name)
        for (kind, name), moment in now.revoked.items()
        if then.revoked.get((kind, name), 0.0) < moment
    ]
    return (*(right for right in then.valid if right not in now.valid), *certificates)


@dataclass(frozen=True, slots=True)
class _Rights:
    """Keys, tokens and users that are valid, and until when certificates are not."""

    valid: tuple[Revived, ...]
    revoked: Mapping[tuple[str, str], float]


def _rights(store: Backend) -> _Rights | None:
    with reading(store) as connection:
        if schema.current(connection) != schema.head():
            return None
        found = Queries(Sql(connection, store.insert))
        keys = [Revived("key", key.id, key.name) for key in found.keys.all() if key.revoked_at is None]
        users = {user.name for user in found.people.users() if user.disabled_at is None}
        tokens = [
            Revived("token", token.id, f"{token.name} of {token.user}")
            for token in found.people.tokens()
            if token.revoked_at is None and token.user in users
        ]
        revoked = {
            (each.kind, each.name): each.revoked_at for each in found.identities.all() if each.revoked_at is not None
        }
    return _Rights((*keys, *(Revived("user", name, name) for name in sorted(users)), *tokens), revoked)


def replace(target: Backend, content: Sqlite, progress: Progress = nothing) -> int:
    """Make ``content`` (of this program's schema; it is used up) what ``target`` holds.

    Returns the epoch that the next leader goes on from: above that of the backup and that
    of the store that is replaced, by ``EPOCHS_SPARED``. Nobody may use ``target``
    meanwhile. Raises ``StoreError``; then it is as it was.
    """
    if isinstance(target, Sqlite):
        return _replace_file(target, content)
    return _replace_rows(target, content, progress)


def _replace_file(target: Sqlite, content: Sqlite) -> int:
    with writing(content) as connection:
        last = _hold_back(connection, _last(connection), _last_of_file(target))
        _forget_tokens(connection)
    try:
        _fold(content)
        if target.file.exists():
            _fold(target)
        with content.file.open("rb") as stream:
            os.fsync(stream.fileno())
        content.file.replace(target.file)
        give_to_owner(target.file)
        sync_directory(target.file.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{target.name}: cannot be replaced: {error}") from error
    return last


def _fold(store: Sqlite) -> None:
    """Make one file of a database and its log: what lies beside a file that is replaced
    would be taken for a part of the new one."""
    with contextlib.closing(sqlite3.connect(store.file)) as connection:
        mode = connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
    if mode != "delete":
        raise StoreError(f"{store.name}: another process keeps it open: end that one first")


def _replace_rows(target: Backend, content: Sqlite, progress: Progress) -> int:
    Database(target).open().close()
    with reading(content) as source, writing(target) as connection:
        replaced = _last(connection)
        clear(connection)
        copy(source, connection, progress)
        last = _hold_back(connection, _last(connection), replaced)
        _forget_tokens(connection)
    return last


def held_back(owner: str, *rows: Row) -> Row:
    """The lease of a restored store: its epoch is above those of ``rows``, and ``owner``, an id
    that nobody has, holds it for as long as the longest of their claims. A control plane that
    the database could not see when it was locked may be sure to lead for as long: candidates
    wait, and that one lets go once it asks (HA-01)."""
    return Row(owner, 0, max(row.epoch for row in rows) + EPOCHS_SPARED, max(row.ttl for row in rows))


def _last(connection: Connection) -> Row:
    """Epoch and length of the last claim; 0 where they are not known, or no leader's."""
    revision = schema.current(connection)
    last = epoch(connection) if revision is not None else 0
    if last >= SPENT:
        last = 0  # no leader wrote it: what peers obeyed is learned from them
    ttl = connection.scalar(select(func.max(leadership.c.ttl))) if revision == schema.head() else None
    return Row("", 0, last, float(ttl or 0.0))


def _last_of_file(target: Sqlite) -> Row:
    if not target.file.exists() or not target.file.stat().st_size:
        return Row("", 0, 0, 0.0)
    with reading(target) as connection:
        return _last(connection)


def _hold_back(connection: Connection, *rows: Row) -> int:
    """Write the lease that ``held_back`` says. Returns its epoch."""
    row = held_back(secrets.token_hex(16), *rows)
    connection.execute(leadership.delete())
    connection.execute(leadership.insert().values(id=1, epoch=row.epoch, owner=row.owner, ttl=row.ttl))
    return row.epoch


def _forget_tokens(connection: Connection) -> None:
    """A join token that was used after the backup must not be good once more (SEC-02)."""
    connection.execute(join_tokens.delete())
