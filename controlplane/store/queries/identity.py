"""Who may do what: keys, scopes, people, secrets."""

from collections.abc import Collection
from typing import Any, cast

from sqlalchemy import Row, select

from controlplane.store.queries.sql import Sql, values_of, whole
from controlplane.store.tables import admin_tokens, api_keys, grants, scopes, secrets, users
from controlplane.store.values import AdminToken, ApiKey, Grant, Role, Scope, StoredSecret, User


class SecretQueries:
    """See ``port.Secrets``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def begin(self, first: StoredSecret) -> tuple[StoredSecret, ...]:
        """See the port."""
        known = self.all(first.name)
        if known:
            return known
        self._sql.connection.execute(
            self._sql.insert(secrets).values(whole(secrets, values_of(first))).on_conflict_do_nothing()
        )
        return self.all(first.name)

    def all(self, name: str) -> tuple[StoredSecret, ...]:
        """See the port."""
        rows = self._sql.rows(select(secrets).where(secrets.c.name == name).order_by(secrets.c.number))
        return tuple(
            StoredSecret(row.name, row.number, row.mark, bytes(row.value), row.created_at, row.created_by)
            for row in rows
        )

    def add(self, secret: StoredSecret) -> None:
        """See the port."""
        self._sql.add(
            secrets, whole(secrets, values_of(secret)), f"generation {secret.number} of the secret {secret.name}"
        )

    def drop(self, name: str, generations: Collection[str]) -> None:
        """See the port."""
        for known in self.all(name)[:-1]:
            if known.generation in generations:
                self._sql.connection.execute(
                    secrets.delete().where(secrets.c.name == name, secrets.c.number == known.number)
                )


class KeyQueries:
    """See ``port.Keys``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def all(self) -> tuple[ApiKey, ...]:
        """See the port."""
        rows = self._sql.rows(select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id))
        return tuple(_key(row) for row in rows)

    def add(self, key: ApiKey) -> None:
        """See the port."""
        models = None if key.models is None else list(key.models)
        self._sql.add(api_keys, whole(api_keys, values_of(key) | {"models": models}), f"the key {key.id}")

    def revoke(self, key_id: str, now: float, actor: str) -> ApiKey | None:
        """See the port."""
        self._sql.connection.execute(
            api_keys.update()
            .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
            .values(whole(api_keys, {"revoked_at": now, "revoked_by": actor}) | {"version": api_keys.c.version + 1})
        )
        row = self._sql.row(select(api_keys).where(api_keys.c.id == key_id))
        return None if row is None else _key(row)


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(**row._asdict() | {"models": None if row.models is None else tuple(row.models)})


class ScopeQueries:
    """See ``port.Scopes``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def all(self) -> tuple[Scope, ...]:
        """See the port."""
        found = (Scope(**row._asdict()) for row in self._sql.rows(select(scopes)))
        return tuple(sorted(found, key=lambda scope: scope.path))  # not ORDER BY: databases collate differently

    def put(self, scope: Scope) -> None:
        """See the port."""
        self._sql.put(scopes, whole(scopes, values_of(scope)))

    def remove(self, path: str) -> None:
        """See the port."""
        self._sql.connection.execute(scopes.delete().where(scopes.c.path == path))


class PeopleQueries:
    """See ``port.People``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def users(self) -> tuple[User, ...]:
        """See the port."""
        granted: dict[str, list[Grant]] = {}
        for row in self._sql.rows(select(grants)):
            granted.setdefault(row.user_name, []).append(Grant(cast(Role, row.role), row.scope))
        found = (
            User(
                grants=tuple(sorted(granted.get(row.name, ()), key=lambda grant: (grant.role, grant.scope))),
                **row._asdict(),
            )
            for row in self._sql.rows(select(users))
        )
        return tuple(sorted(found, key=lambda user: user.name))

    def put_user(self, user: User) -> None:
        """See the port."""
        self._sql.put(users, whole(users, values_of(user, "grants")))
        self._sql.connection.execute(grants.delete().where(grants.c.user_name == user.name))
        rows = [
            whole(grants, {"user_name": user.name, "role": grant.role, "scope": grant.scope})
            for grant in dict.fromkeys(user.grants)
        ]
        if rows:
            self._sql.connection.execute(grants.insert(), rows)

    def remove_user(self, name: str) -> None:
        """See the port."""
        for table in (grants, admin_tokens):
            self._sql.connection.execute(table.delete().where(table.c.user_name == name))
        self._sql.connection.execute(users.delete().where(users.c.name == name))

    def tokens(self) -> tuple[AdminToken, ...]:
        """See the port."""
        rows = self._sql.rows(select(admin_tokens).order_by(admin_tokens.c.created_at, admin_tokens.c.id))
        return tuple(_token(row) for row in rows)

    def add_token(self, token: AdminToken) -> None:
        """See the port."""
        if self._sql.row(select(users.c.name).where(users.c.name == token.user)) is None:
            raise ValueError(f"there is no user {token.user!r} who could have a token")
        values = values_of(token, "user") | {"user_name": token.user}
        self._sql.add(admin_tokens, whole(admin_tokens, values), f"the token {token.id}")

    def revoke_token(self, token_id: str, now: float, actor: str) -> AdminToken | None:
        """See the port."""
        self._sql.connection.execute(
            admin_tokens.update()
            .where(admin_tokens.c.id == token_id, admin_tokens.c.revoked_at.is_(None))
            .values(whole(admin_tokens, {"revoked_at": now, "revoked_by": actor}))
        )
        row = self._sql.row(select(admin_tokens).where(admin_tokens.c.id == token_id))
        return None if row is None else _token(row)


def _token(row: Row[Any]) -> AdminToken:
    values = row._asdict()
    return AdminToken(user=values.pop("user_name"), **values)
