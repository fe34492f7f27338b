"""From what is to what should be: the plan of one pass (REC-01 to REC-10). Pure.

Order within a pass: deadlines and drains, then per model what must go, then what is
missing. Models without a ready replica come first.
"""

import random
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from controlplane.catalog.model import Model
from controlplane.planning.drains import Routers, idle
from controlplane.planning.overlay import Overlay
from controlplane.planning.placement import Spot, Work, choose, refusal
from controlplane.planning.plan import Action, Drain, Place, Plan, ShardPlace, Stop
from controlplane.planning.policy import LoopSettings
from controlplane.planning.view import FleetView, ModelHealth, ReplicaView, Verdict
from controlplane.planning.words import plural, seconds
from llmgw.wire.messages import ShardSpec

KEPT_VERDICTS = 64
"""Verdicts a replica or a refusal keeps; explain computes them all."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bounds on the replicas of a model now, and why."""

    lower: int
    upper: int
    reason: str


def wanted(view: FleetView, name: str) -> Wanted:
    """How many replicas a model should have (CAT-05, CAT-07).

    ``always``: its ``min``. ``off`` or gone: none. On demand: what is there stays, up
    to ``max``; only a request adds one (activation comes with the demand part).
    """
    model = view.catalog.models.get(name)
    if model is None:
        return Wanted(0, 0, f"model {name} left the catalog")
    scaling = model.scaling
    if scaling.mode == "off":
        return Wanted(0, 0, f"model {name} is off (scaling 0 to 0, or no scaling)")
    if scaling.mode == "on-demand":
        return Wanted(0, scaling.max, f"model {name} may have {plural(scaling.max, 'replica')}")
    return Wanted(scaling.min, scaling.min, f"model {name} wants {plural(scaling.min, 'replica')}")


def counts(replica: ReplicaView) -> bool:
    """Whether a replica is one of those its model has: running or coming up, and meant
    to stay. One that its agent is ending by itself counts until its exit says why."""
    if replica.surplus or replica.unwanted:
        return False
    return replica.state in ("placing", "starting", "ready", "stopping")


def profile_left(view: FleetView, replica: ReplicaView) -> bool:
    """Whether the model is still in the catalog but without the replica's profile (CAT-07)."""
    model = view.catalog.models.get(replica.model)
    return model is not None and all(profile.name != replica.profile for profile in model.profiles)


def plan(
    view: FleetView,
    overlay: Overlay,
    settings: LoopSettings,
    *,
    routers: Routers,
    now: float,
    rng: random.Random,
) -> Generator[None, None, Plan]:
    """The actions that bring the fleet towards the catalog. Changes only ``overlay``.

    Yields between slices of work. The same view, routers, time and generator state
    give the same plan; a converged view gives no action.
    """
    result = Plan(version=view.version)
    groups: dict[str, list[ReplicaView]] = {name: [] for name in view.catalog.models}
    work = Work()
    failing: set[str] = set()
    for replica_id in sorted(view.replicas):
        replica = view.replicas.get(replica_id)
        if replica is None:
            continue
        stop = _due(view, replica, settings, routers, now=now)
        if stop is not None and len(result.actions) >= settings.max_actions:
            result.complete = False
        elif stop is not None:
            result.actions.append(stop)
            if stop.failure is not None:
                failing.add(replica.model)
        else:
            groups.setdefault(replica.model, []).append(replica)
        if work.spent():
            yield
    nodes = sorted(view.nodes)
    order = sorted(groups, key=lambda name: (any(r.state == "ready" for r in groups[name]), name))
    for name in order:
        if len(result.actions) >= settings.max_actions:
            result.complete = False
            break
        health = view.health.get(name) or ModelHealth()
        if health.quarantined is None:
            step = _Step(view, overlay, settings, result, work, now, rng, failing=name in failing)
            yield from step.model(name, groups[name], health, nodes)
        if work.spent(1 + len(groups[name])):
            yield
    return result


def overtaken(view: FleetView, actions: Iterable[Action]) -> set[str]:
    """Models for which a plan decided on numbers that events have changed since: it
    would place more than is missing, or end more than is too many. Cheap."""
    tally: dict[str, int] = {}
    for replica in view.replicas.values():
        if counts(replica) and not profile_left(view, replica):
            tally[replica.model] = tally.get(replica.model, 0) + 1
    found: set[str] = set()
    for action in actions:
        want, have = wanted(view, action.model), tally.get(action.model, 0)
        target = view.replicas.get(action.replica)
        if isinstance(action, Place):
            tally[action.model] = have + 1
            if have >= want.lower:
                found.add(action.model)
        elif target is None or not counts(target) or profile_left(view, target):
            continue
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
        if not all(_in_session(view, shard.node_id) for shard in replica.shards.values()):
            return None  # it may be up; its node's life decides
        words = f"did not become ready in {seconds(now - replica.since)}"
        return Stop(replica.id, replica.model, words, failure="startup_timeout")
    return None


def _in_session(view: FleetView, node_id: str) -> bool:
    node = view.nodes.get(node_id)
    return node is not None and node.registered


@dataclass(slots=True)
class _Step:
    """One model's part of a pass."""

    view: FleetView
    overlay: Overlay
    settings: LoopSettings
    result: Plan
    work: Work
    now: float
    rng: random.Random
    failing: bool
    """The model failed in this very pass: it waits before anything new is placed."""

    def model(
        self, name: str, group: list[ReplicaView], health: ModelHealth, nodes: list[str]
    ) -> Generator[None, None, None]:
        """Decide what goes and what comes."""
        want = wanted(self.view, name)
        for replica in group:
            if replica.surplus and not replica.unwanted:
                self._end(replica, replica.surplus)
        counted = [replica for replica in group if counts(replica)]
        leaving = [replica for replica in counted if profile_left(self.view, replica)]
        staying = [replica for replica in counted if replica not in leaving]
        excess = max(len(staying) - want.upper, 0)
        for replica in sorted(staying, key=self._expendable)[:excess]:
            self._end(replica, f"{want.reason} and has {len(staying)}")
        staying = sorted(staying, key=self._expendable)[excess:]
        missing = max(want.lower - len(staying), 0)
        placed = 0
        if missing and self._may_place(health):
            placed = yield from self._place(self.view.catalog.models[name], missing, want, nodes)
        if not missing and health.refusal is not None:
            self.result.fits.add(name)
        self._replace(leaving, staying, missing, placed)

    def _expendable(self, replica: ReplicaView) -> tuple[int, int, int, float, str]:
        """Who goes first: what does not serve (REC-22), what is out of sight, what is
        stale, then the one that came last."""
        rank = {"stopping": 0, "placing": 1, "starting": 2}.get(replica.state, 3)
        seen = all(_in_session(self.view, shard.node_id) for shard in replica.shards.values())
        return rank, int(seen), int(replica.stale is not True), -replica.since, replica.id

    def _end(self, replica: ReplicaView, reason: str) -> None:
        """Drain what is ready; stop what is not. A drain under way goes on, and what
        its agent is ending ends by itself."""
        if replica.state == "ready":
            self.result.actions.append(Drain(replica.id, replica.model, reason, self.settings.drain_grace))
        elif replica.state in ("placing", "starting"):
            self.result.actions.append(Stop(replica.id, replica.model, reason))

    def _replace(self, leaving: list[ReplicaView], staying: list[ReplicaView], missing: int, placed: int) -> None:
        """End replicas whose profile left the catalog (CAT-07), each once another one of
        the model is ready or if none can come beside it."""
        ready = sum(replica.state == "ready" for replica in staying)
        coming = len(staying) - ready + placed
        for replica in sorted(leaving, key=self._expendable):
            if replica.state != "ready" or ready > 0 or (not coming and not self._waits(replica.model, missing)):
                self._end(replica, f"profile {replica.profile} left the catalog")

    def _waits(self, name: str, missing: int) -> bool:
        """Whether a replacement is wanted but may not be placed now (backoff, parked, settling)."""
        health = self.view.health.get(name) or ModelHealth()
        return missing > 0 and not self._may_place(health)

    def _may_place(self, health: ModelHealth) -> bool:
        if self.view.settling.active or health.parked or self.failing:
            return False
        return health.backoff_until is None or health.backoff_until <= self.now

    def _place(self, model: Model, missing: int, want: Wanted, nodes: list[str]) -> Generator[None, None, int]:
        health = self.view.health.get(model.name)
        if health and health.refusal and health.refused_version == self.view.version:
            return 0  # nothing that could change the answer for the better has changed
        for done in range(missing):
            if len(self.result.actions) >= self.settings.max_actions:
                self.result.complete = False
                return done
            choice = yield from choose(self.view, self.overlay, model, nodes, work=self.work, now=self.now)
            if choice.spot is None:
                self.result.refused[model.name] = refusal(model, choice.verdicts, KEPT_VERDICTS)
                return done
            self._add(model, choice.spot, choice.verdicts, want)
        self.result.fits.add(model.name)
        return missing

    def _add(self, model: Model, spot: Spot, verdicts: Iterable[Verdict], want: Wanted) -> None:
        replica_id = self._new_id(model.name)
        spec = shard_spec(model, spot, replica_id)
        self.overlay.add(replica_id, spot.node.id, spec)
        rejected = tuple(verdict for verdict in verdicts if verdict.reasons)[:KEPT_VERDICTS]
        self.result.actions.append(
            Place(
                replica=replica_id,
                model=model.name,
                profile=spot.profile.name,
                fingerprint=spot.profile.fingerprint,
                shards=(ShardPlace(spot.node.id, spec),),
                reason=f"{want.reason}; node {spot.node.id} fits best",
                rejected=rejected,
                figures={"score": dict(spot.score), "port": spot.port, "devices": list(spot.devices)},
            )
        )

    def _new_id(self, model: str) -> str:
        """An id nobody has (REC-01)."""
        while True:
            candidate = f"{model}-{self.rng.getrandbits(32):08x}"
            if candidate not in self.overlay.ids:
                return candidate


def shard_spec(model: Model, spot: Spot, replica_id: str) -> ShardSpec:
    """The spec of a single-node replica on a spot. The engine key is added at dispatch."""
    profile, inventory = spot.profile, spot.node.inventory
    return ShardSpec(
        replica_id=replica_id,
        model=model.name,
        profile=profile.name,
        fingerprint=profile.fingerprint,
        engine=profile.engine,
        source=profile.source,
        host=inventory.address if inventory else "",
        port=spot.port,
        served_name=model.name,
        devices=spot.devices,
        cpu_cores=profile.cpu_cores,
        memory_bytes=profile.memory_bytes,
        context=profile.context,
        slots=profile.slots,
        args=profile.args,
        env=dict(profile.env),
        startup_timeout=profile.startup_timeout,
    )
