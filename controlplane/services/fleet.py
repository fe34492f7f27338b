"""Nodes, replicas and models as the API shows them: plain values, ``None`` = unknown.

Ages and durations are seconds, sizes bytes. Everything is read from the writer's view
between two of its events, so one answer is of one moment.
"""

from collections.abc import Callable
from typing import Any

from controlplane.catalog.model import Model, Profile
from controlplane.events import Cordon, CordonSet, RetryRequested
from controlplane.inbox import Inbox
from controlplane.planning.explain import explain
from controlplane.planning.overlay import Claims, Overlay
from controlplane.planning.view import FleetView, NodeView, Reason, ReplicaView, ShardView, Verdict
from controlplane.publish.table import Publisher
from controlplane.services.errors import Refused, busy, not_found, store_unavailable
from controlplane.services.recovery import once_answered
from controlplane.store.port import StoreUnavailable
from controlplane.store.writer import StoreWriter
from llmgw.runtime.clock import Clock
from llmgw.runtime.settings import did_you_mean
from llmgw.wire.messages import DeviceUse, Measurements

FRESH = 60.0
"""Older measurements are left out rather than repeated (AGT-02)."""

Plain = dict[str, Any]


class Fleet:
    """Reads of the fleet, and the orders people give about it."""

    def __init__(
        self, view: Callable[[], FleetView], publisher: Publisher, inbox: Inbox, store: StoreWriter, clock: Clock
    ) -> None:
        self._view = view
        self._publisher = publisher
        self._inbox = inbox
        self._store = store
        self._clock = clock

    @property
    def view(self) -> FleetView:
        """The writer's view. Not to be changed, nor kept."""
        return self._view()

    # ------------------------------------------------------------ nodes

    def nodes(self) -> list[Plain]:
        """Every enrolled node, by id."""
        view = self._view()
        overlay = Overlay(view)
        replicas = self._replicas_by_node(view)
        return [self._node(view.nodes[name], overlay.on(name), replicas.get(name, [])) for name in sorted(view.nodes)]

    def node(self, node_id: str) -> Plain:
        """One node. Raises ``Refused``."""
        view = self._view()
        node = self._known_node(view, node_id)
        return self._node(node, Overlay(view).on(node_id), self._replicas_by_node(view).get(node_id, []))

    def cordon(self, node_id: str, reason: str, actor: str) -> Plain:
        """Place nothing new on a node (PLC-03). Raises ``Refused``."""
        cordon = Cordon(reason, actor, self._clock.now().isoformat(timespec="seconds"))
        return self._set_cordon(node_id, cordon)

    def uncordon(self, node_id: str) -> Plain:
        """End a node's cordon. Raises ``Refused``."""
        return self._set_cordon(node_id, None)

    def _set_cordon(self, node_id: str, cordon: Cordon | None) -> Plain:
        self._known_node(self._view(), node_id)
        try:
            self._store.call(lambda store: store.set_cordon(node_id, cordon))
        except StoreUnavailable as error:
            if error.uncertain:
                once_answered(
                    self._store,
                    lambda store: store.cordons().get(node_id),
                    lambda kept: self._inbox.force(CordonSet(node_id, kept)),
                )
            raise store_unavailable(error) from error
        self._inbox.force(CordonSet(node_id, cordon))
        shown = self.node(node_id)
        shown["cordon"] = _cordon(cordon)
        return shown

    def _known_node(self, view: FleetView, node_id: str) -> NodeView:
        node = view.nodes.get(node_id)
        if node is None:
            raise not_found("node", node_id, did_you_mean(node_id, view.nodes))
        return node

    @staticmethod
    def _replicas_by_node(view: FleetView) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for replica in view.replicas.values():
            for shard in replica.shards.values():
                if shard.live:
                    found.setdefault(shard.node_id, []).append(replica.id)
        return found

    def measurements(self, node: NodeView, now: float) -> Measurements:
        """A node's measurements if they are fresh, else all unknown."""
        fresh = node.measured_at is not None and now - node.measured_at <= FRESH
        return node.measurements if fresh and node.measurements is not None else Measurements()

    def _node(self, node: NodeView, claims: Claims, replicas: list[str]) -> Plain:
        now = self._clock.monotonic()
        inventory, measured = node.inventory, self.measurements(node, now)
        uses = {use.uuid: use for use in measured.devices}
        return {
            "id": node.id,
            "status": node.shown,
            "status_seconds": now - node.since,
            "last_heard_seconds": _age(node.last_heard, now),
            "enrolled": node.enrolled,
            "cordon": _cordon(node.cordon),
            "agent_version": node.agent_version,
            "address": inventory and inventory.address,
            "hostname": inventory and inventory.hostname,
            "os": inventory and inventory.os,
            "kernel": inventory and inventory.kernel,
            "arch": inventory and inventory.arch,
            "driver": inventory and inventory.driver,
            "labels": inventory and inventory.labels,
            "notes": inventory and list(inventory.notes),
            "cpu": {
                "model": inventory and inventory.cpu.model,
                "count": inventory and inventory.cpu.count,
                "claimed_cores": claims.cores,
                "percent": measured.cpu_percent,
                "load1": measured.load1,
            },
            "memory": {
                "total_bytes": inventory and inventory.memory_bytes,
                "claimed_bytes": claims.memory,
                "used_bytes": measured.memory_used_bytes,
                "available_bytes": measured.memory_available_bytes,
            },
            "devices": [
                {
                    "uuid": device.uuid,
                    "kind": device.kind,
                    "index": device.index,
                    "name": device.name,
                    "device_class": device.device_class,
                    "memory_bytes": device.memory_bytes,
                    "claimed_by": claims.devices.get(device.uuid),
                    "excluded": device.excluded,
                    **_device_use(uses.get(device.uuid)),
                }
                for device in (inventory.devices if inventory else ())
            ],
            "engines": inventory
            and inventory.engines is not None
            and [
                {"name": engine.name, "state": engine.state, "version": engine.version, "detail": engine.detail}
                for engine in inventory.engines
            ],
            "replicas": sorted(replicas),
        }

    # ------------------------------------------------------------ replicas

    def replicas(self, model: str | None = None, node: str | None = None) -> list[Plain]:
        """Replicas, by model and id; of one model or one node if given."""
        now = self._clock.monotonic()
        return [
            _replica(replica, now)
            for replica in sorted(self._view().replicas.values(), key=lambda replica: (replica.model, replica.id))
            if (model is None or replica.model == model)
            and (node is None or any(shard.node_id == node for shard in replica.shards.values()))
        ]

    def replica(self, replica_id: str) -> Plain:
        """One replica. Raises ``Refused``."""
        replicas = self._view().replicas
        if replica_id not in replicas:
            raise not_found("replica", replica_id, did_you_mean(replica_id, replicas))
        return _replica(replicas[replica_id], self._clock.monotonic())

    # ------------------------------------------------------------ models

    def models(self) -> list[Plain]:
        """Every model of the catalog, by name."""
        view = self._view()
        replicas: dict[str, list[ReplicaView]] = {}
        for replica in view.replicas.values():
            replicas.setdefault(replica.model, []).append(replica)
        return [self._model(view, view.catalog.models[n], replicas.get(n, [])) for n in sorted(view.catalog.models)]

    def model(self, name: str) -> Plain:
        """One model, by name or alias. Raises ``Refused``."""
        view = self._view()
        model = self._known_model(view, name)
        return self._model(view, model, [r for r in view.replicas.values() if r.model == model.name])

    def explain(self, name: str) -> Plain:
        """Why a model is where it is, candidate by candidate (PLC-24). Raises ``Refused``."""
        view = self._view()
        model = self._known_model(view, name)
        told = explain(view, model.name, self._clock.monotonic())
        return {
            "model": told.model,
            "state": told.state,
            "sentence": told.sentence,
            "wanted": told.wanted,
            "live": told.live,
            "ready": told.ready,
            "blockers": [_reason(reason) for reason in told.blockers],
            "candidates": [_verdict(verdict) for verdict in told.verdicts],
        }

    def retry(self, name: str, actor: str) -> Plain:
        """Try a model again now: ends its backoff or parking (REC-05). Raises ``Refused``."""
        view = self._view()
        model = self._known_model(view, name)
        if model.scaling.mode == "off":
            raise Refused(
                "conflict", f"{model.name} is off (scaling max 0): nothing of it is to be started", status=409
            )
        if not self._inbox.offer(RetryRequested(model.name, actor)):
            raise busy()
        return self.model(model.name)

    @staticmethod
    def _known_model(view: FleetView, name: str) -> Model:
        models = view.catalog.models
        if name in models:
            return models[name]
        aliases = {alias: model for model in models.values() for alias in model.aliases}
        if name in aliases:
            return aliases[name]
        raise not_found("model", name, did_you_mean(name, [*models, *aliases]))

    def _model(self, view: FleetView, model: Model, replicas: list[ReplicaView]) -> Plain:
        now = self._clock.monotonic()
        health = view.health.get(model.name)
        routed = self._publisher.model(model.name)
        exited = health.last_exit if health else None
        return {
            "name": model.name,
            "aliases": list(model.aliases),
            "state": routed.state if routed else None,
            "reason": (routed.reason if routed else "") or None,
            "scaling": {"min": model.scaling.min, "max": model.scaling.max, "mode": model.scaling.mode},
            "wanted": model.scaling.min,
            "live": sum(1 for r in replicas if r.state in ("placing", "starting", "ready")),
            "ready": sum(1 for r in replicas if r.state == "ready"),
            "replicas": sorted(r.id for r in replicas if r.state != "gone"),
            "failures": health.failures if health else 0,
            "parked": health.parked if health else False,
            "quarantined": health.quarantined if health else None,
            "backoff_seconds": max(0.0, health.backoff_until - now) if health and health.backoff_until else None,
            "last_error": health.last_error if health else None,
            "last_error_code": health.last_error_code if health else None,
            "last_error_seconds": _age(health.last_error_at, now) if health else None,
            "last_output": list(exited.tail) if exited else None,
            "profiles": [_profile(profile) for profile in model.profiles],
        }


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


def _cordon(cordon: Cordon | None) -> Plain | None:
    return {"reason": cordon.reason, "actor": cordon.actor, "at": cordon.at} if cordon else None


def _device_use(use: DeviceUse | None) -> Plain:
    if use is None:
        return {}
    return {
        "memory_used_bytes": use.memory_used_bytes,
        "utilization_percent": use.utilization_percent,
        "temperature_celsius": use.temperature_celsius,
        "power_watts": use.power_watts,
        "foreign_processes": list(use.foreign_processes),
    }


def _replica(replica: ReplicaView, now: float) -> Plain:
    return {
        "id": replica.id,
        "model": replica.model,
        "profile": replica.profile,
        "fingerprint": replica.fingerprint,
        "stale": replica.stale,
        "state": replica.state,
        "state_seconds": now - replica.since,
        "age_seconds": now - replica.created,
        "reason": replica.reason,
        "rejected": [_verdict(verdict) for verdict in replica.rejected],
        "shards": [_shard(shard, now) for _, shard in sorted(replica.shards.items())],
    }


def _shard(shard: ShardView, now: float) -> Plain:
    spec = shard.spec
    return {
        "rank": spec.rank,
        "incarnation": spec.incarnation,
        "node": shard.node_id,
        "phase": shard.phase,
        "phase_seconds": now - shard.since,
        "engine": spec.engine,
        "host": spec.host,
        "port": spec.port,
        "devices": list(spec.devices),
        "cpu_cores": spec.cpu_cores,
        "memory_bytes": spec.memory_bytes,
        "pid": shard.pid,
        "adopted": shard.adopted,
        "detail": shard.detail or None,
        "exit": shard.exit
        and {
            "code": shard.exit.code,
            "message": shard.exit.message,
            "exit_status": shard.exit.exit_status,
            "tail": list(shard.exit.tail),
        },
    }


def _reason(reason: Reason) -> Plain:
    return {
        "code": reason.code,
        "message": reason.message,
        "needed": reason.needed,
        "available": reason.available,
    }


def _verdict(verdict: Verdict) -> Plain:
    return {
        "profile": verdict.profile,
        "node": verdict.node_id,
        "fits": not verdict.reasons,
        "chosen": verdict.chosen,
        "reasons": [_reason(reason) for reason in verdict.reasons],
        "score": [{"term": name, "value": value} for name, value in verdict.score],
    }


def _profile(profile: Profile) -> Plain:
    return {
        "name": profile.name,
        "engine": profile.engine,
        "source": profile.source,
        "priority": profile.priority,
        "gpu_class": profile.gpu_class,
        "gpus": profile.gpus,
        "memory_bytes": profile.memory_bytes,
        "cpu_cores": profile.cpu_cores,
        "node_selector": dict(profile.node_selector),
        "context": profile.context,
        "slots": profile.slots,
        "startup_timeout": profile.startup_timeout,
        "fingerprint": profile.fingerprint,
    }
