"""Replicas that serve on nodes this leader has not heard from (REC-10, REC-11, REC-25).

A leader knows what runs from agents alone. One that leads while nodes do not reach it would
take their replicas for missing, start others in their place, and publish a table without
the endpoints that clients are being served by. Routers know better: an endpoint that no
agent in session has told of, but that answered a router of late, is *vouched* for. It
counts as there, and tables say that they may lack endpoints, as they do while settling.
"""

from controlplane.fleet.context import Fleet
from controlplane.fleet.nodelife import WITNESS
from controlplane.planning.view import FleetView
from llmgw.wire.routing import EndpointLoad

LOOK = 5.0
"""Seconds between two looks through all that routers report."""


def tick(fleet: Fleet, now: float) -> None:
    """Take in what routers say of endpoints that we do not know. Nothing is unknown once
    every node has registered with this leader: what such a node runs is known also while it is
    away, and no router is believed to know of more."""
    view = fleet.view
    if view.settling.active or not _out_of_sight(view):
        found: dict[str, int] = {}
    elif now < fleet.unheard_looked + LOOK:
        return
    else:
        fleet.unheard_looked = now
        found = _vouched(fleet, now)
    if found == view.vouched:
        return
    for model in sorted(found.keys() | view.vouched.keys()):
        before, after = view.vouched.get(model, 0), found.get(model, 0)
        if after > before:
            words = f"routers are served by {after} of its replicas that no node in session has: they are not rebuilt"
            fleet.note("vouched", words, model=model, replicas=after)
    view.vouched = found
    fleet.touch(nodes=False)
    fleet.routes_dirty = True


def _out_of_sight(view: FleetView) -> bool:
    return any(node.inventory is None for node in view.nodes.values())


def _vouched(fleet: Fleet, now: float) -> dict[str, int]:
    view = fleet.view
    endpoints: set[str] = set()
    for router in fleet.routers.values():
        age = now - router.at
        if age > WITNESS:
            continue
        for endpoint, load in router.loads.items():
            if endpoint not in view.replicas and _answers(load, age, frozen=view.mass_loss is not None):
                endpoints.add(endpoint)
    found: dict[str, int] = {}
    for endpoint in endpoints:
        model = endpoint.partition("@")[0].rpartition("-")[0]
        if model in view.catalog.models:
            found[model] = found.get(model, 0) + 1
    return found


def _answers(load: EndpointLoad, age: float, *, frozen: bool) -> bool:
    """Whether a router was answered of late. During a mass loss one that nobody asked is
    believed to be there as well, until a request to it fails (REC-11)."""
    if load.answered_seconds is not None and age + load.answered_seconds <= WITNESS:
        return True
    return frozen and not load.failures
