"""Generations of engine keys in use: who needs a restart, which are needed by nothing (SEC-08)."""

from collections.abc import Iterable, Mapping

from controlplane.events import DropEngineKeys
from controlplane.fleet.context import Fleet
from controlplane.planning.view import FleetView, NodeView, ReplicaView
from controlplane.planning.words import listing

TOLD = 3
"""How many nodes an explanation names."""

LOOK_EVERY = 5.0
"""Seconds between two looks whether a generation is unused."""


def outdated(view: FleetView, replica: ReplicaView) -> str | None:
    """Why a replica's key is not the one that it would be started with now, if so: it
    serves on, and a restart gives it the current one (SEC-08)."""
    if not view.key_generation:
        return None
    for rank in sorted(replica.shards):
        spec = replica.shards[rank].spec
        if not spec.keyed:
            return "its engine was started without a key"
        if spec.key_generation != view.key_generation:
            return f"its engine's key is of generation {spec.key_generation}, the current one is {view.key_generation}"
    return None


def users(view: FleetView) -> dict[str, int]:
    """How many replicas have a shard whose engine runs, or may run, with a key of each
    generation."""
    found: dict[str, int] = {}
    for replica in view.replicas.values():
        held = {shard.spec.key_generation for shard in replica.shards.values() if shard.live and shard.spec.keyed}
        for generation in held:
            found[generation] = found.get(generation, 0) + 1
    return found


def kept(view: FleetView, generation: str, in_use: Mapping[str, int]) -> str:
    """Why a generation that is not the current one must be kept, or "": no engine that we
    know of has a key of it, and every enrolled node has told what it runs."""
    if count := in_use.get(generation, 0):
        run = "replica still runs" if count == 1 else "replicas still run"
        return f"{count} {run} with it: llmgw ctl restart --stale"
    untold = sorted(node.id for node in view.nodes.values() if _untold(node))
    if untold:
        return f"an engine may run with it on {listing(untold, TOLD)}, which cannot be asked now"
    return ""


def unused(view: FleetView, generations: Iterable[str]) -> tuple[str, ...]:
    """Those of ``generations`` that nothing needs any more (see ``kept``)."""
    older = {generation: None for generation in generations if generation != view.key_generation}
    if any(_untold(node) for node in view.nodes.values()):
        return ()
    for replica in view.replicas.values():
        for shard in replica.shards.values():
            if shard.spec.key_generation in older and shard.live:
                del older[shard.spec.key_generation]
        if not older:
            break
    return tuple(older)


def _untold(node: NodeView) -> bool:
    """Whether a node may run what we do not know of."""
    return node.inventory is None or node.status == "lost"


def tick(fleet: Fleet, now: float) -> None:
    """Have generations forgotten that nothing uses any more. Looks at every replica, so not
    with every pass."""
    secrets = fleet.keys.secrets
    if len(secrets) < 2 or fleet.view.settling.active or fleet.view.lease.doubtful or now < fleet.look_at_keys:
        return
    fleet.look_at_keys = now + LOOK_EVERY
    dropped = tuple(generation for generation in unused(fleet.view, secrets) if generation not in fleet.dropping)
    if dropped:
        fleet.dropping |= frozenset(dropped)
        fleet.note("engine-secret", f"no engine uses generation {listing(dropped)} any more: it is forgotten")
        fleet.out.append(DropEngineKeys(dropped))
