"""What state a model is in and why, in one sentence: for routers, status and explain."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.catalog.model import External, Model
from controlplane.planning.view import FleetView, ModelHealth, ReplicaView
from controlplane.planning.wanted import counts, stopped
from controlplane.planning.words import IN_DOUBT
from llmgw.wire.routing import ModelState

SOON = 5
LATER = 30
"""Seconds after which a client may ask again: something is coming; somebody must act."""


@dataclass(frozen=True, slots=True)
class Standing:
    """State for ``RoutedModel``; ``reason`` holds no running time, so that a table
    changes only when something does."""

    state: ModelState
    reason: str
    retry_after: int | None = None


def routable(view: FleetView, replica: ReplicaView) -> bool:
    """Whether requests may be sent to a replica: ready, and its node not lost, unless it
    answers routers all the same (REC-10)."""
    leader = replica.shards.get(0)
    if replica.state != "ready" or replica.surplus or leader is None:
        return False
    node = view.nodes.get(leader.node_id)
    return node is not None and (node.status != "lost" or replica.spared)


def standing(view: FleetView, model: Model, replicas: Sequence[ReplicaView]) -> Standing:
    """The state of a model whose replicas (all of them, in any state) are given."""
    name = model.name
    health = view.health.get(name) or ModelHealth()
    if view.serving.stopped:
        return Standing("stopped", stopped(view))
    if model.external is not None:
        return _external(view, name, model.external)
    if model.adapter is not None:
        words = f"model {name} is an adapter on {model.adapter.base}; adapters are not loaded by this release"
        return Standing("unplaceable", words, LATER)
    if not model.profiles:
        return Standing("unplaceable", f"model {name} has no profile: nothing says how to run it", LATER)
    if model.scaling.mode == "off":
        return Standing("off", f"model {name} is off: set its scaling to serve it")
    ready = sum(routable(view, replica) for replica in replicas)
    served = view.vouched.get(name)
    if ready:
        more = f", {served} more on nodes that are out of sight, routers say" if served else ""
        return Standing("ready", f"{ready} of {max(model.scaling.min, ready)} replicas ready{more}")
    coming = [replica for replica in replicas if counts(replica) and replica.state != "stopping"]
    if coming:
        first = min(coming, key=lambda replica: replica.id)
        nodes = sorted({shard.node_id for shard in first.shards.values()})
        detail = next((shard.detail for shard in first.shards.values() if shard.detail), "")
        words = f"model {name} is {first.state} on {', '.join(nodes)}{': ' + detail if detail else ''}"
        return Standing("loading", words + _again(health), SOON)
    if health.quarantined is not None:
        return Standing("unplaceable", f"model {name} is quarantined: {health.quarantined}", LATER)
    if health.parked:
        words = f"model {name} failed {health.failures} times in a row and is parked; last error: {health.last_error}"
        return Standing("parked", words)
    if name in view.in_place:
        words = f"model {name} is restarted in its place: replica {view.in_place[name]} goes before the new one comes"
        return Standing("loading", words, SOON)
    if view.settling.active:
        return Standing("loading", "the control plane has just started and waits for its nodes", SOON)
    if served:
        words = f"model {name} is served by {served} of its replicas on nodes that are out of sight, routers say"
        return Standing("loading", words, SOON)
    if model.scaling.mode == "on-demand":
        return Standing("unplaceable", f"model {name} is on demand (min 0) and nothing has loaded it", LATER)
    if health.backoff_until is not None:
        pause = health.backoff_until - (health.last_error_at or health.backoff_until)
        words = f"model {name} failed ({health.failures} in a row) and is tried again soon; {_last(health)}"
        return Standing("loading", words, max(SOON, round(pause)))
    if view.lease.doubtful:
        return Standing("unplaceable", f"model {name} is not placed now: {IN_DOUBT}", LATER)
    if health.refusal is not None:
        return Standing("unplaceable", f"model {name} cannot be placed: {health.refusal.message}", LATER)
    return Standing("loading", f"model {name} is about to be placed", SOON)


def _external(view: FleetView, name: str, external: External) -> Standing:
    """A provider is never scraped nor stale: it is ready when its key is at hand (CAT-10)."""
    file = external.api_key_file
    if file is None:
        return Standing("ready", "served by an external provider")
    fault = view.provider_keys.get(file)
    if fault is None:
        return Standing("loading", f"the key of external model {name} is being read", SOON)
    if fault:
        return Standing("unplaceable", f"external model {name} has no key: {fault}", LATER)
    return Standing("ready", "served by an external provider")


def _last(health: ModelHealth) -> str:
    return f"last error: {health.last_error}" if health.last_error else "no error is known"


def _again(health: ModelHealth) -> str:
    return f" (after {health.failures} failures; {_last(health)})" if health.failures else ""
