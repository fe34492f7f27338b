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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from controlplane.events import Cordon
from controlplane.leadership.lease import Claim, Holder, Row

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


class NotLeading(StoreUnavailable):
    """Another control plane holds the lease by now: what we would change is its to change.
    Nothing was changed."""


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
class StoredSecret:
    """One generation of a secret of the control plane (SEC-08). ``number`` rises; ``mark`` is
    random, since after a restore of an older store a number may come again."""

    name: str
    number: int
    mark: str
    value: bytes = field(repr=False)
    created_at: float
    created_by: str = ""

    @property
    def generation(self) -> str:
        """What names it everywhere else."""
        return f"{self.number}-{self.mark}"


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
class Counted:
    """How many batches were ``new``, and how many that never came will not be counted any
    more if they come (``given_up``): a process may have no more than ``MOST_GAPS`` gaps,
    see ``queries.sequences``."""

    new: int
    given_up: int


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
class Enrolled:
    """A node or router that may speak to us, or might once (SEC-01, SEC-02).

    Certificates that were issued at or before ``revoked_at`` are refused for ever, later
    ones are good. ``removed_at``: it left the fleet and belongs to it again once it shows
    such a later one (REC-13). ``serial``, ``issued_at`` and ``expires_at`` are its newest
    certificate's; empty and ``None`` are not known.
    """

    kind: str
    name: str
    enrolled_at: float
    enrolled_by: str
    serial: str = ""
    issued_at: float | None = None
    expires_at: float | None = None
    revoked_at: float | None = None
    revoked_by: str | None = None
    reason: str | None = None
    removed_at: float | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token for one node or router to get its first certificate with, once (SEC-02):
    its digest, never the token. ``used_from`` is the address of who used it."""

    id: str
    digest: str
    kind: str
    name: str
    created_at: float
    created_by: str
    expires_at: float
    used_at: float | None = None
    used_from: str | None = None


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


class Audit(Protocol):
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
        if this batch of that router process was counted before, in whatever order they
        come (STO-03)."""
        ...

    def add_all(self, batches: Sequence[UsageOf], *, log: bool) -> Counted:
        """The same for several, which costs less than one after the other."""
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
    identities: Identities
    models: Models
    settings: SettingsTable
    intents: Intents
    audit: Audit
    idempotency: Idempotency
    usage: Usage
    events: Events
