"""What comes from elsewhere than agents: the catalog, the secrets of engines' keys, routers."""

from controlplane.catalog.model import Catalog
from controlplane.events import EngineKeysChanged, RouterReported
from controlplane.fleet.context import Fleet
from controlplane.fleet.health import forgive
from controlplane.fleet.replicas import staleness
from controlplane.planning.drains import RouterSeen
from controlplane.planning.words import listing


def catalog(fleet: Fleet, new: Catalog) -> None:
    """A new catalog is current (CAT-06): models that changed start anew."""
    before = fleet.view.catalog.models
    changed = sorted(name for name in before.keys() | new.models.keys() if before.get(name) != new.models.get(name))
    fleet.view.catalog = new
    for name in changed:
        forgive(fleet, name)
    for name in [name for name in fleet.view.health if name not in new.models]:
        del fleet.view.health[name]
    for replica in fleet.view.replicas.values():
        replica.stale = staleness(fleet.view, replica)
    fleet.note("catalog", f"changed: {listing(changed, 10) or 'nothing'}", models=len(new.models))
    fleet.touch()
    fleet.routes_dirty = True


def engine_keys(fleet: Fleet, event: EngineKeysChanged) -> None:
    """Engines that run keep their keys; what is started from now on gets the newest (SEC-08)."""
    rotated = event.keys.current != fleet.keys.current
    fleet.keys, fleet.dropping = event.keys, frozenset()
    fleet.view.key_generation = event.keys.current
    for replica in fleet.view.replicas.values():
        replica.stale = staleness(fleet.view, replica)
    if rotated:
        by = f" by {event.actor}" if event.actor else ""
        fleet.note("engine-secret", f"rotated{by}: generation {event.keys.current} is the current one")
    fleet.touch()
    fleet.routes_dirty = True


MAX_PROCESSES = 256
"""Processes of one router that are remembered: one that names another boot with each report
must not fill our memory."""


def _make_room(fleet: Fleet, router_id: str) -> None:
    ours = [(seen.at, key) for key, seen in fleet.routers.items() if key[0] == router_id]
    if len(ours) >= MAX_PROCESSES:
        del fleet.routers[min(ours)[1]]


def reported(fleet: Fleet, event: RouterReported, now: float) -> None:
    """A router process reported; an older report of it than the last means nothing."""
    report = event.report
    key = (event.router_id, report.boot)
    known = fleet.routers.get(key)
    if known is None or report.sequence > known.sequence:
        loads = {load.id: load for load in report.endpoints}
        # Generations begin with the boot of the process that published them.
        current = report.generation.startswith(f"{fleet.boot}-")
        if known is None:
            _make_room(fleet, event.router_id)
        fleet.routers[key] = RouterSeen(
            event.router_id, report.boot, now, report.sequence, loads, report.version, current
        )
