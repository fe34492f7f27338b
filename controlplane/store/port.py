"""What the control plane asks of its store: what people decided and what was used,
never what runs (STO-01).

One call is one transaction: ``StoreAccess.write(work)`` runs ``work`` with a
``Transaction`` in the writer's thread and commits when it returns, so that a change and
its audit entry stand or fall together (API-05). ``StoreAccess.read(work)`` does the same
on a second connection that cannot write. ``work`` may be run again from its beginning if
the database asks for it (a serialisation failure, a connection that broke before the
commit), so it must change nothing but the store.

Moments are Unix time in seconds. ``None`` is unknown or absent. What people can edit has
a ``version`` that rises with each edit (API-04).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from controlplane.events import Cordon

T = TypeVar("T")

Role = Literal["admin", "operator", "owner", "auditor"]
"""``owner`` is good for one scope and what is beneath it, the others for everything (API-08)."""

ROLES: tuple[Role, ...] = ("admin", "operator", "owner", "auditor")


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do."""


class StoreUnavailable(Exception):
    """The store did not answer in time, or refused. Nothing was changed, unless
    ``uncertain``: then the commit had begun and its outcome is not known. ``lasting``:
    somebody must act before it will."""

    def __init__(self, message: str, *, uncertain: bool = False, lasting: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain
        self.lasting = lasting


class Duplicate(Exception):
    """What is to be added is there already. ``what`` names it in words."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} exists already")
        self.what = what


class BadCursor(ValueError):
    """A cursor that no page gave out: what a client sent as one."""

    def __init__(self) -> None:
        super().__init__("is no cursor of this list: leave it out to begin at the start")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list. ``next`` continues it (opaque), ``None`` at its end."""

    items: tuple[T, ...]
    next: str | None = None


# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A client's API key: never the key itself, its SHA-256 in hex (SEC-03).

    ``shown`` is the beginning of the key, for people to recognise it by. ``models``
    is ``None`` for all models. ``scope`` is the path of its scope; empty = none (TEN-01).
    """

    id: str
    name: str
    shown: str
    digest: str
    created_at: float
    created_by: str
    models: tuple[str, ...] | None = None
    scope: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    revoked_by: str | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class Scope:
    """An org, team or project (TEN-01). ``path`` is ``org``, ``org/team`` or
    ``org/team/project``; the part before the last slash is its parent."""

    path: str
    title: str
    created_at: float
    created_by: str
    version: int = 1


@dataclass(frozen=True, slots=True)
class Grant:
    """A role of a user. ``scope`` is empty but for ``owner``."""

    role: Role
    scope: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may use the admin API, as far as ``grants`` go (API-08)."""

    name: str
    grants: tuple[Grant, ...]
    created_at: float
    created_by: str
    disabled_at: float | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A user's token for the admin API: its digest, never the token (SEC-03)."""

    id: str
    user: str
    name: str
    shown: str
    digest: str
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None
    revoked_by: str | None = None


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model added live. ``definition`` is the tree that a file would hold under its
    name (CAT-06)."""

    name: str
    definition: Mapping[str, Any]
    created_at: float
    created_by: str
    updated_at: float
    updated_by: str
    version: int = 1


@dataclass(frozen=True, slots=True)
class StoredSetting:
    """A cluster setting's value in the store (API-06); any JSON value."""

    name: str
    value: Any
    updated_at: float
    updated_by: str
    version: int = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing new is placed in a domain (PLC-15), a label and its value such as
    ``llmgw.io/rack=r12``."""

    domain: str
    reason: str
    actor: str
    at: str


@dataclass(frozen=True, slots=True)
class NodeIntent:
    """What people want of one node, apart from its status (PLC-03). ``labels`` lie over
    the agent's own (PLC-09)."""

    cordon: Cordon | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change (API-05). ``actor`` is who, in words; ``user`` and ``token`` are the
    identity that was proven. ``before`` and ``after`` hold no secret."""

    at: float
    actor: str
    user: str
    token: str
    operation: str
    kind: str
    target: str
    before: Any = None
    after: Any = None
    request_id: str = ""
    id: int = 0


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """A change that was made under an Idempotency-Key (API-04): a second request with the
    same key and content is answered with ``target`` as it is now. ``digest`` is of the
    request's method, path and body."""

    key: str
    user: str
    digest: str
    target: str
    at: float


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One finished request of a client: metadata only, never prompts (TEN-06, CLI-05).

    Durations are seconds. ``at`` is when it began. Token counts are ``None`` where the
    engine did not say. ``replica`` is the endpoint that answered; ``code`` is an
    ``errors.ROUTER`` code if it failed; ``retried`` holds why each earlier try failed.
    """

    at: float
    id: str
    key: str
    scope: str
    model: str
    status: int
    router: str
    asked: str = ""
    replica: str = ""
    code: str = ""
    stream: bool = False
    first_byte: float | None = None
    duration: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    retried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageOf:
    """A batch of requests that a router's process ``boot`` reported under a number."""

    source: str
    boot: str
    sequence: int
    entries: Sequence[RequestEntry]


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Use summed over a period (TEN-06). ``uncounted`` requests had no token counts: their
    tokens are unknown, not zero."""

    start: float
    key: str
    scope: str
    model: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    uncounted: int


@dataclass(frozen=True, slots=True)
class EventEntry:
    """A decision or event, kept beyond the journal. ``id`` is unique for ever, so that
    what is handed over twice is kept once."""

    id: str
    at: float
    kind: str
    reason: str
    epoch: int = 0
    model: str | None = None
    replica: str | None = None
    node: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- queries


class Leadership(Protocol):
    """Epochs (AGT-04)."""

    def take_epoch(self, floor: int = 0) -> int:
        """The next epoch, above every one taken before and above ``floor``."""
        ...

    def raise_epoch(self, epoch: int) -> None:
        """Keep in mind that epochs up to this one are taken."""
        ...


class Secrets(Protocol):
    """Secrets of the control plane itself."""

    def get(self, name: str, candidate: bytes, now: float) -> bytes:
        """The secret of that name; ``candidate`` becomes it if there is none yet (ENG-03)."""
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


class Audit(Protocol):
    """Who changed what."""

    def add(self, entry: AuditEntry) -> None:
        """Record a change, in the transaction that makes it."""
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

    def newest(self) -> float | None:
        """When the newest was made; ``None`` if there is none."""
        ...

    def drop_before(self, moment: float, limit: int) -> int:
        """Forget at most ``limit`` entries older than ``moment``; how many went."""
        ...


class Idempotency(Protocol):
    """Changes made under an Idempotency-Key."""

    def find(self, user: str, key: str) -> IdempotencyRecord | None:
        """The change a user made under this key."""
        ...

    def add(self, record: IdempotencyRecord) -> None:
        """Keep one, in the transaction of its change. Raises ``Duplicate``."""
        ...

    def newest(self) -> float | None:
        """When the newest was made; ``None`` if there is none."""
        ...

    def drop_before(self, moment: float, limit: int) -> int:
        """Forget at most ``limit`` records older than ``moment``; how many went."""
        ...


class Usage(Protocol):
    """Usage roll-ups and the request log (TEN-06)."""

    def add(self, source: str, boot: str, sequence: int, entries: Sequence[RequestEntry], *, log: bool) -> bool:
        """Count a batch of requests, and log them if ``log``. False, and nothing is done,
        if this batch of that router process was counted before (STO-03): sequences rise."""
        ...

    def add_all(self, batches: Sequence[UsageOf], *, log: bool) -> int:
        """The same for several, which costs less than one after the other; how many were
        new."""
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


class Events(Protocol):
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
        """Events, newest first."""
        ...

    def newest(self) -> float | None:
        """When the newest was made; ``None`` if there is none."""
        ...

    def drop_before(self, moment: float, limit: int) -> int:
        """Forget at most ``limit`` events older than ``moment``; how many went."""
        ...


class Transaction(Protocol):
    """All queries, inside one transaction."""

    leadership: Leadership
    secrets: Secrets
    keys: Keys
    scopes: Scopes
    people: People
    models: Models
    settings: SettingsTable
    intents: Intents
    audit: Audit
    idempotency: Idempotency
    usage: Usage
    events: Events
