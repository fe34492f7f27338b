"""What may be done while the lease is in doubt: start again, where it was, what failed (HA-01).

A node in session with us is in session with nobody else, so no other leader acts on it:
there, and only there, a replica whose processes ended may be placed anew, once for each
that failed. Nothing is placed elsewhere, drained or stopped. Pure.
"""

import random
from collections.abc import Generator

from controlplane.planning.examine import Fit, examine
from controlplane.planning.overlay import Overlay
from controlplane.planning.placement import Spot
from controlplane.planning.plan import Place, Plan, ShardPlace
from controlplane.planning.step import may_place, new_id, shard_spec
from controlplane.planning.view import FleetView, ModelHealth, Reason, Refusal, ReplicaView, Verdict
from controlplane.planning.wanted import counts, lacking, wanted
from controlplane.planning.words import IN_DOUBT
from controlplane.planning.work import Work


def healable(view: FleetView, replica: ReplicaView) -> bool:
    """Whether a replica failed that may be placed again on its node: nothing of it runs,
    and the node is in session."""
    if replica.state != "failed" or replica.healed or replica.surplus or len(replica.shards) != 1:
        return False
    shard = next(iter(replica.shards.values()))
    node = view.nodes.get(shard.node_id)
    return not shard.live and shard.spec.world == 1 and node is not None and node.registered


def heal(
    view: FleetView, overlay: Overlay, *, now: float, rng: random.Random, work: Work, limit: int
) -> Generator[None, None, Plan]:
    """The placements that heal, at most ``limit``, and why other models get nothing.
    Changes only ``overlay``. Yields between slices of work."""
    result = Plan(version=view.version)
    for name in sorted(view.catalog.models):
        if work.spent():
            yield
        group = view.replicas.of_model(name)
        health = view.health.get(name) or ModelHealth()
        missing = lacking(view, name, wanted(view, name), sum(counts(replica) for replica in group))
        if not missing:
            if health.refusal is not None:
                result.fits.add(name)
            continue
        if health.quarantined is not None or not may_place(view, health, now):
            continue
        failed = sorted((old for old in group if healable(view, old)), key=lambda old: (old.since, old.id))
        if failed and not overlay.filled:
            yield from overlay.fill(view, work)
            # Meanwhile the model may have left the catalog, or a node the fleet.
            failed = [old for old in failed if name in view.catalog.models and healable(view, old)]
        refused = None if failed else Refusal("lease_in_doubt", IN_DOUBT)
        for old in failed[:missing]:
            if len(result.actions) >= limit:
                result.complete = False
                break
            outcome = _again(view, overlay, old, now, rng)
            if isinstance(outcome, Place):
                result.actions.append(outcome)
            else:
                refused = outcome
        if refused is not None:
            result.refused[name] = refused
        else:
            result.fits.add(name)
    return result


def _again(view: FleetView, overlay: Overlay, old: ReplicaView, now: float, rng: random.Random) -> Place | Refusal:
    """The placement that follows a failed replica on its node."""
    model = view.catalog.models[old.model]
    node = view.nodes[next(iter(old.shards.values())).node_id]
    profile = next((profile for profile in model.profiles if profile.name == old.profile), None)
    if profile is None:
        return Refusal("lease_in_doubt", f"profile {old.profile} left the catalog, and {IN_DOUBT}")
    fit = examine(node, overlay.on(node.id), profile, holds=view.held(node), now=now)
    if not isinstance(fit, Fit):
        verdict = Verdict(profile.name, node.id, reasons=(*fit, Reason("lease_in_doubt", IN_DOUBT)))
        words = "; ".join(reason.message for reason in fit)
        return Refusal(fit[0].code, f"{words} (node {node.id}); {IN_DOUBT}", (verdict,))
    replica_id = new_id(view, overlay, rng, model.name)
    spec = shard_spec(model, Spot(profile, node, fit.devices, fit.port, ()), replica_id)
    overlay.add(replica_id, node.id, spec)
    return Place(
        replica=replica_id,
        model=model.name,
        profile=profile.name,
        fingerprint=profile.fingerprint,
        shards=(ShardPlace(node.id, spec),),
        reason=f"replica {old.id} failed on node {node.id}, and it may start again there while the lease is in doubt",
        figures={"port": fit.port, "devices": list(fit.devices)},
        heals=old.id,
    )
