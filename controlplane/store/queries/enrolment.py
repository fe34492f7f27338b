"""Nodes and routers that may speak to us, and tokens to become one (SEC-01, SEC-02)."""

from collections.abc import Collection

from sqlalchemy import select

from controlplane.store.queries.sql import Sql, cut, values_of, whole
from controlplane.store.tables import identities, join_tokens
from controlplane.store.values import Enrolled, JoinToken


class EnrolmentQueries:
    """See ``port.Identities``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def all(self) -> tuple[Enrolled, ...]:
        """See the port."""
        found = (Enrolled(**row._asdict()) for row in self._sql.rows(select(identities)))
        return tuple(sorted(found, key=lambda each: (each.kind, each.name)))  # databases collate differently

    def one(self, kind: str, name: str) -> Enrolled | None:
        """See the port."""
        wanted = select(identities).where(identities.c.kind == kind, identities.c.name == name)
        row = self._sql.row(wanted)
        return None if row is None else Enrolled(**row._asdict())

    def named(self, kind: str, names: Collection[str]) -> tuple[Enrolled, ...]:
        """See the port."""
        wanted = select(identities).where(identities.c.kind == kind, identities.c.name.in_(names))
        return tuple(Enrolled(**row._asdict()) for row in self._sql.rows(wanted))

    def put(self, *enrolled: Enrolled) -> None:
        """See the port."""
        if enrolled:
            self._sql.put(identities, *(whole(identities, values_of(each)) for each in enrolled))

    def tokens(self) -> tuple[JoinToken, ...]:
        """See the port."""
        rows = self._sql.rows(select(join_tokens).order_by(join_tokens.c.created_at, join_tokens.c.id))
        return tuple(JoinToken(**row._asdict()) for row in rows)

    def token(self, token_id: str) -> JoinToken | None:
        """See the port."""
        row = self._sql.row(select(join_tokens).where(join_tokens.c.id == token_id))
        return None if row is None else JoinToken(**row._asdict())

    def add_token(self, token: JoinToken) -> None:
        """See the port."""
        self._sql.add(join_tokens, whole(join_tokens, values_of(token)), f"the join token {token.id}")

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
        return None if row is None else JoinToken(**row._asdict())

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
