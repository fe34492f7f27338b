"""What the store keeps: keys, people, models, settings, use and events as values.

Moments are Unix time in seconds. ``None`` is unknown or absent. What people can edit has
a ``version`` that rises with each edit (API-04).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from controlplane.events import Cordon

T = TypeVar("T")
Role = Literal["admin", "operator", "owner", "auditor"]
"""``owner`` is good for one scope and what is beneath it, the others for everything (API-08)."""

ROLES: tuple[Role, ...] = ("admin", "operator", "owner", "auditor")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list. ``next`` continues it (opaque), ``None`` at its end."""

    items: tuple[T, ...]
    next: str | None = None


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
    such a later one (REC-13). ``serial`` and ``expires_at`` are its newest certificate's,
    ``issued_at`` is the latest date of any; empty and ``None`` are not known.
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
