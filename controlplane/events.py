"""What goes into the loop and what comes out of it.

The loop (``controlplane.loop``) is a sans-IO machine: a driver feeds it events with
the monotonic time and carries the effects out. Both are plain frozen values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from controlplane.catalog.model import Catalog
from controlplane.fleet.keys import EngineKeys
from llmgw.wire.messages import Down, Hello, Refuse, Unknown, Up
from llmgw.wire.routing import Report, RoutedAlias, RoutedModel


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """An agent whose credential was checked sent its hello. ``session`` is unique to
    the connection; ``elsewhere`` is the address that it came from, if not on this machine."""

    session: str
    node_id: str
    hello: Hello
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A frame other than hello came in on a session."""

    session: str
    message: Up | Unknown


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The connection of a session ended, for ``reason`` in words."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class CatalogChanged:
    """A new, valid catalog is current from now on (CAT-06)."""

    catalog: Catalog


@dataclass(frozen=True, slots=True)
class EnrolmentChanged:
    """The nodes that may open a session, and no others."""

    node_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodesEnrolled:
    """These nodes may open a session too: they came for the first time."""

    node_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class CordonSet:
    """A person cordoned (``cordon`` given) or uncordoned (``None``) a node (PLC-03)."""

    node_id: str
    cordon: "Cordon | None"


@dataclass(frozen=True, slots=True)
class Cordon:
    """Who keeps new replicas off a node, since when (ISO 8601) and why."""

    reason: str
    actor: str
    at: str


@dataclass(frozen=True, slots=True)
class LabelsSet:
    """The labels that people gave a node, all of them; they lie over the agent's own
    (PLC-09)."""

    node_id: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HoldsSet:
    """The domains in which nothing new is placed, all of them: ``LABEL=VALUE`` and why
    (PLC-15)."""

    holds: Mapping[str, Cordon]


@dataclass(frozen=True, slots=True)
class ServingSet:
    """Whether anything is served at all (REC-31, the cluster setting ``serving.stopped``)."""

    stopped: bool
    actor: str = ""


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """Replace these replicas one at a time per model, each by a new one that is ready
    before it drains; ``in_place`` stops first (REC-30)."""

    replicas: tuple[str, ...]
    actor: str
    reason: str
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class ProviderKeysRead:
    """The key files of external models, as they are now: what is wrong with each in
    words, or "" (CAT-10). Holds no key."""

    faults: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Committed:
    """The decisions of a batch are durable: their actions may be dispatched."""

    batch: int


@dataclass(frozen=True, slots=True)
class RouterReported:
    """A router process sent its report."""

    router_id: str
    report: Report


@dataclass(frozen=True, slots=True)
class RetryRequested:
    """A person asks to try a model again now: ends its backoff or parking (REC-05)."""

    model: str
    actor: str


@dataclass(frozen=True, slots=True)
class LeaseExtended:
    """The lease is good until this monotonic moment less its margin; infinite for a control
    plane that leads by a lock alone (HA-01). Past it nothing is done but healing in
    place."""

    until: float


@dataclass(frozen=True, slots=True)
class EpochGranted:
    """The store has confirmed that we lead, with this epoch (AGT-04)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EngineKeysChanged:
    """The secrets of engines' keys, all generations of them, as the store holds them now
    (SEC-08). ``actor`` had them rotated; empty: unused ones were dropped."""

    keys: EngineKeys
    actor: str = ""


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """A router has a table of this epoch of this leader, empty = unknown (AGT-04). To be
    offered only if it may not be ours; agents tell theirs with their hello."""

    router: str
    epoch: int
    leader: str = ""


@dataclass(frozen=True, slots=True)
class LossAccepted:
    """A person says that these of the nodes that went silent together are lost (REC-11)."""

    nodes: frozenset[str]
    actor: str


Event = (
    SessionOpened
    | FrameReceived
    | SessionClosed
    | CatalogChanged
    | EnrolmentChanged
    | NodesEnrolled
    | CordonSet
    | LabelsSet
    | HoldsSet
    | ServingSet
    | RestartRequested
    | ProviderKeysRead
    | Committed
    | RouterReported
    | RetryRequested
    | LeaseExtended
    | EpochGranted
    | EngineKeysChanged
    | EpochSeen
    | LossAccepted
)


@dataclass(frozen=True, slots=True)
class Send:
    """Put a frame on a session's connection. ``before``: not at this monotonic moment or
    later, when the lease is in doubt (HA-01): it is dropped then, and the loop sends it
    again once it leads beyond doubt."""

    session: str
    message: Down
    before: float = inf


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End a session; ``refuse`` is sent first if given."""

    session: str
    refuse: Refuse | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing the control plane decided or saw, with why. Never holds a secret.

    ``kind`` is a stable word: ``place``, ``drain``, ``stop``, ``failed``, ``adopt``,
    ``node-unreachable`` ... ``figures`` are the numbers behind ``reason``.
    """

    kind: str
    reason: str
    model: str | None = None
    replica: str | None = None
    node: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """Make these decisions durable, then feed ``Committed(batch)`` back. The loop
    goes on meanwhile; the actions wait for it."""

    batch: int
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened and needs no commit: for the log and the event list."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class PublishRoutes:
    """The routes changed. The publisher adds API keys and a generation, and fills in the
    keys of external endpoints: ``key_files`` maps an endpoint's id to the file (CAT-10).
    ``epoch`` and ``leader`` go into the table: routers take none that is older (HA-01)."""

    models: tuple[RoutedModel, ...]
    settling: bool
    aliases: tuple[RoutedAlias, ...] = ()
    key_files: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0
    leader: str = ""


@dataclass(frozen=True, slots=True)
class EpochWanted:
    """A peer has obeyed epoch ``seen``, which is above ours, or is ours but was another
    leader's (AGT-04). Have the store say that we still lead and raise our epoch above it,
    then feed ``EpochGranted``. A leader
    that was replaced must not learn of its successor's epoch and outbid it: so we go on
    with our own until the store has answered."""

    seen: int


@dataclass(frozen=True, slots=True)
class DropEngineKeys:
    """Have the store forget these generations of engine keys, which nothing uses any more,
    then feed ``EngineKeysChanged`` (SEC-08)."""

    generations: tuple[str, ...]


Effect = Send | CloseSession | Commit | Note | PublishRoutes | EpochWanted | DropEngineKeys
