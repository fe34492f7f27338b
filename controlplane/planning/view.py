"""The fleet as the writer knows it: what planning, explaining and the API read.

Facts come from agents, intent from people; both are kept apart (PLC-03). Times are
the loop's monotonic seconds. ``None`` is unknown. Only the writer changes a view;
planning works on an ``Overlay`` over it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from controlplane.catalog.model import Catalog
from controlplane.events import Cordon, ServingSet
from llmgw.wire.messages import Inventory, Measurements, ShardExit, ShardSpec

NodeStatus = Literal["connected", "unreachable", "lost"]
"""``connected``: in session and registered. ``unreachable``: no session or silent;
its replicas keep serving. ``lost``: silent for so long that they are rebuilt (REC-10)."""

ReplicaState = Literal["placing", "starting", "ready", "draining", "stopping", "failed", "gone"]

ShardPhase = Literal["commanded", "starting", "ready", "stopping", "exited", "lost"]


Holds = tuple[tuple[str, Cordon], ...]
"""Held domains (``LABEL=VALUE``), each with who holds it and why (PLC-15)."""


@dataclass(slots=True)
class NodeView:
    """One enrolled node. It starts ``unreachable`` and without inventory."""

    id: str
    status: NodeStatus = "unreachable"
    since: float = 0.0
    session: str | None = None
    agent_version: str | None = None
    elsewhere: str = ""
    """The address that its agent connects from; empty if that is on this machine, or unknown."""
    inventory: Inventory | None = None
    measurements: Measurements | None = None
    measured_at: float | None = None
    last_heard: float | None = None
    cordon: Cordon | None = None
    own_labels: Mapping[str, str] = field(default_factory=dict)
    """Those that people gave it; ``labels`` is what holds."""
    capabilities: frozenset[str] = frozenset()
    """What its agent can do beyond the protocol's first version, by its hello."""
    enrolled: bool = True
    registered: bool = False
    """Whether the current session has registered: only then may commands be sent."""
    avoid_ports: dict[int, float] = field(default_factory=dict)
    """Ports found in use by a stray process, and until when they are avoided (PLC-13)."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's labels: the agent's, and over them those of people (PLC-09)."""
        told = self.inventory.labels if self.inventory else {}
        return {**told, **self.own_labels} if self.own_labels else told

    @property
    def shown(self) -> str:
        """The status as people are told it: a node that lost its session a moment ago is
        ``reconnecting`` rather than still ``connected``."""
        return "reconnecting" if self.status == "connected" and not self.registered else self.status


@dataclass(slots=True)
class ShardView:
    """One shard of a replica, on ``node_id``. ``spec`` holds no secret."""

    spec: ShardSpec
    node_id: str
    phase: ShardPhase = "commanded"
    since: float = 0.0
    pid: int | None = None
    adopted: bool = False
    detail: str = ""
    exit: ShardExit | None = None
    command_id: str | None = None
    """Id of the start that was sent for it; ``None`` if none was (adopted, or not yet)."""
    sent_at: float | None = None
    """When its last command was sent."""
    accepted: bool = False
    """Whether the agent is known to have taken the start."""

    @property
    def live(self) -> bool:
        """Whether it still holds its claims: until its exit is confirmed or its node lost."""
        return self.phase not in ("exited", "lost")


@dataclass(frozen=True, slots=True)
class Restart:
    """A person asked for a new replica in this one's stead (REC-30).

    ``queued``: it counts and serves until its turn comes. ``replacing``: it serves and
    counts no more, ``replacement`` does. ``in place``: it goes before its replacement
    comes. ``order`` is that of the requests, ``since`` when it was asked for.
    """

    actor: str
    reason: str
    order: int
    since: float
    state: Literal["queued", "replacing", "in place"] = "queued"
    at_once: bool = False
    """A person wants it in place."""
    replacement: str | None = None

    @property
    def asked(self) -> str:
        """Who asked, and why."""
        return f"a restart asked for by {self.actor or 'somebody'}" + (f" ({self.reason})" if self.reason else "")


@dataclass(slots=True)
class ReplicaView:
    """One replica. ``reason`` is why it is in its state, in words. ``stale``: it would be
    started otherwise now (CAT-08, SEC-08); ``None`` if its fingerprint is unknown."""

    id: str
    model: str
    profile: str
    fingerprint: str
    state: ReplicaState
    since: float
    created: float
    reason: str
    shards: dict[int, ShardView] = field(default_factory=dict)
    deadline: float | None = None
    """When a starting replica fails, or a draining one is stopped."""
    rejected: tuple["Verdict", ...] = ()
    """Candidates turned down when this replica was placed (PLC-24)."""
    stale: bool | None = False
    surplus: str | None = None
    """Why this copy must go whatever the model wants, such as a second copy of one id."""
    unwanted: bool = False
    """It was decided that it stops: its exit is no failure."""
    stop_committed: bool = False
    """That decision is durable: the stop is sent, again after each reconnect."""
    restarting: Restart | None = None
    spared: bool = False
    """Its node is lost, but its endpoint answered a router of late (REC-10): it serves on."""
    heals: str | None = None
    """The failed replica in whose stead it was placed on the same node while the lease was
    in doubt (HA-01): it may be started even then."""
    healed: bool = False
    """It failed, and another was placed in its stead that way: once only."""

    @property
    def restart(self) -> str | None:
        """How far a restart is that people asked for: ``queued``, ``replacing``, ``in place``."""
        return self.restarting.state if self.restarting else None


class Replicas(dict[str, ReplicaView]):
    """The replicas by id. Those of a model or of a node are found without a look at all the
    others: in a fleet of thousands of nodes each registration asks for those of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._of_model: dict[str, dict[str, ReplicaView]] = {}
        self._on_node: dict[str, dict[str, ReplicaView]] = {}

    def of_model(self, model: str) -> list[ReplicaView]:
        """All of a model's, in any state, in the order in which they came."""
        return list(self._of_model.get(model, {}).values())

    def on_node(self, node_id: str) -> list[ReplicaView]:
        """Those with a shard on the node, dead or alive."""
        return list(self._on_node.get(node_id, {}).values())

    def on_nodes(self, node_ids: Iterable[str]) -> list[ReplicaView]:
        """Those with a shard on any of the nodes, each once."""
        found = {replica.id: replica for node_id in node_ids for replica in self.on_node(node_id)}
        return list(found.values())

    def nodes(self) -> list[str]:
        """The nodes with a shard of any replica, dead or alive."""
        return list(self._on_node)

    def join(self, replica: ReplicaView, shard: ShardView) -> None:
        """Another shard of a replica that is here already."""
        replica.shards[shard.spec.rank] = shard
        self._on_node.setdefault(shard.node_id, {})[replica.id] = replica

    def __setitem__(self, replica_id: str, replica: ReplicaView) -> None:
        if replica_id in self:
            self._forget(self[replica_id])
        super().__setitem__(replica_id, replica)
        self._of_model.setdefault(replica.model, {})[replica_id] = replica
        for shard in replica.shards.values():
            self._on_node.setdefault(shard.node_id, {})[replica_id] = replica

    def __delitem__(self, replica_id: str) -> None:
        self._forget(self[replica_id])
        super().__delitem__(replica_id)

    def pop(self, replica_id: str, *default: Any) -> Any:
        """See ``dict``."""
        if replica_id in self:
            self._forget(self[replica_id])
        return super().pop(replica_id, *default)

    def _forget(self, replica: ReplicaView) -> None:
        _drop(self._of_model, replica.model, replica.id)
        for node_id in {shard.node_id for shard in replica.shards.values()}:
            _drop(self._on_node, node_id, replica.id)


def _drop(index: dict[str, dict[str, ReplicaView]], key: str, replica_id: str) -> None:
    among = index.get(key, {})
    among.pop(replica_id, None)
    if not among:
        index.pop(key, None)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a candidate was turned down: a code of ``errors.REASON``, words with
    figures, and the figures."""

    code: str
    message: str
    needed: float | None = None
    available: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One candidate: a profile on a node. ``reasons`` is empty if it fits; then
    ``score`` holds the terms of PLC-23 by name, in order, smaller is better."""

    profile: str
    node_id: str
    reasons: tuple[Reason, ...] = ()
    score: tuple[tuple[str, float | str], ...] = ()
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a model was not placed: one sentence, and every candidate's verdict."""

    code: str
    message: str
    verdicts: tuple[Verdict, ...] = ()


@dataclass(slots=True)
class ModelHealth:
    """What happened to a model's starts; carried on the model (REC-03, REC-05)."""

    failures: int = 0
    backoff_until: float | None = None
    last_error: str | None = None
    last_error_code: str | None = None
    last_error_at: float | None = None
    last_exit: ShardExit | None = None
    parked: bool = False
    refusal: Refusal | None = None
    refused_since: float | None = None
    quarantined: str | None = None
    refused_version: int | None = None
    """``FleetView.version`` at which the refusal was found: no other answer until it changes."""
    refusal_noted: float | None = None
    failed_nodes: dict[str, float] = field(default_factory=dict)
    """Nodes on which it failed in this row of failures, and when."""


@dataclass(frozen=True, slots=True)
class MassLoss:
    """So many nodes went silent together that nothing is declared lost (REC-11): those that
    have not come back, and when that was seen."""

    since: float
    nodes: frozenset[str]


@dataclass(slots=True)
class Lease:
    """Whether we lead beyond doubt (HA-01): before ``until``, by the loop's clock.
    ``doubtful`` is that as the loop saw it last, ``since`` when it began to; ``doubted``
    whether it ever changed."""

    until: float
    doubtful: bool
    since: float = 0.0
    doubted: bool = False


@dataclass(slots=True)
class Ahead:
    """A peer that has obeyed an epoch above ours, or ours of another leader (AGT-04): which it
    said last and when, and from when on the store is asked on its word again, ``pause``
    after the time before."""

    epoch: int
    heard: float
    ask_at: float
    pause: float


@dataclass(slots=True)
class Settling:
    """The wait after start during which nothing is placed (REC-24)."""

    active: bool = True
    started: float = 0.0
    steady_since: float = 0.0
    reason: str = ""


@dataclass(slots=True)
class FleetView:
    """Everything planning may see. ``version`` rises with each change that planning
    must consider; a heartbeat alone changes nothing."""

    catalog: Catalog
    version: int = 0
    nodes_version: int = 0
    """Rises with each change that may concern a node, or which nodes there are."""
    nodes: dict[str, NodeView] = field(default_factory=dict)
    replicas: Replicas = field(default_factory=Replicas)
    health: dict[str, ModelHealth] = field(default_factory=dict)
    settling: Settling = field(default_factory=Settling)
    mass_loss: MassLoss | None = None
    late_losses: tuple[str, ...] = ()
    """Nodes that are silent for so long that they would be lost, if the limit on
    declarations allowed (REC-10)."""
    nodes_lost: int = 0
    """How many nodes were declared lost in this term."""
    vouched: dict[str, int] = field(default_factory=dict)
    """Replicas by model that routers are served by and no node in session has told of:
    they are on nodes that are out of sight, and are not rebuilt (REC-10)."""
    lease: Lease = field(default_factory=lambda: Lease(until=inf, doubtful=False))
    ahead: dict[str, Ahead] = field(default_factory=dict)
    """Peers that have obeyed others than us, in words; also while ours is above theirs by now."""
    holds: Mapping[str, Cordon] = field(default_factory=dict)
    """Domains (``LABEL=VALUE``) in which people want nothing new (PLC-15)."""
    serving: ServingSet = field(default_factory=lambda: ServingSet(stopped=False))
    """Whether people stopped everything (REC-31)."""
    provider_keys: Mapping[str, str] = field(default_factory=dict)
    """Key files of external models that were read: what is wrong with them in words, or
    "" (CAT-10). A file that is not here has not been read yet."""
    key_generation: str = ""
    """The generation of engine keys that starts get (SEC-08); "" = there is none."""
    in_place: dict[str, str] = field(default_factory=dict)
    """Models with a replica that is restarted in its place, and its id: what it frees is theirs first."""

    @property
    def partial(self) -> bool:
        """Whether endpoints that routers know may be missing here (REC-25)."""
        return self.settling.active or bool(self.vouched)

    def held(self, node: NodeView) -> Holds:
        """The held domains that a node is in, each with who holds it and why."""
        if not self.holds:
            return ()
        domains = (f"{label}={value}" for label, value in sorted(node.labels.items()))
        return tuple((domain, self.holds[domain]) for domain in domains if domain in self.holds)
