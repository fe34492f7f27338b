"""The route table as the data path uses it. PURE (RTR-03).

Swapped whole. The live state of an endpoint that stays is kept; one that leaves gets no
new requests while its running streams finish, since they hold it themselves.
"""

from collections.abc import Iterable
from urllib.parse import quote

import msgspec

from llmgw.wire.routing import Endpoint, RoutedModel, RouteTable
from router.keys import KeyRing

_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


class Live:
    """One endpoint and what this process knows of it.

    Times are monotonic seconds and ``None`` until the first. ``failures`` counts since
    the last report. ``heads`` caches the request heads sent to it.
    """

    __slots__ = (
        "answered_at",
        "avoid_until",
        "endpoint",
        "failures",
        "heads",
        "inflight",
        "max_inflight",
        "used_at",
        "weight",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.inflight = 0
        self.used_at: float | None = None
        self.answered_at: float | None = None
        self.failures = 0
        self.avoid_until = float("-inf")
        self.describe(endpoint)

    def describe(self, endpoint: Endpoint) -> None:
        """Take over what a newer table says about the same endpoint."""
        self.endpoint = endpoint
        self.weight = endpoint.weight
        self.max_inflight = endpoint.max_inflight
        self.heads: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"Live({self.endpoint!r}, inflight={self.inflight})"


class Route:
    """A model and its endpoints. ``fallbacks`` are the models to try after it, theirs
    included; ``told`` is the header line that says that this model answered."""

    __slots__ = ("endpoints", "fallbacks", "model", "told")

    def __init__(self, model: RoutedModel, endpoints: tuple[Live, ...]) -> None:
        self.model = model
        self.endpoints = endpoints
        self.fallbacks: tuple[Route, ...] = ()
        self.told = b"x-llmgw-model: %b\r\n" % quote(model.name, safe=_SAFE).encode()


class Split:
    """An alias that stands for several models by weight (CAT-13)."""

    __slots__ = ("name", "sticky", "targets")

    def __init__(self, name: str, targets: tuple[tuple[Route, float], ...], sticky: bool) -> None:
        self.name = name
        self.targets = targets
        self.sticky = sticky


class Routes:
    """A route table, indexed. ``models`` holds the names and aliases that clients may ask
    for, ``splits`` the weighted ones; ``leaving`` are the endpoints that are in no table any
    more and still have requests. Judges (CAT-11) are under no name."""

    __slots__ = ("keys", "leaving", "live", "models", "splits", "table")

    def __init__(
        self,
        table: RouteTable,
        models: dict[str, Route],
        live: dict[str, Live],
        leaving: tuple[Live, ...] = (),
        splits: dict[str, Split] | None = None,
    ) -> None:
        self.table = table
        self.models = models
        self.live = live
        self.leaving = leaving
        self.splits = splits or {}
        self.keys = KeyRing(table.keys)


def build(table: RouteTable, previous: Routes | None = None) -> Routes:
    """Index ``table``; endpoints that ``previous`` has at the same address keep their
    live state. A model's own name wins over another's alias."""
    held_before = (*previous.leaving, *previous.live.values()) if previous is not None else ()
    known = {held.endpoint.id: held for held in held_before}
    live: dict[str, Live] = {}
    routes = []
    for model in table.models:
        lives = []
        for endpoint in model.endpoints:
            held = live.get(endpoint.id) or known.get(endpoint.id)
            if held is None or (held.endpoint.host, held.endpoint.port) != (endpoint.host, endpoint.port):
                held = Live(endpoint)
            elif held.endpoint != endpoint:
                held.describe(endpoint)
            live[endpoint.id] = held
            lives.append(held)
        if not model.guard:
            routes.append(Route(model, tuple(lives)))
    models: dict[str, Route] = {}
    for route in routes:
        models.setdefault(route.model.name, route)
    for route in routes:
        for alias in route.model.aliases:
            models.setdefault(alias, route)
    for route in routes:
        if route.model.fallbacks:
            route.fallbacks = tuple(_fallbacks(route, models))
    splits = {}
    for weighted in table.aliases:
        targets = tuple((models[name], weight) for name, weight in weighted.targets if name in models and weight > 0)
        if targets and weighted.name not in models:
            splits[weighted.name] = Split(weighted.name, targets, weighted.sticky)
    # A drain ends when no router reports requests on the replica: forgetting these would cut them off.
    leaving = tuple(held for held in held_before if held.inflight and live.get(held.endpoint.id) is not held)
    return Routes(table, models, live, leaving, splits)


def _fallbacks(route: Route, models: dict[str, Route]) -> list[Route]:
    """What to try after ``route``: each of its fallbacks, followed by that one's own unless
    people switched it off. Nothing twice, whatever the table says."""
    found: list[Route] = []
    ahead = list(reversed(route.model.fallbacks))
    while ahead:
        after = models.get(ahead.pop())
        if after is None or after is route or after in found or after.model.state in ("off", "stopped"):
            continue
        found.append(after)
        ahead += reversed(after.model.fallbacks)
    return found


def settle(known: RouteTable | None, fresh: RouteTable) -> RouteTable:
    """``fresh``, with what must be kept of ``known`` while the control plane settles (REC-25).

    A control plane that has just started has not heard from every agent. Until it has,
    endpoints known from before stay in use, of models that it still lists and that
    nobody switched off, unless it withdraws them. An address that a new endpoint uses is no longer the old one's.
    External providers are written in the catalog, so no agent is waited for.
    """
    if not fresh.settling or known is None:
        return fresh
    before = {model.name: model for model in known.models}
    taken = set(_addresses(fresh.models))
    models = []
    for model in fresh.models:
        old = before.get(model.name)
        kept: tuple[Endpoint, ...] = ()
        if old is not None and model.state not in ("off", "stopped"):
            ids = {endpoint.id for endpoint in model.endpoints} | set(model.withdrawn)
            kept = tuple(
                e for e in old.endpoints if e.id not in ids and (e.host, e.port) not in taken and not e.external
            )
        models.append(msgspec.structs.replace(model, endpoints=model.endpoints + kept) if kept else model)
    return msgspec.structs.replace(fresh, models=tuple(models))


def _addresses(models: Iterable[RoutedModel]) -> Iterable[tuple[str, int]]:
    for model in models:
        for endpoint in model.endpoints:
            yield endpoint.host, endpoint.port
