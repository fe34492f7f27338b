"""The state of the whole in one answer: problems first (CLI-02)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from controlplane.journal import Journal
from controlplane.listeners.routers import FORGET_AFTER, RouterSeen
from controlplane.planning.overlay import Overlay
from controlplane.planning.view import FleetView, NodeView
from controlplane.planning.words import seconds
from controlplane.services.catalog import CatalogService
from controlplane.services.fleet import Fleet, Plain
from controlplane.store.writer import StoreWriter
from llmgw.runtime.clock import Clock

FIRST_REPORTS = 5.0
"""Seconds after a start in which routers that run have not reported yet: unknown is no problem."""


@dataclass(frozen=True)
class Identity:
    """Who this control plane is. ``started`` is monotonic; ``epoch`` can rise."""

    version: str
    boot: str
    started: float
    epoch: Callable[[], int]


class Status:
    """Sums the fleet up from the same state the other resources show."""

    def __init__(
        self,
        identity: Identity,
        *,
        fleet: Fleet,
        catalog: CatalogService,
        store: StoreWriter,
        clock: Clock,
        routers: Callable[[], Iterable[RouterSeen]],
        refusals: Callable[[], Mapping[str, tuple[float, str]]],
        journal: Journal,
    ) -> None:
        self._identity = identity
        self._fleet = fleet
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._routers = routers
        self._refusals = refusals
        self._journal = journal

    def read(self) -> Plain:
        """Problems, nodes by status, capacity, models against what they should have."""
        view = self._fleet.view
        now = self._clock.monotonic()
        models = self._fleet.models()
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
        return {
            "version": self._identity.version,
            "epoch": self._identity.epoch(),
            "uptime_seconds": now - self._identity.started,
            "settling": {
                "active": view.settling.active,
                "seconds": now - view.settling.started,
                "reason": view.settling.reason or None,
            },
            "problems": list(self._problems(view, models, routers)),
            "nodes": _count_nodes(view),
            "capacity": self._capacity(view, now),
            "models": [
                {
                    key: model[key]
                    for key in ("name", "state", "reason", "wanted", "live", "ready", "parked", "failures", "scaling")
                }
                for model in models
            ],
            "replicas": _count(replica.state for replica in view.replicas.values()),
            "routers": routers,
        }

    def _problems(self, view: FleetView, models: list[Plain], routers: list[Plain]) -> Iterable[Plain]:
        if self._catalog.refusal is not None:
            faults = self._catalog.refusal.faults
            yield _problem("catalog", self._catalog.refusal.source, f"was refused ({len(faults)} faults): {faults[0]}")
        if self._journal.failing:
            yield _problem("journal", "decisions", f"cannot be written, so actions wait: {self._journal.failing}")
        if self._store.failing:
            yield _problem("store", "database", self._store.failing)
        if not view.nodes:
            yield _problem("nodes", "fleet", "no node is enrolled: add its token to fleet_tokens and send SIGHUP")
        for node in sorted(view.nodes.values(), key=lambda node: node.id):
            if node.shown != "connected":
                yield _problem("node", node.id, f"is {node.shown}{self._why_away(node)}")
            for device in node.inventory.devices if node.inventory else ():
                if device.excluded:
                    yield _problem(
                        "device",
                        f"{node.id} {device.index if device.index is not None else device.uuid}",
                        f"is not used: {device.excluded}",
                    )
            for engine in (node.inventory.engines or ()) if node.inventory else ():
                if engine.state == "failed":
                    yield _problem("engine", f"{engine.name} on {node.id}", engine.detail or "failed")
        for model in models:
            short = model["live"] < model["wanted"] and not view.settling.active
            refused = model["wanted"] and model["state"] in ("parked", "unplaceable")
            if short or refused:
                reason = model["reason"] or model["last_error"] or f"is {model['state'] or 'not known to routers yet'}"
                yield _problem("model", model["name"], f"{model['ready']} of {model['wanted']} ready: {reason}")
            elif model["failures"] > 1:
                told = f"failed {model['failures']} times in a row, last with: {model['last_error']}"
                yield _problem("model", model["name"], told)
        uptime = self._clock.monotonic() - self._identity.started
        if not routers and uptime >= FIRST_REPORTS:
            silent = f"no router has reported for {min(FORGET_AFTER, uptime):.0f} s"
            yield _problem("routers", "none", f"{silent}: is one running, and does it reach routers.listen?")

    def _why_away(self, node: NodeView) -> str:
        seen = "" if node.inventory else " (never seen)"
        refused = self._refusals().get(node.id)
        if refused is None:
            return seen
        return f"{seen}; it was refused {seconds(self._clock.monotonic() - refused[0])} ago: {refused[1]}"

    def _capacity(self, view: FleetView, now: float) -> Plain:
        """Sums over connected nodes; claims are those of all their live shards. A node
        that does not know a figure is counted in ``unknown`` and adds nothing."""
        overlay = Overlay(view)
        classes: dict[str, dict[str, int]] = {}
        memory = _Sum()
        cores = _Sum()
        for node in view.nodes.values():
            if node.status != "connected" or node.inventory is None:
                continue
            claims, inventory = overlay.on(node.id), node.inventory
            measured = self._fleet.measurements(node, now)
            memory.add(inventory.memory_bytes, claims.memory, measured.memory_used_bytes)
            count = inventory.cpu.count
            busy = None if count is None or measured.cpu_percent is None else count * measured.cpu_percent / 100
            cores.add(count, claims.cores, busy)
            for device in inventory.devices:
                of_class = classes.setdefault(
                    device.device_class or device.name or "unknown",
                    {"total": 0, "claimed": 0, "excluded": 0, "free": 0},
                )
                of_class["total"] += 1
                taken, excluded = device.uuid in claims.devices, device.excluded is not None
                of_class["claimed"] += taken
                of_class["excluded"] += excluded
                of_class["free"] += not taken and not excluded
        return {
            "devices": [{"device_class": name, **figures} for name, figures in sorted(classes.items())],
            "memory": memory.read("bytes"),
            "cores": cores.read("cores"),
        }


class _Sum:
    def __init__(self) -> None:
        self.total = 0.0
        self.claimed = 0.0
        self.used = 0.0
        self.known = 0
        self.measured = 0
        self.nodes = 0

    def add(self, total: float | None, claimed: float, used: float | None) -> None:
        self.nodes += 1
        self.claimed += claimed
        if total is not None:
            self.known += 1
            self.total += total
        if used is not None:
            self.measured += 1
            self.used += used

    def read(self, unit: str) -> Plain:
        number = int if unit == "bytes" else float
        return {
            f"total_{unit}": number(self.total) if self.known else None,
            f"claimed_{unit}": number(self.claimed),
            f"used_{unit}": number(self.used) if self.measured else None,
            "nodes": self.nodes,
            "unknown_nodes": self.nodes - self.known,
        }


def _count_nodes(view: FleetView) -> dict[str, int]:
    counts = {"total": len(view.nodes), "connected": 0, "reconnecting": 0, "unreachable": 0, "lost": 0}
    counts |= _count(node.shown for node in view.nodes.values())
    counts["cordoned"] = sum(1 for node in view.nodes.values() if node.cordon)
    return counts


def _count(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def _problem(kind: str, subject: str, message: str) -> Plain:
    return {"kind": kind, "subject": subject, "message": message}
