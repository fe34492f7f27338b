"""Nodes and routers that may speak to us, and tokens to become one (SEC-01, SEC-02)."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, select

from controlplane.store.queries.sql import Sql, cut, whole
from controlplane.store.tables import identities, join_tokens
from controlplane.store.values import Enrolled, JoinToken


class EnrolmentQueries:
    """See ``port.Identities``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def all(self) -> tuple[Enrolled, ...]:
        """See the port."""
        found = (_enrolled(row) for row in self._sql.rows(select(identities)))
        return tuple(sorted(found, key=lambda each: (each.kind, each.name)))  # databases collate differently

    def one(self, kind: str, name: str) -> Enrolled | None:
        """See the port."""
        wanted = select(identities).where(identities.c.kind == kind, identities.c.name == name)
        row = self._sql.row(wanted)
        return None if row is None else _enrolled(row)

    def named(self, kind: str, names: Collection[str]) -> tuple[Enrolled, ...]:
        """See the port."""
        wanted = select(identities).where(identities.c.kind == kind, identities.c.name.in_(names))
        return tuple(_enrolled(row) for row in self._sql.rows(wanted))

    def put(self, *enrolled: Enrolled) -> None:
        """See the port."""
        if enrolled:
            self._sql.put(identities, *(whole(identities, _identity_values(each)) for each in enrolled))

    def tokens(self) -> tuple[JoinToken, ...]:
        """See the port."""
        rows = self._sql.rows(select(join_tokens).order_by(join_tokens.c.created_at, join_tokens.c.id))
        return tuple(_token(row) for row in rows)

    def token(self, token_id: str) -> JoinToken | None:
        """See the port."""
        row = self._sql.row(select(join_tokens).where(join_tokens.c.id == token_id))
        return None if row is None else _token(row)

    def add_token(self, token: JoinToken) -> None:
        """See the port."""
        values = {
            "id": token.id,
            "digest": token.digest,
            "kind": token.kind,
            "name": token.name,
            "created_at": token.created_at,
            "created_by": token.created_by,
            "expires_at": token.expires_at,
            "used_at": token.used_at,
            "used_from": token.used_from,
        }
        self._sql.add(join_tokens, whole(join_tokens, values), f"the join token {token.id}")

    def use_token(self, token_id: str, digest: str, now: float, used_from: str) -> JoinToken | None:
        """See the port. Of two at once one finds the row changed and waits, then finds it used."""
        row = self._sql.row(
            join_tokens.update()
            .where(
                join_tokens.c.id == token_id,
                join_tokens.c.digest == digest,
                join_tokens.c.used_at.is_(None),
                join_tokens.c.expires_at > now,
            )
            .values(cut(join_tokens, {"used_at": now, "used_from": used_from}))
            .returning(*join_tokens.c)
        )
        return None if row is None else _token(row)

    def remove_token(self, token_id: str) -> JoinToken | None:
        """See the port."""
        found = self.token(token_id)
        self._sql.connection.execute(join_tokens.delete().where(join_tokens.c.id == token_id))
        return found

    def newest_token(self) -> float | None:
        """See the port."""
        return self._sql.greatest(join_tokens.c.created_at)

    def drop_tokens(self, before: float, limit: int) -> int:
        """See the port."""
        return self._sql.drop_before(join_tokens, join_tokens.c.created_at, before, limit)


def _identity_values(enrolled: Enrolled) -> dict[str, Any]:
    return {
        "kind": enrolled.kind,
        "name": enrolled.name,
        "enrolled_at": enrolled.enrolled_at,
        "enrolled_by": enrolled.enrolled_by,
        "serial": enrolled.serial,
        "issued_at": enrolled.issued_at,
        "expires_at": enrolled.expires_at,
        "revoked_at": enrolled.revoked_at,
        "revoked_by": enrolled.revoked_by,
        "reason": enrolled.reason,
        "removed_at": enrolled.removed_at,
        "version": enrolled.version,
    }


def _enrolled(row: Row[Any]) -> Enrolled:
    return Enrolled(
        kind=row.kind,
        name=row.name,
        enrolled_at=row.enrolled_at,
        enrolled_by=row.enrolled_by,
        serial=row.serial,
        issued_at=row.issued_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
        reason=row.reason,
        removed_at=row.removed_at,
        version=row.version,
    )


def _token(row: Row[Any]) -> JoinToken:
    return JoinToken(
        id=row.id,
        digest=row.digest,
        kind=row.kind,
        name=row.name,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        used_at=row.used_at,
        used_from=row.used_from,
    )
