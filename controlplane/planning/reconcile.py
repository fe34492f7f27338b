"""From what is to what should be: the plan of one pass (REC-01 to REC-10). Pure.

Order within a pass: deadlines and drains, then per model what must go, then what is
missing. Models whose replica made room for its own successor come first, then those
without a ready replica.
"""

import random
from collections.abc import Generator, Sequence

from controlplane.planning.candidates import Candidates
from controlplane.planning.drains import Routers, idle
from controlplane.planning.heal import heal
from controlplane.planning.overlay import Overlay
from controlplane.planning.plan import Action, Place, Plan, Stop
from controlplane.planning.policy import LoopSettings
from controlplane.planning.step import Step, in_session
from controlplane.planning.view import FleetView, ModelHealth, ReplicaView
from controlplane.planning.wanted import Wanted, counts, lacking, profile_left, wanted
from controlplane.planning.words import seconds
from controlplane.planning.work import Work

PER_UNIT = 16
"""Replicas that are looked at in one unit of work."""

__all__ = ["Wanted", "counts", "overtaken", "plan", "profile_left", "wanted"]


def plan(
    view: FleetView,
    overlay: Overlay,
    settings: LoopSettings,
    *,
    routers: Routers,
    now: float,
    rng: random.Random,
    work: Work | None = None,
    candidates: Candidates | None = None,
) -> Generator[None, None, Plan]:
    """The actions that bring the fleet towards the catalog. Changes only ``overlay``, and
    ``candidates``, which may be kept from pass to pass.

    While the lease is in doubt they are those of ``heal`` alone.

    Yields between slices of work. The same view, routers, time and generator state
    give the same plan; a converged view gives no action.
    """
    if view.lease.doubtful:
        return (yield from heal(view, overlay, now=now, rng=rng, work=work or Work(), limit=settings.max_actions))
    result = Plan(version=view.version)
    groups: dict[str, list[ReplicaView]] = {name: [] for name in view.catalog.models}
    due: list[tuple[str, Stop]] = []
    work = work or Work()
    candidates = candidates or Candidates()
    failing: set[str] = set()
    restarts: set[str] = set()
    for number, replica in enumerate(list(view.replicas.values())):
        if number % PER_UNIT == 0 and work.spent():
            yield
        if view.replicas.get(replica.id) is not replica:
            continue  # it went since
        if replica.restarting is not None and replica.restarting.state != "queued":
            restarts.add(replica.model)
        stop = None if replica.state == "ready" else _due(view, replica, settings, routers, now=now)
        if stop is not None:
            due.append((replica.id, stop))
        else:
            groups.setdefault(replica.model, []).append(replica)
    stops = [stop for _, stop in sorted(due, key=lambda each: each[0])[: settings.max_actions]]
    failing.update(stop.model for stop in stops if stop.failure is not None)
    result.actions.extend(stops)
    result.complete = len(due) == len(stops)
    order = sorted(
        groups, key=lambda name: (name not in view.in_place, any(r.state == "ready" for r in groups[name]), name)
    )
    for name in order:
        if len(result.actions) >= settings.max_actions:
            result.complete = False
            break
        health = view.health.get(name) or ModelHealth()
        if health.quarantined is None:
            step = Step(
                view,
                overlay,
                candidates,
                settings,
                result,
                work,
                now,
                rng,
                failing=name in failing,
                restarts=name in restarts,
            )
            yield from step.model(name, sorted(groups[name], key=lambda replica: replica.id), health)
        if work.spent(1 + len(groups[name])):
            yield
    return result


def overtaken(view: FleetView, actions: Sequence[Action]) -> set[str]:
    """Models for which a plan decided on numbers that events have changed since: it
    would place more than is missing, or end more than is too many. Cheap."""
    tally: dict[str, int] = {}
    for name in {action.model for action in actions}:
        staying = [replica for replica in view.replicas.of_model(name) if counts(replica)]
        tally[name] = sum(not profile_left(view, replica) for replica in staying)
    found: set[str] = set()
    for action in actions:
        want, have = wanted(view, action.model), tally.get(action.model, 0)
        target = view.replicas.get(action.replica)
        if isinstance(action, Place) and action.replaces is not None:
            old = view.replicas.get(action.replaces)
            if old is None or old.restart != "queued" or not counts(old):
                found.add(action.model)
        elif isinstance(action, Place):
            tally[action.model] = have + 1
            if not lacking(view, action.model, want, have):
                found.add(action.model)
        elif target is None or not counts(target) or profile_left(view, target):
            continue
        elif action.restart == "in place":
            if target.restart != "queued":
                found.add(action.model)
        elif isinstance(action, Stop) and action.failure is not None:
            if target.state != "starting":
                found.add(action.model)
        else:
            tally[action.model] = have - 1
            if have <= want.upper:
                found.add(action.model)
    return found


def _due(view: FleetView, replica: ReplicaView, settings: LoopSettings, routers: Routers, *, now: float) -> Stop | None:
    """The stop that time or the routers make due, if any."""
    if replica.unwanted:
        return None
    if replica.state == "failed":
        if any(shard.live for shard in replica.shards.values()):
            return Stop(replica.id, replica.model, f"the replica failed as a whole: {replica.reason}")
        return None
    if replica.state == "draining":
        waited = now - replica.since
        if idle(routers, replica.id, replica.since, settings, now):
            words = f"drained in {seconds(waited)}, no request left; {replica.reason}"
            return Stop(replica.id, replica.model, words, figures={"drained": round(waited, 1)})
        if replica.deadline is not None and now >= replica.deadline:
            words = f"the drain's grace of {seconds(replica.deadline - replica.since)} is over; {replica.reason}"
            return Stop(replica.id, replica.model, words, figures={"drained": round(waited, 1)})
        return None
    if replica.state == "starting" and replica.deadline is not None and now >= replica.deadline:
        if not in_session(view, replica):
            return None  # it may be up; its node's life decides
        words = f"did not become ready in {seconds(now - replica.since)}"
        return Stop(replica.id, replica.model, words, failure="startup_timeout")
    return None
