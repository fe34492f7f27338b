"""One model's part of a pass: what goes, what comes, what is restarted (REC-06, REC-30). Pure."""

import random
from collections.abc import Generator
from dataclasses import dataclass

from controlplane.catalog.model import Model
from controlplane.planning.candidates import Candidates
from controlplane.planning.overlay import Overlay
from controlplane.planning.placement import Choice, Spot, Spread, choose
from controlplane.planning.plan import Drain, Place, Plan, RestartPart, ShardPlace, Stop
from controlplane.planning.policy import LoopSettings
from controlplane.planning.view import FleetView, ModelHealth, ReplicaView, Restart
from controlplane.planning.wanted import Wanted, counts, lacking, profile_left, wanted
from controlplane.planning.work import Work
from llmgw.wire.messages import ShardSpec

KEPT_VERDICTS = 64
"""Verdicts a replica or a refusal keeps; explain computes them all."""


def in_session(view: FleetView, replica: ReplicaView) -> bool:
    """Whether commands reach every node of a replica."""
    nodes = (view.nodes.get(shard.node_id) for shard in replica.shards.values())
    return all(node is not None and node.registered for node in nodes)


@dataclass(slots=True)
class Step:
    """One model's part of a pass."""

    view: FleetView
    overlay: Overlay
    candidates: Candidates
    settings: LoopSettings
    result: Plan
    work: Work
    now: float
    rng: random.Random
    failing: bool
    """The model failed in this very pass: it waits before anything new is placed."""
    restarts: bool
    """A restart of one of its replicas is under way: the next one waits (REC-30)."""

    def model(self, name: str, group: list[ReplicaView], health: ModelHealth) -> Generator[None, None, None]:
        """Decide what goes and what comes."""
        want = wanted(self.view, name)
        for replica in group:
            if replica.surplus and not replica.unwanted:
                self._end(replica, replica.surplus)
        leaving: list[ReplicaView] = []
        staying: list[ReplicaView] = []
        for replica in group:
            if counts(replica):
                (leaving if profile_left(self.view, replica) else staying).append(replica)
        excess = max(len(staying) - want.upper, 0)
        if excess:
            ranked = sorted(staying, key=self._expendable)
            for replica in ranked[:excess]:
                self._end(replica, f"{want.reason} and has {len(staying)}" if want.upper else want.reason)
            staying = ranked[excess:]
        missing = lacking(self.view, name, want, len(staying))
        placed = 0
        if missing and self._may_place(health) and not self._room_comes(name):
            placed = yield from self._place(self.view.catalog.models[name], missing, want)
        if not missing and health.refusal is not None:
            self.result.fits.add(name)
        self._replace(leaving, staying, missing, placed)
        if self.restarts:
            self._replaced(group)
        elif not placed and not excess and not leaving:
            yield from self._restart(name, staying, health)

    def _expendable(self, replica: ReplicaView) -> tuple[int, int, int, float, str]:
        """Who goes first: what does not serve (REC-22), what is out of sight, what is
        stale or shall be restarted, then the one that came last."""
        rank = {"stopping": 0, "placing": 1, "starting": 2}.get(replica.state, 3)
        outdated = replica.stale is True or replica.restarting is not None
        return rank, int(in_session(self.view, replica)), int(not outdated), -replica.since, replica.id

    def _end(self, replica: ReplicaView, reason: str, restart: RestartPart | None = None) -> None:
        """Drain what is ready; stop what is not. A drain under way goes on, and what
        its agent is ending ends by itself."""
        if replica.state == "ready":
            grace = self.settings.drain_grace
            self.result.actions.append(Drain(replica.id, replica.model, reason, grace, restart))
        elif replica.state in ("placing", "starting"):
            self.result.actions.append(Stop(replica.id, replica.model, reason, restart=restart))

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

    def _replaced(self, group: list[ReplicaView]) -> None:
        """End replicas whose replacement is ready (REC-30)."""
        for replica in group:
            restart = replica.restarting
            new = self.view.replicas.get(restart.replacement or "") if restart is not None else None
            if restart is None or restart.state != "replacing" or new is None or replica.surplus:
                continue
            if new.state == "ready":
                self._end(replica, f"replaced by {new.id}: {restart.asked}", "replaced")

    def _restart(self, name: str, staying: list[ReplicaView], health: ModelHealth) -> Generator[None, None, None]:
        """Begin the next restart that people asked for, if one waits: one at a time, and
        only while every other replica of the model serves (REC-30)."""
        waiting = [replica for replica in staying if replica.restarting is not None]
        if not waiting or not self._may_place(health):
            return
        old = min(waiting, key=lambda replica: replica.restarting.order if replica.restarting else 0)
        serves = old.state == "ready"
        if serves and any(replica.state != "ready" for replica in staying if replica is not old):
            return
        if len(self.result.actions) >= self.settings.max_actions:
            self.result.complete = False
            return
        model, restart = self.view.catalog.models.get(name), old.restarting
        if model is None or restart is None or old.state == "stopping":
            return
        beside = ""
        if serves and not restart.at_once:
            choice = yield from self._choose(model, self.overlay, leaving=old)
            if choice.spot is not None:
                self._add(model, choice.spot, choice, f"{restart.asked}: it replaces {old.id}", old.id)
                return
            beside = f"; nothing fits beside it: {choice.refusal().message}"
        yield from self.overlay.fill(self.view, self.work)
        alone = yield from self._choose(model, self.overlay.without(old), leaving=old)
        if (serves or alone.spot is None) and not restart.at_once and self._comes_back(restart):
            return
        if alone.spot is None:
            why = alone.refusal().message
            self.result.given_up[old.id] = f"a new replica would fit nowhere, even without this one: {why}"
            return
        self._end(old, f"{restart.asked}: it is restarted in its place{beside}", "in place")

    def _comes_back(self, restart: Restart) -> bool:
        """Whether a node that might take the new replica lost its session just now: it is
        waited for before a replica that serves goes first."""
        if self.now - restart.since >= self.settings.unreachable_after:
            return False
        return any(node.status == "connected" and not node.registered for node in self.view.nodes.values())

    def _room_comes(self, name: str) -> bool:
        """Whether a replica that is restarted in its place is about to free the room that
        its model waits for: nothing is tried, nor refused, until it did."""
        old = self.view.replicas.get(self.view.in_place.get(name, ""))
        return old is not None and in_session(self.view, old)

    def _may_place(self, health: ModelHealth) -> bool:
        return not self.failing and may_place(self.view, health, self.now)

    def _choose(
        self, model: Model, overlay: Overlay, *, leaving: ReplicaView | None = None, spread: Spread | None = None
    ) -> Generator[None, None, Choice]:
        return choose(
            self.view, overlay, self.candidates, model, work=self.work, now=self.now, leaving=leaving, spread=spread
        )

    def _place(self, model: Model, missing: int, want: Wanted) -> Generator[None, None, int]:
        health = self.view.health.get(model.name)
        if health and health.refusal and health.refused_version == self.view.version:
            return 0  # nothing that could change the answer for the better has changed
        spread: Spread | None = None
        for done in range(missing):
            if len(self.result.actions) >= self.settings.max_actions:
                self.result.complete = False
                return done
            choice = yield from self._choose(model, self.overlay, spread=spread)
            if choice.spot is None:
                self.result.refused[model.name] = choice.refusal(KEPT_VERDICTS)
                return done
            self._add(model, choice.spot, choice, want.reason)
            spread = choice.spread
            spread.add(choice.spot.node.id, choice.spot.node)
            if self.work.spent():
                yield
        self.result.fits.add(model.name)
        return missing

    def _add(self, model: Model, spot: Spot, choice: Choice, why: str, replaces: str | None = None) -> None:
        replica_id = new_id(self.view, self.overlay, self.rng, model.name)
        spec = shard_spec(model, spot, replica_id)
        self.overlay.add(replica_id, spot.node.id, spec)
        self.result.actions.append(
            Place(
                replica=replica_id,
                model=model.name,
                profile=spot.profile.name,
                fingerprint=spot.profile.fingerprint,
                shards=(ShardPlace(spot.node.id, spec),),
                reason=f"{why}; node {spot.node.id} fits best",
                rejected=choice.rejected(KEPT_VERDICTS),
                figures={"score": dict(spot.score), "port": spot.port, "devices": list(spot.devices)},
                replaces=replaces,
            )
        )


def may_place(view: FleetView, health: ModelHealth, now: float) -> bool:
    """Whether a replica of a model of this health may be placed at all now."""
    if view.settling.active or health.parked:
        return False
    return health.backoff_until is None or health.backoff_until <= now


def new_id(view: FleetView, overlay: Overlay, rng: random.Random, model: str) -> str:
    """A replica id nobody has (REC-01)."""
    while True:
        candidate = f"{model}-{rng.getrandbits(32):08x}"
        if candidate not in overlay.ids and candidate not in view.replicas:
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
