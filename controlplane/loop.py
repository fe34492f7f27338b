"""The one writer: view -> plan -> check -> commit -> dispatch (sans-IO).

A driver owns one ``Loop``, feeds it events in their order of arrival and carries the
effects out in the order given. Whatever lives over time is decided here or in the
machines of ``controlplane.fleet``; nothing is decided in the driver.
"""

import random
from collections import deque
from collections.abc import Callable, Generator
from math import inf

from controlplane.catalog.model import Catalog
from controlplane.events import (
    CatalogChanged,
    Commit,
    Committed,
    CordonSet,
    Effect,
    EngineKeysChanged,
    EnrolmentChanged,
    EpochGranted,
    EpochSeen,
    Event,
    FrameReceived,
    HoldsSet,
    LabelsSet,
    LeaseExtended,
    LossAccepted,
    NodesEnrolled,
    ProviderKeysRead,
    PublishRoutes,
    RestartRequested,
    RetryRequested,
    RouterReported,
    ServingSet,
    SessionClosed,
    SessionOpened,
)
from controlplane.fleet import (
    changes,
    dispatch,
    generations,
    intents,
    lead,
    nodes,
    refusals,
    replicas,
    restarts,
    sessions,
    unheard,
)
from controlplane.fleet.context import Fleet, Recent
from controlplane.fleet.health import forgive
from controlplane.fleet.intents import Intent
from controlplane.fleet.keys import EngineKeys
from controlplane.fleet.nodelife import NodeLife
from controlplane.planning.candidates import Candidates
from controlplane.planning.check import check, check_view
from controlplane.planning.drains import MEMORY, Routers
from controlplane.planning.overlay import Overlay
from controlplane.planning.plan import Action, Plan, decision
from controlplane.planning.policy import LoopSettings
from controlplane.planning.reconcile import overtaken, plan
from controlplane.planning.view import FleetView, Lease, Settling
from controlplane.planning.work import Work
from controlplane.publish.routes import EXTERNAL, Routing, aliases, key_files
from llmgw.wire.routing import RoutedModel

__all__ = ["Intent", "Loop", "LoopSettings", "Recent"]

WHOLE_CHECK = 60.0
"""Seconds between two checks of the whole view."""

SMALL = 500
"""Models and replicas of a table that is published with the event that changed it. A larger
one is left to the pass that follows, in slices: after a restart of thousands of replicas
it would be made anew for each of them."""


class Loop:
    """The control plane's writer.

    ``view`` may be read between events, never changed. ``dirty`` says that a pass is
    wanted now, ``next_wake`` when one is due without an event. ``recent`` holds the
    last decisions and events, oldest first. ``epoch`` goes with commands; ``leader`` is the
    random id of who leads with it. Until ``LeaseExtended`` says more, they lead beyond doubt
    before ``until`` (HA-01): by default not at all.

    ``boot`` names this process: it must differ from every earlier one's, because
    command ids begin with it. ``intent`` is what people decided before. ``work`` makes
    what ends the slices of a pass.
    """

    def __init__(
        self,
        settings: LoopSettings,
        catalog: Catalog,
        *,
        enrolled: frozenset[str],
        intent: Intent,
        rng: random.Random,
        epoch: int,
        leader: str,
        boot: str,
        version: str,
        engine_keys: EngineKeys,
        now: float,
        until: float = -inf,
        work: Callable[[], Work] = Work,
    ) -> None:
        view = FleetView(
            catalog=catalog,
            settling=Settling(started=now, steady_since=now),
            holds=dict(intent.holds),
            serving=intent.serving,
            lease=Lease(until=until, doubtful=now >= until, since=now),
            key_generation=engine_keys.current,
        )
        self._fleet = Fleet(
            view=view,
            settings=settings,
            rng=rng,
            epoch=epoch,
            leader=leader,
            life=NodeLife(settings.lost_after),
            boot=boot,
            version=version,
            keys=engine_keys,
            now=now,
            last_pass=now,
            cordons=dict(intent.cordons),
            labels=dict(intent.labels),
        )
        self._work = work
        self._candidates = Candidates()
        self._routing = Routing()
        self._published: PublishRoutes | None = None
        self._tables = 0
        self._next_whole_check = now + WHOLE_CHECK
        self.next_wake = now
        nodes.enrol(self._fleet, enrolled, now)

    @property
    def view(self) -> FleetView:
        """The fleet as known now."""
        return self._fleet.view

    @property
    def dirty(self) -> bool:
        """Whether a pass is wanted now."""
        return self._fleet.dirty

    @property
    def epoch(self) -> int:
        """Epoch of the commands sent from now on."""
        return self._fleet.epoch

    @property
    def recent(self) -> deque[Recent]:
        """The last decisions and events, oldest first."""
        return self._fleet.recent

    @property
    def routers(self) -> Routers:
        """The last report of each router process, by (router id, boot)."""
        return self._fleet.routers

    @property
    def unknown_frames(self) -> int:
        """Frames of kinds this build does not know, which were ignored."""
        return self._fleet.unknown_frames

    def handle(self, event: Event, now: float, *, more: bool = False) -> list[Effect]:
        """Take one event in. Cheap; may be called while a pass is under way (between
        two of its yields). An event of a session that is no longer current, or of a
        batch already dispatched, does nothing. ``more``: another one is handled at once,
        so that routes need not be published in between."""
        fleet = self._fleet
        fleet.now = now
        lead.look(fleet, now)
        match event:
            case SessionOpened():
                sessions.opened(fleet, event, now)
            case FrameReceived():
                sessions.received(fleet, event, now)
            case SessionClosed():
                sessions.closed(fleet, event.session, event.reason, now)
            case Committed():
                lead.committed(fleet, fleet.batches.pop(event.batch, ()), now)
            case LeaseExtended():
                lead.extended(fleet, event.until, now)
                if event.until > now:
                    self.next_wake = min(self.next_wake, event.until)
            case EpochGranted():
                lead.granted(fleet, event.epoch)
            case EpochSeen():
                lead.seen(fleet, event, now)
            case LossAccepted():
                nodes.accept_loss(fleet, event.nodes, event.actor)
            case CatalogChanged():
                changes.catalog(fleet, event.catalog)
            case EnrolmentChanged():
                nodes.enrol(fleet, event.node_ids, now)
            case NodesEnrolled():
                nodes.join(fleet, event.node_ids, now)
            case CordonSet():
                intents.set_cordon(fleet, event.node_id, event.cordon)
            case LabelsSet():
                intents.set_labels(fleet, event)
            case HoldsSet():
                intents.set_holds(fleet, event)
            case ServingSet():
                intents.set_serving(fleet, event)
            case RestartRequested():
                restarts.request(fleet, event)
            case ProviderKeysRead():
                self._keys_read(event)
            case EngineKeysChanged():
                changes.engine_keys(fleet, event)
            case RouterReported():
                changes.reported(fleet, event, now)
            case RetryRequested():
                forgive(fleet, event.model)
                fleet.note("retry", f"asked for by {event.actor}", model=event.model)
        self._restarts()
        if fleet.routes_dirty and not more and not fleet.view.settling.active:
            if self._small:
                self._publish(self._routing.at_once(fleet.view, fleet.keys))
            else:
                fleet.dirty = True
        return fleet.take()

    @property
    def _small(self) -> bool:
        view = self._fleet.view
        return len(view.replicas) + len(view.catalog.models) <= SMALL

    def _restarts(self) -> None:
        if self._fleet.restarting or self._fleet.view.in_place:
            restarts.look(self._fleet)

    def _keys_read(self, event: ProviderKeysRead) -> None:
        fleet = self._fleet
        before = fleet.view.provider_keys
        fleet.view.provider_keys = dict(event.faults)
        for model, file in ((name[len(EXTERNAL) :], file) for name, file in key_files(fleet.view.catalog).items()):
            fault = event.faults.get(file, "")
            if fault != before.get(file, ""):
                fleet.note("provider-key", fault or "its key file can be used", model=model)
        fleet.routes_dirty = fleet.dirty = True

    def run_pass(self, now: float) -> Generator[None, float | None, list[Effect]]:
        """One pass. Yields about every 5 ms of work; returns its effects, ``Commit``
        among them. Run it to its end, one at a time. What it decided is dispatched by
        ``handle(Committed(batch))``; events may be handled between two yields. The time may
        be sent to it instead of ``None``: what was decided while the process stood still
        counts for nothing once the lease is in doubt (HA-01)."""
        fleet = self._fleet
        fleet.now = now
        lead.look(fleet, now)
        fleet.dirty = False
        yield from self._time_passes(now)
        self._restarts()
        effects = fleet.take()
        # A pass that fails or is given up leaves none behind that is half up to date.
        candidates, self._candidates = self._candidates, Candidates()
        decided = yield from plan(
            fleet.view,
            Overlay(fleet.view, later=True),
            fleet.settings,
            routers=fleet.routers,
            now=now,
            rng=fleet.rng,
            work=self._work(),
            candidates=candidates,
        )
        self._candidates = candidates
        told = yield
        fleet.now = max(fleet.now, now, told or now)
        lead.look(fleet, fleet.now)
        refusals.keep(fleet, decided, now)
        # If events came in since, it may fit by now, and is tried anew.
        given_up = decided.given_up if fleet.view.version == decided.version else {}
        accepted = self._accept(decided)
        for replica_id, why in given_up.items():
            restarts.give_up(fleet, replica_id, why)
        for action in accepted:
            dispatch.apply(fleet, action, now)
        if accepted:
            decisions = tuple(decision(action) for action in accepted)
            for made in decisions:
                fleet.record(made)
            fleet.last_batch += 1
            fleet.batches[fleet.last_batch] = tuple(accepted)
            fleet.out.append(Commit(fleet.last_batch, decisions))
        fleet.dirty = fleet.view.version != decided.version + len(accepted) or not decided.complete
        self._restarts()
        effects += fleet.take()  # what was decided waits for no table
        yield from self._publishing()
        self.next_wake = self._wake(now)
        return effects + fleet.take()

    def _time_passes(self, now: float) -> Generator[None, None, None]:
        """What time does, part by part: each looks at every node, or every replica."""
        fleet = self._fleet
        nodes.awake(fleet, now)
        sessions.tick(fleet, now)
        nodes.tick(fleet, now)
        nodes.settle(fleet, now)
        unheard.tick(fleet, now)
        yield
        replicas.tick(fleet, now)
        dispatch.tick(fleet, now)
        generations.tick(fleet, now)
        for key in [key for key, router in fleet.routers.items() if now - router.at > 2 * MEMORY]:
            del fleet.routers[key]
        for health in fleet.view.health.values():
            if health.backoff_until is not None and health.backoff_until <= now:
                health.backoff_until = None
        if now >= self._next_whole_check:
            self._next_whole_check = now + WHOLE_CHECK
            for violations in check_view(fleet.view):
                yield
                for violation in violations:
                    fleet.note("invariant", violation.message, model=violation.model)

    def _accept(self, decided: Plan) -> list[Action]:
        """The actions that still hold and break nothing. A model whose actions would
        break an invariant is quarantined; the others go on."""
        fleet = self._fleet
        moved = fleet.view.version != decided.version  # events came in between two slices
        rejected = overtaken(fleet.view, decided.actions) if moved else set()
        violations = check(decided, fleet.view)
        if not violations and not rejected:
            return decided.actions
        for violation in violations:
            if not moved and violation.model not in rejected:
                health = fleet.health(violation.model)
                health.quarantined = violation.message
                fleet.note("quarantine", violation.message, model=violation.model)
            rejected.add(violation.model)
        fleet.touch()  # what changed while the plan was made is planned for at once
        return [action for action in decided.actions if action.model not in rejected]

    def _publishing(self) -> Generator[None, None, None]:
        """Publish in slices; what changes meanwhile is not published older than it is."""
        fleet = self._fleet
        fleet.routes_dirty = False
        tables = self._tables
        table = yield from self._routing.table(fleet.view, fleet.keys)
        again = fleet.routes_dirty
        if tables != self._tables or (again and self._small):
            table, again = self._routing.at_once(fleet.view, fleet.keys), False
        self._publish(table)
        if again:  # each row is of a moment of this pass; the next one has what changed since
            fleet.routes_dirty = fleet.dirty = True

    def _publish(self, models: tuple[RoutedModel, ...]) -> None:
        fleet = self._fleet
        fleet.routes_dirty = False
        self._tables += 1
        table = PublishRoutes(
            models,
            fleet.view.partial,
            aliases(fleet.view.catalog),
            key_files(fleet.view.catalog),
            fleet.epoch,
            fleet.leader,
        )
        if table != self._published:
            self._published = table
            fleet.out.append(table)

    def _wake(self, now: float) -> float:
        """When the next pass is due: the interval, or the first moment before it at
        which time alone changes something."""
        fleet = self._fleet
        moments = [now + fleet.settings.interval]
        for replica in [replica for replica in fleet.view.replicas.values() if replica.deadline is not None]:
            moments.append(replica.deadline or 0.0)
            if replica.state == "draining":
                moments.append(now + 1.0)
        moments.append(fleet.view.lease.until)
        if fleet.life.accepted:
            moments.append(now + 0.1)
        moments += [health.backoff_until for health in fleet.view.health.values() if health.backoff_until is not None]
        return min(moment for moment in moments if moment > now)
