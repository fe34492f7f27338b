"""The state of the whole in one answer: problems first (CLI-02)."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.journal import Journal
from controlplane.listeners.routers import FORGET_AFTER, RouterSeen
from controlplane.planning.view import FleetView, NodeView
from controlplane.planning.words import IN_DOUBT, listing, seconds
from controlplane.services.capacity import Capacity
from controlplane.services.catalog import CatalogService
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.services.fleet import Fleet, Plain
from controlplane.services.pauses import in_slices
from controlplane.services.scopes import Scopes
from controlplane.store.access import StoreAccess
from llmgw.runtime.clock import Clock, utc
from llmgw.runtime.settings import Address

FIRST_REPORTS = 5.0
"""Seconds after a start in which routers that run have not reported yet: unknown is no problem."""

TOLD = 5
"""How many names a problem lists."""

REFUSED_OF_LATE = 600.0
"""Seconds for which a refused peer is a problem."""


REMEDY = "see that the database runs, that this machine reaches it, and that it takes writes"


@dataclass(frozen=True)
class Identity:
    """Who this control plane is. ``started`` is monotonic; ``epoch`` can rise."""

    version: str
    boot: str
    started: float
    epoch: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a person should look at. ``message`` follows the subject."""

    kind: str
    subject: str
    message: str


class Status:
    """Sums the fleet up from the same state the other resources show, in slices: a large
    fleet takes a while, in which the writer goes on. ``refused``: in whose name, by kind and
    name, a peer was refused since it was last let in, when (monotonic) and why. ``lead`` tells
    who leads, ``more`` are problems that others know of."""

    def __init__(
        self,
        identity: Identity,
        *,
        fleet: Fleet,
        catalog: CatalogService,
        settings: ClusterSettings,
        scopes: Scopes,
        store: StoreAccess,
        clock: Clock,
        routers: Callable[[], Iterable[RouterSeen]],
        refused: Callable[[], Mapping[tuple[str, str], tuple[float, str]]],
        journal: Journal,
        lead: Callable[[], Plain],
        more: Sequence[Callable[[], Iterable[Problem]]] = (),
    ) -> None:
        self._identity = identity
        self._fleet = fleet
        self._catalog = catalog
        self._settings = settings
        self._scopes = scopes
        self._store = store
        self._clock = clock
        self._routers = routers
        self._refused = refused
        self._journal = journal
        self._lead = lead
        self._more = more

    def read(self) -> Plain:
        """Problems, nodes by status, capacity, models against what they should have."""
        view = self._fleet.view
        now = self._clock.monotonic()
        models = list(in_slices(self._fleet.models(), self._clock))
        routers = [
            {
                "id": seen.router_id,
                "boot": seen.boot,
                "version": seen.version,
                "generation": seen.generation,
                "reported_seconds": now - seen.at,
            }
            for seen in sorted(self._routers(), key=lambda seen: (seen.router_id, seen.boot))
        ]
        counts = {"total": 0, "connected": 0, "reconnecting": 0, "unreachable": 0, "lost": 0, "cordoned": 0, "held": 0}
        capacity = Capacity(self._fleet.claims())
        of_nodes: list[Problem] = []
        late = frozenset(view.late_losses)
        more = [problem for told in self._more for problem in told()]
        told = {problem.subject for problem in more}
        for node in in_slices(sorted(view.nodes.values(), key=lambda node: node.id), self._clock):
            counts["total"] += 1
            counts[node.shown] += 1
            counts["cordoned"] += node.cordon is not None
            counts["held"] += bool(view.held(node))
            capacity.add(node, self._fleet.measurements(node, now))
            of_nodes += self._of_node(node, late, told)
        problems = [
            *self._of_parts(view),
            *more,
            *of_nodes,
            *self._of_refused(view, told),
            *self._of_people(view),
            *self._of_models(view, models),
            *self._of_routers(routers),
        ]
        return {
            "version": self._identity.version,
            "epoch": self._identity.epoch(),
            "leader": self._lead(),
            "uptime_seconds": now - self._identity.started,
            "stopped": view.serving.stopped,
            "mass_loss": view.mass_loss
            and {"seconds": now - view.mass_loss.since, "nodes": sorted(view.mass_loss.nodes)},
            "settling": {
                "active": view.settling.active,
                "seconds": now - view.settling.started,
                "reason": view.settling.reason or None,
            },
            "problems": [
                {"kind": problem.kind, "subject": problem.subject, "message": problem.message} for problem in problems
            ],
            "nodes": counts,
            "capacity": capacity.read(),
            "models": models,
            "replicas": _count(replica.state for replica in view.replicas.values()),
            "routers": routers,
        }

    def _of_parts(self, view: FleetView) -> Iterator[Problem]:
        if view.serving.stopped:
            by = f" by {view.serving.actor}" if view.serving.actor else ""
            yield Problem("serving", "serving", f"was stopped{by}: every request is refused; llmgw start ends that")
        if self._catalog.refusal is not None:
            faults = self._catalog.refusal.faults
            words = (
                f"was refused ({len(faults)} fault{'s' if len(faults) != 1 else ''}), the one before stays: {faults[0]}"
            )
            if self._catalog.left_out:
                without = listing(self._catalog.left_out, TOLD)
                words = f"is in force without {without}: {faults[0]}; then run llmgw ctl catalog reload"
            yield Problem("catalog", self._catalog.refusal.source, words)
        for name, fault in sorted(self._settings.faults.items()):
            words = f"the store's value {fault}, so it does not rule: llmgw ctl settings set {name}"
            yield Problem("setting", name, words)
        if self._journal.failing:
            yield Problem("journal", "decisions", f"cannot be written, so actions wait: {self._journal.failing}")
        if self._store.failing:
            away = self._store.failing_for or 0.0
            since = utc(self._clock.now().timestamp() - away)
            words = f"is away since {since} ({seconds(away)}): {harmless(self._store.failing)}"
            doubt = "" if self._lead()["sure"] else f"; {IN_DOUBT}"
            words = f"{words}; changes by people are refused until it answers{doubt}; {REMEDY}"
            yield Problem("store", "database", words)
        if not view.nodes:
            yield Problem("nodes", "fleet", "no node is enrolled: llmgw ctl nodes add NAME")

    def _of_node(self, node: NodeView, late: Container[str], told: Container[str]) -> Iterator[Problem]:
        if node.shown != "connected" and f"node {node.id}" not in told:  # that says why it is away
            waits = "; it is lost as soon as the limit on losses allows" if node.id in late else ""
            yield Problem("node", node.id, f"is {node.shown}{self._why_away(node)}{waits}")
        if node.inventory and node.elsewhere and Address(node.inventory.address, 0).loopback:
            words = (
                f"registered the address {node.inventory.address}, which is every machine's own, and connects from "
                f"{node.elsewhere}: routers on other machines do not reach its engines; correct the setting address "
                "of its agent"
            )
            yield Problem("node", node.id, words)
        for device in node.inventory.devices if node.inventory else ():
            if device.excluded:
                name = f"{node.id} {device.index if device.index is not None else device.uuid}"
                yield Problem("device", name, f"is not used: {device.excluded}")
        for engine in (node.inventory.engines or ()) if node.inventory else ():
            if engine.state == "failed":
                yield Problem("engine", f"{engine.name} on {node.id}", engine.detail or "failed")

    def _of_refused(self, view: FleetView, told: Container[str]) -> Iterator[Problem]:
        """Peers that were turned away of late, but for those whose absence is told already."""
        now = self._clock.monotonic()
        found = []
        for (kind, name), (at, why) in self._refused().items():
            away = kind == "node" and name in view.nodes and view.nodes[name].shown != "connected"
            if now - at <= REFUSED_OF_LATE and not away and f"{kind} {name}" not in told:
                found.append((now - at, f"{kind} {name}", why))
        for age, who, why in sorted(found)[:TOLD]:
            yield Problem("refused", who, f"was refused {seconds(age)} ago: {why}")
        if len(found) > TOLD:
            words = f"were refused within {seconds(REFUSED_OF_LATE)}, see the log"
            yield Problem("refused", f"{len(found) - TOLD} more", words)

    def _of_people(self, view: FleetView) -> Iterator[Problem]:
        for domain, hold in sorted(view.holds.items()):
            since = f"{hold.at[:16].replace('T', ' ')} UTC"
            words = f"is held by {hold.actor} since {since}: {hold.reason or 'no reason given'}"
            yield Problem("hold", domain, words)
        unknown: dict[str, list[str]] = {}
        for model in view.catalog.models.values():
            if model.owner and not self._scopes.known(model.owner):
                unknown.setdefault(model.owner, []).append(model.name)
        for owner, names in sorted(unknown.items()):
            whose = f"owns {listing(sorted(names), TOLD)}, but is no scope: make it with llmgw ctl scope add {owner}"
            yield Problem("scope", owner, whose)

    def _of_models(self, view: FleetView, models: list[Plain]) -> Iterator[Problem]:
        for model in models:
            short = model["live"] < model["wanted"] and not view.settling.active
            refused = model["wanted"] and model["state"] in ("parked", "unplaceable")
            if short or refused:
                reason = model["reason"] or model["last_error"] or f"is {model['state'] or 'not known to routers yet'}"
                yield Problem("model", model["name"], f"{model['ready']} of {model['wanted']} ready: {reason}")
            elif model["failures"] > 1:
                told = f"failed {model['failures']} times in a row, last with: {model['last_error']}"
                yield Problem("model", model["name"], told)
            if model["external"] and model["external"]["problem"]:
                yield Problem("model", model["name"], model["external"]["problem"])
        stale = {model["name"]: model["stale"] for model in models if model["stale"]}
        if stale:
            count = sum(stale.values())
            run = "replicas run" if count != 1 else "replica runs"
            words = f"{count} {run} an older profile or engine key: llmgw ctl restart --stale"
            yield Problem("stale", listing(sorted(stale), TOLD), words)

    def _of_routers(self, routers: list[Plain]) -> Iterator[Problem]:
        uptime = self._clock.monotonic() - self._identity.started
        if not routers and uptime >= FIRST_REPORTS:
            silent = f"no router has reported for {min(FORGET_AFTER, uptime):.0f} s"
            yield Problem("routers", "none", f"{silent}: is one running, and does it reach routers.listen?")

    def _why_away(self, node: NodeView) -> str:
        seen = "" if node.inventory else " (not heard since this control plane leads)"
        refused = self._refused().get(("node", node.id))
        if refused is None:
            return seen
        return f"{seen}; it was refused {seconds(self._clock.monotonic() - refused[0])} ago: {refused[1]}"


def harmless(why: str) -> str:
    """Why the store fails, without what became of the change that told: nobody here made one."""
    return why.removesuffix(": nothing was changed")


def _count(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
