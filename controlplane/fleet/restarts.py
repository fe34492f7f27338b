"""Restarts that people asked for: who waits, who is being replaced, who is given up (REC-30).

The plan takes the steps (``planning.step``); here what events mean for a restart is
kept true between two passes. A restart is people's intent of the moment: a control plane
that starts anew knows none, and finds at most one replica too many, which it drains.
"""

from dataclasses import replace

from controlplane.events import RestartRequested
from controlplane.fleet.context import Fleet
from controlplane.planning.view import FleetView, ReplicaView, Restart
from controlplane.planning.wanted import counts, lacking, profile_left, wanted


def request(fleet: Fleet, event: RestartRequested) -> None:
    """A person asks for new replicas in these ones' stead."""
    for replica_id in event.replicas:
        replica = fleet.view.replicas.get(replica_id)
        if replica is None or not _stays(replica):
            fleet.note("restart-given-up", "it is gone or going already", replica=replica_id)
            continue
        known = replica.restarting
        if known is not None:
            if event.in_place and known.state == "queued":
                replica.restarting = replace(known, at_once=True)
            continue
        fleet.restarts += 1
        asked = Restart(event.actor, event.reason, fleet.restarts, fleet.now, at_once=event.in_place)
        replica.restarting = asked
        fleet.restarting[replica_id] = asked.order
        how = "in its place" if event.in_place else "one at a time"
        fleet.note("restart", f"{asked.asked} waits its turn ({how})", model=replica.model, replica=replica_id)
    fleet.touch()


def look(fleet: Fleet) -> None:
    """Bring every restart up to what happened: cheap, and nothing to do as a rule."""
    view = fleet.view
    for replica_id in list(fleet.restarting):
        replica = view.replicas.get(replica_id)
        restart = replica.restarting if replica is not None else None
        if replica is None or restart is None or replica.state == "failed":
            _over(fleet, replica_id)
        elif _stays(replica):
            why = _void(view, replica, restart)
            if why:
                give_up(fleet, replica_id, why)
            elif restart.state == "replacing" and not _comes(view, restart):
                replica.restarting = replace(restart, state="queued", replacement=None)
                fleet.touch()
    for model, replica_id in list(view.in_place.items()):
        health = view.health.get(model)
        if wanted(view, model).upper == 0 or (health is not None and (health.parked or health.quarantined)):
            del view.in_place[model]
        elif replica_id not in view.replicas:
            have = sum(counts(replica) for replica in view.replicas.of_model(model))
            # Refused: it was tried, and something else is in the way, which is told as for any model.
            refused = health is not None and health.refusal is not None
            if refused or not lacking(view, model, wanted(view, model), have):
                del view.in_place[model]


def give_up(fleet: Fleet, replica_id: str, why: str) -> None:
    """A restart is given up: the replica stays and counts as before."""
    replica = fleet.view.replicas.get(replica_id)
    restart = replica.restarting if replica is not None else None
    _over(fleet, replica_id)
    if replica is None or restart is None:
        return
    fleet.note("restart-given-up", f"{restart.asked}: {why}", model=replica.model, replica=replica_id)
    fleet.touch()
    fleet.routes_dirty = True


def _over(fleet: Fleet, replica_id: str) -> None:
    fleet.restarting.pop(replica_id, None)
    replica = fleet.view.replicas.get(replica_id)
    if replica is not None:
        replica.restarting = None


def _stays(replica: ReplicaView) -> bool:
    """Whether nothing but a restart would end it."""
    going = replica.state in ("draining", "failed", "gone")
    return not (going or replica.unwanted or replica.surplus)


def _comes(view: FleetView, restart: Restart) -> bool:
    """Whether the replacement is there or coming."""
    new = view.replicas.get(restart.replacement or "")
    return new is not None and counts(new)


def _void(view: FleetView, replica: ReplicaView, restart: Restart) -> str:
    """Why a restart has no sense any more, or ""."""
    want = wanted(view, replica.model)
    if want.upper == 0:
        return want.reason
    if profile_left(view, replica):
        return f"profile {replica.profile} left the catalog, so it is replaced anyway"
    health = view.health.get(replica.model)
    if restart.state == "replacing" or health is None:
        return ""
    if health.parked:
        return (
            f"model {replica.model} failed {health.failures} times in a row and is parked, "
            f"so a new replica would not start; last error: {health.last_error}"
        )
    return f"model {replica.model} is quarantined: {health.quarantined}" if health.quarantined else ""
