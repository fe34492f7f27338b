"""Nodes, replicas and models as plain values for people: ``None`` = unknown, ages and
durations in seconds, sizes in bytes."""

from collections.abc import Mapping
from typing import Any

from controlplane.catalog.model import Model, Profile
from controlplane.events import Cordon
from controlplane.fleet.generations import outdated
from controlplane.planning.overlay import Claims
from controlplane.planning.view import FleetView, ModelHealth, NodeView, Reason, ReplicaView, ShardView, Verdict
from controlplane.planning.wanted import wanted
from controlplane.services.names import location
from llmgw.wire.messages import DeviceUse, Measurements, ShardUse
from llmgw.wire.routing import RoutedModel

Plain = dict[str, Any]

Uses = Mapping[tuple[str, int], ShardUse]
"""What shards were seen to use, by replica and rank."""


def node(
    view: FleetView, found: NodeView, *, claims: Claims, measured: Measurements, replicas: list[str], now: float
) -> Plain:
    """One node, with what replicas claim of it and what was measured."""
    inventory = found.inventory
    uses = {use.uuid: use for use in measured.devices}
    labels = dict(found.labels)
    return {
        "id": found.id,
        "status": found.shown,
        "status_seconds": now - found.since,
        "last_heard_seconds": _age(found.last_heard, now),
        "enrolled": found.enrolled,
        "cordon": cordon(found.cordon),
        "holds": [{"domain": domain, **(cordon(hold) or {})} for domain, hold in view.held(found)],
        "agent_version": found.agent_version,
        "address": inventory and inventory.address,
        "hostname": inventory and inventory.hostname,
        "os": inventory and inventory.os,
        "kernel": inventory and inventory.kernel,
        "arch": inventory and inventory.arch,
        "driver": inventory and inventory.driver,
        "labels": labels if inventory or labels else None,
        "labels_set": dict(found.own_labels) or None,
        "location": location(labels) or None,
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


def cordon(found: Cordon | None) -> Plain | None:
    """Who keeps something off, since when and why."""
    return {"reason": found.reason, "actor": found.actor, "at": found.at} if found else None


def replica(view: FleetView, found: ReplicaView, uses: Uses, now: float, *, rejected: bool = True) -> Plain:
    """One replica with its shards; ``rejected``: and the candidates turned down for it."""
    return {
        "id": found.id,
        "model": found.model,
        "profile": found.profile,
        "fingerprint": found.fingerprint,
        "stale": found.stale,
        "stale_because": stale_because(view, found),
        "restart": found.restart,
        "restart_asked": found.restarting and found.restarting.asked,
        "replacement": found.restarting and found.restarting.replacement,
        "state": found.state,
        "state_seconds": now - found.since,
        "age_seconds": now - found.created,
        "reason": found.reason,
        "rejected": [verdict(one) for one in found.rejected] if rejected else None,
        "shards": [
            _shard(shard, uses.get((found.id, shard.spec.rank)), now) for _, shard in sorted(found.shards.items())
        ],
    }


def stale_because(view: FleetView, found: ReplicaView) -> str | None:
    """Why a replica would be started otherwise now (CAT-08, SEC-08)."""
    if not found.stale:
        return None
    return outdated(view, found) or "its profile has changed since it was started"


def model(
    view: FleetView, found: Model, *, replicas: list[ReplicaView], routed: RoutedModel | None, now: float
) -> Plain:
    """One model: what it should be, what it is, and what went wrong last."""
    health = view.health.get(found.name) or ModelHealth()
    scaling = found.scaling
    return {
        "name": found.name,
        "aliases": list(found.aliases),
        "state": routed.state if routed else None,
        "reason": (routed.reason if routed else "") or None,
        "origin": found.origin or None,
        "owner": found.owner or None,
        "class": found.service_class,
        "role": found.role,
        "fallbacks": list(found.fallbacks) or None,
        "external": found.external
        and {
            "url": found.external.url,
            "model": found.external.model,
            "api_key_file": found.external.api_key_file,
            "problem": view.provider_keys.get(found.external.api_key_file or "") or None,
        },
        "adapter": found.adapter and {"base": found.adapter.base, "source": found.adapter.source},
        "resources": found.resources
        and {"cpu_cores": found.resources.cpu_cores, "memory_bytes": found.resources.memory_bytes},
        "scaling": {
            "min": scaling.min,
            "max": scaling.max,
            "mode": scaling.mode,
            "idle_timeout": scaling.idle_timeout,
        },
        "wanted": wanted(view, found.name).lower if found.name in view.catalog.models else scaling.min,
        "live": sum(1 for r in replicas if r.state in ("placing", "starting", "ready")),
        "ready": sum(1 for r in replicas if r.state == "ready"),
        "stale": sum(1 for r in replicas if r.stale and r.state in ("starting", "ready")),
        "replicas": sorted(r.id for r in replicas if r.state != "gone"),
        "failures": health.failures,
        "parked": health.parked,
        "quarantined": health.quarantined,
        "backoff_seconds": max(0.0, health.backoff_until - now) if health.backoff_until else None,
        "last_error": health.last_error,
        "last_error_code": health.last_error_code,
        "last_error_seconds": _age(health.last_error_at, now),
        "last_output": list(health.last_exit.tail) if health.last_exit else None,
        "profiles": [_profile(profile) for profile in found.profiles],
    }


def reason(found: Reason) -> Plain:
    """Why a candidate was turned down."""
    return {
        "code": found.code,
        "message": found.message,
        "needed": found.needed,
        "available": found.available,
    }


def verdict(found: Verdict) -> Plain:
    """A candidate and whether it fits."""
    return {
        "profile": found.profile,
        "node": found.node_id,
        "fits": not found.reasons,
        "chosen": found.chosen,
        "reasons": [reason(one) for one in found.reasons],
        "score": [{"term": name, "value": value} for name, value in found.score],
    }


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


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


def _shard(shard: ShardView, use: ShardUse | None, now: float) -> Plain:
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
        "used_cores": use and use.cpu_cores,
        "used_memory_bytes": use and use.memory_bytes,
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


def _profile(profile: Profile) -> Plain:
    return {
        "name": profile.name,
        "engine": profile.engine,
        "source": profile.source,
        "priority": profile.priority,
        "gpu_class": profile.gpu_class,
        "gpus": profile.gpus,
        "nodes": profile.nodes,
        "tp": profile.tp,
        "pp": profile.pp,
        "dp": profile.dp,
        "launch_mode": profile.launch_mode,
        "keep_within": profile.keep_within,
        "power_watts": profile.power_watts,
        "memory_bytes": profile.memory_bytes,
        "cpu_cores": profile.cpu_cores,
        "node_selector": dict(profile.node_selector),
        "context": profile.context,
        "slots": profile.slots,
        "args": list(profile.args),
        "weight": profile.weight,
        "max_inflight": profile.max_inflight,
        "target_waiting": profile.target_waiting,
        "kv_ceiling": profile.kv_ceiling,
        "startup_timeout": profile.startup_timeout,
        "fingerprint": profile.fingerprint,
    }
