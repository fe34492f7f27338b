"""What the control plane asks of its store: what people decided and what was used,
never what runs (STO-01).

One call is one transaction: ``StoreAccess.write(work)`` runs ``work`` with a
``Transaction`` in the writer's thread and commits when it returns, so that a change and
its audit entry stand or fall together (API-05). ``StoreAccess.read(work)`` does the same
on a second connection that cannot write. ``work`` may be run again from its beginning if
the database asks for it (a serialisation failure, a connection that broke before the
commit), so it must change nothing but the store.

What is kept is in ``values``, what can go wrong in ``errors``.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from controlplane.events import Cordon
from controlplane.leadership.lease import Claim, Holder, Row
from controlplane.store.values import (
    AdminToken,
    ApiKey,
    AuditEntry,
    Counted,
    Enrolled,
    EventEntry,
    Hold,
    IdempotencyRecord,
    JoinToken,
    NodeIntent,
    Page,
    RequestEntry,
    Scope,
    StoredModel,
    StoredSecret,
    StoredSetting,
    UsageOf,
    UsageRow,
    User,
)


class Leadership(Protocol):
    """The lease and its epoch (HA-01, AGT-04); see ``leadership.lease``. Only the database's
    clock is in the row, and it decides nothing."""

    def read(self) -> Row | None:
        """The lease as it is; ``None`` if nobody ever had it."""
        ...

    def claim(self, owner: str, claim: Claim, *, ttl: float, holder: Holder) -> Row:
        """Take the lease or renew it, in one statement; the row as it is then. It is ours if
        its owner is ``owner``."""
        ...

    def release(self, owner: str) -> None:
        """Let go of the lease, if it is ``owner``'s: whoever comes next takes it at once."""
        ...

    def require(self, owner: str) -> None:
        """Raise ``NotLeading`` unless the lease is ``owner``'s, so that what a transaction
        changes was ours to change when it was committed."""
        ...

    def probe(self) -> None:
        """Write nothing, in a way that only a database that can be written to takes."""
        ...


class Secrets(Protocol):
    """Secrets of the control plane itself, in generations (SEC-08)."""

    def begin(self, first: StoredSecret) -> tuple[StoredSecret, ...]:
        """Every generation of the secret of that name, oldest first; ``first`` becomes it if
        there is none yet (ENG-03)."""
        ...

    def all(self, name: str) -> tuple[StoredSecret, ...]:
        """Every generation of a secret, oldest first."""
        ...

    def add(self, secret: StoredSecret) -> None:
        """Keep a new generation. Raises ``Duplicate`` if its number is taken."""
        ...

    def drop(self, name: str, generations: Collection[str]) -> None:
        """Forget these generations, but never the newest."""
        ...


class Keys(Protocol):
    """Clients' API keys."""

    def all(self) -> tuple[ApiKey, ...]:
        """Every key, revoked ones too, oldest first."""
        ...

    def add(self, key: ApiKey) -> None:
        """Keep a new key."""
        ...

    def revoke(self, key_id: str, now: float, actor: str) -> ApiKey | None:
        """Revoke a key and return it; ``None`` if there is no such key. Revoking a
        revoked key changes nothing."""
        ...


class Scopes(Protocol):
    """The scope tree."""

    def all(self) -> tuple[Scope, ...]:
        """Every scope, by path."""
        ...

    def put(self, scope: Scope) -> None:
        """Add a scope, or replace the one of that path."""
        ...

    def remove(self, path: str) -> None:
        """Remove a scope. That nothing uses it is for the caller to know."""
        ...


class People(Protocol):
    """Users, their roles and their tokens."""

    def users(self) -> tuple[User, ...]:
        """Every user, by name."""
        ...

    def put_user(self, user: User) -> None:
        """Add a user, or replace the one of that name with its grants."""
        ...

    def remove_user(self, name: str) -> None:
        """Remove a user with its grants and tokens."""
        ...

    def tokens(self) -> tuple[AdminToken, ...]:
        """Every token, revoked ones too, oldest first."""
        ...

    def add_token(self, token: AdminToken) -> None:
        """Keep a new token."""
        ...

    def revoke_token(self, token_id: str, now: float, actor: str) -> AdminToken | None:
        """Revoke a token and return it; ``None`` if there is no such token."""
        ...


class Identities(Protocol):
    """Who may speak to us: nodes and routers, and tokens to become one."""

    def all(self) -> tuple[Enrolled, ...]:
        """Everyone, removed and revoked ones too, by kind and name."""
        ...

    def one(self, kind: str, name: str) -> Enrolled | None:
        """One of them."""
        ...

    def named(self, kind: str, names: Collection[str]) -> tuple[Enrolled, ...]:
        """Those of a kind with one of these names, at most a thousand, in any order."""
        ...

    def put(self, *enrolled: Enrolled) -> None:
        """Add some, or replace those of that kind and name."""
        ...

    def tokens(self) -> tuple[JoinToken, ...]:
        """Every join token that was not forgotten, oldest first."""
        ...

    def token(self, token_id: str) -> JoinToken | None:
        """One join token."""
        ...

    def add_token(self, token: JoinToken) -> None:
        """Keep a new join token."""
        ...

    def use_token(self, token_id: str, digest: str, now: float, used_from: str) -> JoinToken | None:
        """Use a join token up, in one statement, and return it; ``None`` if there is none
        with this digest that is unused and in force at ``now``."""
        ...

    def remove_token(self, token_id: str) -> JoinToken | None:
        """Forget a join token; ``None`` if there is none."""
        ...

    def newest_token(self) -> float | None:
        """When the newest join token was made; ``None`` if there is none."""
        ...

    def drop_tokens(self, before: float, limit: int) -> int:
        """Forget at most ``limit`` join tokens made before then; how many went."""
        ...


class Models(Protocol):
    """Models added live."""

    def all(self) -> tuple[StoredModel, ...]:
        """Every stored model, by name."""
        ...

    def put(self, model: StoredModel) -> None:
        """Add a model, or replace the one of that name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a model."""
        ...


class SettingsTable(Protocol):
    """Cluster settings."""

    def all(self) -> tuple[StoredSetting, ...]:
        """Every setting that has a value in the store, by name."""
        ...

    def put(self, setting: StoredSetting) -> None:
        """Set one."""
        ...

    def remove(self, name: str) -> None:
        """Go back to the file's value, or the default."""
        ...


class Intents(Protocol):
    """What people want of nodes and domains."""

    def nodes(self) -> dict[str, NodeIntent]:
        """Every node with a cordon or labels."""
        ...

    def set_cordon(self, node_id: str, cordon: Cordon | None) -> None:
        """Cordon a node, or uncordon it (``None``)."""
        ...

    def set_labels(self, node_id: str, labels: Mapping[str, str]) -> None:
        """Replace the labels that people gave a node."""
        ...

    def holds(self) -> tuple[Hold, ...]:
        """Every hold, by domain."""
        ...

    def put_hold(self, hold: Hold) -> None:
        """Hold a domain, or change why."""
        ...

    def remove_hold(self, domain: str) -> None:
        """Release a domain."""
        ...


class Dated(Protocol):
    """Records of a moment, which are forgotten by their age."""

    def newest(self) -> float | None:
        """When the newest was made; ``None`` if there is none."""
        ...

    def drop_before(self, moment: float, limit: int) -> int:
        """Forget at most ``limit`` that are older than ``moment``; how many went."""
        ...


class Audit(Dated, Protocol):
    """Who changed what."""

    def add(self, *entries: AuditEntry) -> None:
        """Record changes, in the transaction that makes them."""
        ...

    def page(
        self,
        limit: int,
        cursor: str | None = None,
        *,
        user: str | None = None,
        kind: str | None = None,
        target: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Page[AuditEntry]:
        """Entries, newest first."""
        ...


class Idempotency(Dated, Protocol):
    """Changes made under an Idempotency-Key."""

    def find(self, user: str, key: str) -> IdempotencyRecord | None:
        """The change a user made under this key."""
        ...

    def add(self, record: IdempotencyRecord) -> None:
        """Keep one, in the transaction of its change. Raises ``Duplicate``."""
        ...


class Usage(Protocol):
    """Usage roll-ups and the request log (TEN-06)."""

    def add(self, batches: Sequence[UsageOf], *, log: bool) -> Counted:
        """Count batches of requests, and log them if ``log``. Nothing is done with a batch of
        a router process that was counted before, in whatever order they come (STO-03)."""
        ...

    def rows(
        self,
        since: float,
        until: float,
        *,
        by: tuple[Literal["key", "scope", "model", "day", "hour"], ...],
        key: str | None = None,
        scope: str | None = None,
        model: str | None = None,
    ) -> tuple[UsageRow, ...]:
        """Sums from the hour of ``since`` to that of ``until``, by what ``by`` names;
        fields that are not named are empty, ``start`` too. ``scope`` takes in all beneath."""
        ...

    def requests(
        self,
        limit: int,
        cursor: str | None = None,
        *,
        key: str | None = None,
        scope: str | None = None,
        model: str | None = None,
        replica: str | None = None,
        failed: bool | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Page[RequestEntry]:
        """Logged requests, newest first. ``scope`` takes in all beneath. So that a query
        takes no longer than some hundredths of a second, a page may have fewer than
        ``limit``, or none, and yet a ``next``; pages of the audit and of events too."""
        ...

    def request(self, request_id: str) -> RequestEntry | None:
        """One logged request."""
        ...

    def newest_request(self) -> float | None:
        """When the newest of the log began; ``None`` if there is none."""
        ...

    def newest(self) -> float | None:
        """The end of the last hour that has sums; ``None`` if there is none."""
        ...

    def drop_requests(self, before: float, limit: int) -> int:
        """Forget at most ``limit`` logged requests older than ``before``; how many went."""
        ...

    def drop_usage(self, before: float, limit: int) -> int:
        """Forget at most ``limit`` sums older than ``before``; how many went."""
        ...


class Events(Dated, Protocol):
    """Decisions and events beyond the journal."""

    def add(self, entries: Sequence[EventEntry]) -> None:
        """Keep these; those whose id is known are left as they are."""
        ...

    def page(
        self,
        limit: int,
        cursor: str | None = None,
        *,
        model: str | None = None,
        node: str | None = None,
        kind: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Page[EventEntry]:
        """Events, newest first, by ``at`` and ``id``. A cursor is ``services.paging.encode`` of those
        of the last one, be that in the store or not."""
        ...


class Transaction(Protocol):
    """All queries, inside one transaction."""

    leadership: Leadership
    secrets: Secrets
    keys: Keys
    scopes: Scopes
    people: People
    identities: Identities
    models: Models
    settings: SettingsTable
    intents: Intents
    audit: Audit
    idempotency: Idempotency
    usage: Usage
    events: Events
