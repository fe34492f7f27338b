"""The fleet as it is, and the orders people give about it.

Everything is read from the writer's view. Long lists are made entry by entry while the
writer goes on: each entry is of one moment, the list as a whole need not be.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.catalog.model import Model
from controlplane.events import Cordon, CordonSet, RestartRequested, RetryRequested
from controlplane.inbox import Inbox
from controlplane.planning.explain import explaining
from controlplane.planning.overlay import Overlay
from controlplane.planning.view import FleetView, NodeView, ReplicaView
from controlplane.planning.work import Measured
from controlplane.publish.table import Publisher
from controlplane.services import shown
from controlplane.services.changes import Asked, Changed, Changes, Principal
from controlplane.services.errors import Refused, busy, conflict, invalid, not_found
from controlplane.services.names import domain
from controlplane.services.pauses import finish
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from llmgw.runtime.clock import Clock
from llmgw.runtime.settings import Fault, did_you_mean
from llmgw.wire.messages import Measurements

FRESH = 60.0
"""Older measurements are left out rather than repeated (AGT-02)."""

UNMEASURED = Measurements()
"""Of a node of which nothing is known now."""

MAX_AUDITED = 500
"""Most replicas that the audit names of one restart."""

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Which:
    """Which replicas are meant: those named, those of a model, the stale ones, or all;
    exactly one of the four."""

    replicas: tuple[str, ...] = ()
    model: str | None = None
    stale: bool = False
    all: bool = False

    def __str__(self) -> str:
        """For the audit."""
        if self.model is not None:
            return f"model {self.model}"
        return "stale" if self.stale else "all" if self.all else ", ".join(self.replicas)[:200]


class Fleet:
    """Reads of the fleet, and the orders people give about it."""

    def __init__(
        self,
        view: Callable[[], FleetView],
        *,
        publisher: Publisher,
        inbox: Inbox,
        store: StoreAccess,
        changes: Changes,
        clock: Clock,
    ) -> None:
        self._view = view
        self._publisher = publisher
        self._inbox = inbox
        self._store = store
        self._changes = changes
        self._clock = clock
        self._claims: tuple[FleetView, int, Overlay] | None = None

    @property
    def view(self) -> FleetView:
        """The writer's view. Not to be changed, nor kept."""
        return self._view()

    def claims(self) -> Overlay:
        """What replicas claim of nodes; made anew, in slices, when something changed that counts."""
        view, version = self._view(), self._view().version
        if self._claims is not None and self._claims[0] is view and self._claims[1] == version:
            return self._claims[2]
        claims = Overlay(view, later=True)
        finish(claims.fill(view, Measured(self._clock.monotonic)))
        self._claims = (view, version, claims)
        return claims

    # ------------------------------------------------------------ nodes

    def node_ids(
        self,
        *,
        status: str | None = None,
        within: str | None = None,
        labels: Sequence[str] = (),
        name: str | None = None,
        cordoned: bool | None = None,
    ) -> list[str]:
        """Ids of the nodes that fit all of what is given, in order. ``within`` is a domain
        such as ``rack=r12``, ``labels`` are ``NAME=VALUE``, ``name`` is part of the id.
        Raises ``Refused``."""
        wanted: list[tuple[str, str]] = []
        for place, text in [("domain", within), *(("label", text) for text in labels)]:
            if text is not None:
                found = domain(text)
                if isinstance(found, str):
                    raise invalid(place, found)
                wanted.append(found)
        return sorted(
            node.id
            for node in self._view().nodes.values()
            if (status is None or node.shown == status)
            and (cordoned is None or (node.cordon is not None) == cordoned)
            and (name is None or name in node.id)
            and (not wanted or _has(node, wanted))
        )

    def nodes(self, ids: Iterable[str]) -> Iterator[Plain]:
        """These nodes as they are when they are asked for; those that went are left out."""
        view, claims = self._view(), self.claims()
        for node_id in ids:
            node = view.nodes.get(node_id)
            if node is not None:
                yield self._node(view, node, claims)

    def node(self, node_id: str) -> Plain:
        """One node. Raises ``Refused``."""
        view = self._view()
        return self._node(view, self._known_node(node_id), self.claims())

    def inside(self, label: str, value: str) -> list[str]:
        """Ids of the nodes that have a label with this value."""
        return sorted(node.id for node in self._view().nodes.values() if node.labels.get(label) == value)

    def cordon(self, asked: Asked, node_id: str, reason: str) -> Plain:
        """Place nothing new on a node (PLC-03). Raises ``Refused``."""
        at = self._clock.now().isoformat(timespec="seconds")
        return self._set_cordon(asked, node_id, Cordon(reason, asked.actor, at))

    def uncordon(self, asked: Asked, node_id: str) -> Plain:
        """End a node's cordon. Raises ``Refused``."""
        return self._set_cordon(asked, node_id, None)

    def _set_cordon(self, asked: Asked, node_id: str, cordon: Cordon | None) -> Plain:
        self._known_node(node_id)

        def work(tx: Transaction) -> Changed[None]:
            before = _stored_cordon(tx, node_id)
            tx.intents.set_cordon(node_id, cordon)
            return Changed(None, "cordon", node_id, before and before.reason, cordon and cordon.reason)

        try:
            self._changes.make(asked, work)
        except Refused as error:
            learn_if_uncertain(
                error,
                self._store,
                lambda tx: _stored_cordon(tx, node_id),
                lambda kept: self._inbox.force(CordonSet(node_id, kept)),
            )
            raise
        self._inbox.force(CordonSet(node_id, cordon))
        return {**self.node(node_id), "cordon": shown.cordon(cordon)}

    def _known_node(self, node_id: str) -> NodeView:
        nodes = self._view().nodes
        if node_id not in nodes:
            raise not_found("node", node_id, did_you_mean(node_id, nodes))
        return nodes[node_id]

    def measurements(self, node: NodeView, now: float) -> Measurements:
        """A node's measurements if they are fresh, else all unknown."""
        fresh = node.measured_at is not None and now - node.measured_at <= FRESH
        return node.measurements if fresh and node.measurements is not None else UNMEASURED

    def _node(self, view: FleetView, node: NodeView, claims: Overlay) -> Plain:
        now = self._clock.monotonic()
        replicas = [
            replica.id
            for replica in view.replicas.on_node(node.id)
            if any(shard.live and shard.node_id == node.id for shard in replica.shards.values())
        ]
        measured = self.measurements(node, now)
        return shown.node(view, node, claims=claims.on(node.id), measured=measured, replicas=replicas, now=now)

    # ------------------------------------------------------------ replicas

    def replica_ids(
        self, principal: Principal, *, model: str | None = None, node: str | None = None, state: str | None = None
    ) -> list[str]:
        """Ids of the replicas that fit all of what is given and that the principal may
        see, in order, which is by model. ``model`` may be an alias. Raises ``Refused`` for a
        model that does not exist."""
        view = self._view()
        name = self._replicated(principal, model) if model is not None else None
        among = view.replicas.values() if name is None else view.replicas.of_model(name)
        return sorted(
            replica.id
            for replica in among
            if (state is None or replica.state == state)
            and (node is None or any(shard.node_id == node for shard in replica.shards.values()))
            and principal.sees(self._owner(replica))
        )

    def _replicated(self, principal: Principal, model: str) -> str:
        """The name of a model of the catalog, or of one that only has replicas left."""
        if any(principal.sees(self._owner(row)) for row in self._view().replicas.of_model(model)):
            return model
        return self.known_model(principal, model).name

    def replicas(self, ids: Iterable[str], *, rejected: bool = True) -> Iterator[Plain]:
        """These replicas as they are when they are asked for; those that went are left out.
        ``rejected``: with the candidates turned down for them."""
        for replica_id in ids:
            replica = self._view().replicas.get(replica_id)
            if replica is not None:
                yield self._replica(replica, rejected=rejected)

    def replica(self, principal: Principal, replica_id: str) -> Plain:
        """One replica. Raises ``Refused``."""
        return self._replica(self._known_replica(principal, replica_id))

    def restart(self, asked: Asked, which: Which, *, in_place: bool, reason: str) -> list[ReplicaView]:
        """Have replicas replaced, one at a time per model (REC-30); those that are queued.
        Raises ``Refused``."""
        chosen = self._chosen(asked.principal, which)
        ids = tuple(replica.id for replica in chosen)

        def work() -> Changed[list[ReplicaView]]:
            if ids and not self._inbox.offer(RestartRequested(ids, asked.actor, reason, in_place)):
                raise busy()
            order = {"replicas": list(ids[:MAX_AUDITED]), "in_place": in_place, "reason": reason}
            return Changed(chosen, "restart", str(which), None, order)

        return self._changes.carry_out(asked, work)

    def restarting(self, principal: Principal) -> list[ReplicaView]:
        """Replicas whose restart was asked for and is not over."""
        replicas = self._view().replicas.values()
        return [row for row in replicas if row.restart is not None and principal.sees(self._owner(row))]

    def _chosen(self, principal: Principal, which: Which) -> list[ReplicaView]:
        view = self._view()
        if which.replicas:
            return self._named(principal, which.replicas)
        if which.model is not None:
            model = self.known_model(principal, which.model)
            if not principal.reaches(model.owner):
                raise Refused("forbidden", f"{principal.user} does not own the model {model.name}", status=403)
            found = view.replicas.of_model(model.name)
        else:
            found = [row for row in view.replicas.values() if which.all or row.stale]
        return [row for row in found if _stays(row) and principal.reaches(self._owner(row))]

    def _named(self, principal: Principal, ids: Sequence[str]) -> list[ReplicaView]:
        found: list[ReplicaView] = []
        faults: list[Fault] = []
        for index, replica_id in enumerate(ids):
            place = f"replicas[{index}]"
            try:
                replica = self._known_replica(principal, replica_id)
            except Refused as error:
                faults.append(Fault(place, str(error)))
                continue
            if not principal.reaches(self._owner(replica)):
                faults.append(Fault(place, f"{principal.user} does not own the model {replica.model}"))
            elif not _stays(replica):
                faults.append(Fault(place, f"{replica.id} is {replica.state} and goes anyway"))
            else:
                found.append(replica)
        if faults:
            raise Refused("validation_failed", "the request has faults", status=422, faults=faults)
        return found

    def _known_replica(self, principal: Principal, replica_id: str) -> ReplicaView:
        replica = self._view().replicas.get(replica_id)
        if replica is None or not principal.sees(self._owner(replica)):
            known = [row.id for row in self._view().replicas.values() if principal.sees(self._owner(row))]
            raise not_found("replica", replica_id, did_you_mean(replica_id, known))
        return replica

    def _owner(self, replica: ReplicaView) -> str:
        model = self._view().catalog.models.get(replica.model)
        return model.owner if model else ""

    def _replica(self, replica: ReplicaView, *, rejected: bool = True) -> Plain:
        now = self._clock.monotonic()
        nodes = (self._view().nodes.get(shard.node_id) for shard in replica.shards.values())
        uses = {
            (use.replica_id, use.rank): use
            for node in nodes
            if node is not None
            for use in self.measurements(node, now).shards
        }
        return shown.replica(self._view(), replica, uses, now, rejected=rejected)

    # ------------------------------------------------------------ models

    def models(self, names: Iterable[str] | None = None) -> Iterator[Plain]:
        """Models of the catalog as they are now: these, or all by name."""
        view = self._view()
        for name in sorted(view.catalog.models) if names is None else names:
            model = view.catalog.models.get(name)
            if model is not None:
                yield self.shown_model(model, view.replicas.of_model(name))

    def model(self, name: str) -> Plain:
        """One model of the catalog."""
        view = self._view()
        return self.shown_model(view.catalog.models[name], view.replicas.of_model(name))

    def state(self, name: str) -> str | None:
        """What routers are told of a model's state; ``None`` before they are told anything."""
        routed = self._publisher.model(name)
        return routed.state if routed else None

    def shown_model(self, model: Model, replicas: list[ReplicaView]) -> Plain:
        """A model, which need not be in force yet."""
        routed = self._publisher.model(model.name)
        return shown.model(self._view(), model, replicas=replicas, routed=routed, now=self._clock.monotonic())

    def explain(self, principal: Principal, name: str) -> Plain:
        """Why a model is where it is, candidate by candidate (PLC-24). Raises ``Refused``."""
        model = self.known_model(principal, name)
        told = finish(explaining(self._view(), model.name, self._clock.monotonic(), Measured(self._clock.monotonic)))
        return {
            "model": told.model,
            "state": told.state,
            "sentence": told.sentence,
            "wanted": told.wanted,
            "live": told.live,
            "ready": told.ready,
            "blockers": [shown.reason(reason) for reason in told.blockers],
            "candidates": (shown.verdict(verdict) for verdict in told.verdicts),
        }

    def retry(self, asked: Asked, name: str) -> Plain:
        """Try a model again now: ends its backoff or parking (REC-05). Raises ``Refused``."""
        model = self.known_model(asked.principal, name)
        if not asked.principal.reaches(model.owner):
            raise Refused("forbidden", f"{asked.principal.user} does not own the model {model.name}", status=403)
        if model.scaling.mode == "off":
            raise conflict(f"{model.name} is off (scaling max 0): nothing of it is to be started")

        def work() -> Changed[Plain]:
            if not self._inbox.offer(RetryRequested(model.name, asked.actor)):
                raise busy()
            return Changed(self.model(model.name), "retry", model.name)

        return self._changes.carry_out(asked, work)

    def known_model(self, principal: Principal, name: str) -> Model:
        """A model by its name or alias, if the principal may see it. Raises ``Refused``."""
        models = [row for row in self._view().catalog.models.values() if principal.sees(row.owner)]
        model = find_model(models, name)
        if model is None:
            known = [label for row in models for label in (row.name, *row.aliases)]
            raise not_found("model", name, did_you_mean(name, known))
        return model


def find_model(models: Iterable[Model], name: str) -> Model | None:
    """The model of that name, else the one that has it as an alias."""
    aliased = None
    for model in models:
        if model.name == name:
            return model
        if name in model.aliases:
            aliased = model
    return aliased


def _has(node: NodeView, wanted: Sequence[tuple[str, str]]) -> bool:
    labels = node.labels
    return all(labels.get(label) == value for label, value in wanted)


def _stays(replica: ReplicaView) -> bool:
    going = replica.state in ("draining", "stopping", "failed", "gone")
    return not (going or replica.unwanted or replica.surplus)


def _stored_cordon(tx: Transaction, node_id: str) -> Cordon | None:
    intent = tx.intents.nodes().get(node_id)
    return intent.cordon if intent else None
