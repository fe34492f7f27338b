"""The fleet as routers need it: every model of the catalog, where it is served, and
why if it is not (RTR-03). Pure."""

from collections.abc import Generator, Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from controlplane.catalog.model import Catalog, External, Model, Profile
from controlplane.fleet.keys import EngineKeys
from controlplane.planning.state import Standing, routable, standing
from controlplane.planning.view import FleetView, ReplicaView
from llmgw.wire.messages import ShardSpec
from llmgw.wire.routing import Endpoint, RoutedAlias, RoutedModel

ROWS = 1000
"""Models and replicas of one slice."""

EXTERNAL = "external:"
"""What the id of an external model's endpoint begins with; the model's name follows."""


def key_files(catalog: Catalog) -> dict[str, str]:
    """The files with the keys of external models, by the id of their endpoint (CAT-10).
    Keys are no business of pure code: the publisher fills them in."""
    return {
        EXTERNAL + name: model.external.api_key_file
        for name, model in sorted(catalog.models.items())
        if model.external is not None and model.external.api_key_file is not None
    }


def aliases(catalog: Catalog) -> tuple[RoutedAlias, ...]:
    """Names that stand for several models by weight (CAT-13)."""
    return tuple(
        RoutedAlias(name=alias.name, targets=alias.targets, sticky=alias.sticky)
        for _, alias in sorted(catalog.aliases.items())
    )


class Routing:
    """Makes tables one after the other. What is as it was in the one before is taken over: of
    thousands of endpoints few change, and the key of each costs a hash."""

    def __init__(self) -> None:
        self._endpoints: dict[str, _Made] = {}
        self._models: dict[str, RoutedModel] = {}

    def at_once(self, view: FleetView, keys: EngineKeys) -> tuple[RoutedModel, ...]:
        """``table`` in one go."""
        work = self.table(view, keys)
        while True:
            try:
                next(work)
            except StopIteration as done:
                table: tuple[RoutedModel, ...] = done.value
                return table

    def table(self, view: FleetView, keys: EngineKeys) -> Generator[None, None, tuple[RoutedModel, ...]]:
        """All models by name. Endpoints are the ready replicas on nodes that are not lost;
        draining ones are left out (REC-06). The engine key is filled in where the engine
        demands one: that of the generation it was started with (SEC-08). Stays equal while
        nothing that matters to a router changes. Yields about every 5 ms of
        work; what happens between two yields is in the rows that come after.

        While settling, routers keep the endpoints they know: those of replicas that are on
        their way out are named, or a drain would go on being fed (REC-06, REC-25)."""
        settling = view.partial
        table: dict[str, RoutedModel] = {}
        made: dict[str, _Made] = {}
        since = 0
        for name, model in sorted(view.catalog.models.items()):
            if since >= ROWS:
                since = 0
                yield
            replicas = sorted(view.replicas.of_model(name), key=lambda replica: replica.id)
            since += 1 + len(replicas)
            now_is = standing(view, model, replicas)
            own = self._own(view, model, replicas, keys)
            made |= own
            row = RoutedModel(
                name=name,
                state=now_is.state,
                endpoints=_endpoints(model, now_is, own.values()),
                aliases=model.aliases,
                created=view.catalog.modified,
                reason="" if now_is.state == "ready" else now_is.reason,
                retry_after=now_is.retry_after,
                listed=now_is.state != "off" and model.role != "guard",
                fallbacks=model.fallbacks,
                guard=model.role == "guard",
                withdrawn=tuple(replica.id for replica in replicas if _leaving(replica)) if settling else (),
            )
            before = self._models.get(name)
            table[name] = before if before is not None and before == row else row
        self._endpoints, self._models = made, table
        return tuple(table.values())

    def _own(self, view: FleetView, model: Model, replicas: list[ReplicaView], keys: EngineKeys) -> dict[str, "_Made"]:
        """The endpoints of a model's replicas, by id."""
        profiles = {profile.name: profile for profile in model.profiles}
        return {
            replica.id: self._endpoint(replica, profiles.get(replica.profile), keys)
            for replica in replicas
            if routable(view, replica)
        }

    def _endpoint(self, replica: ReplicaView, profile: Profile | None, keys: EngineKeys) -> "_Made":
        spec = replica.shards[0].spec
        weight = profile.weight if profile else 1.0
        max_inflight = profile.max_inflight if profile else None
        known = self._endpoints.get(replica.id)
        if (
            known is not None
            and known.keys is keys
            and (known.spec is spec or known.spec == spec)
            and (known.endpoint.weight, known.endpoint.max_inflight) == (weight, max_inflight)
        ):
            return known
        endpoint = Endpoint(
            id=replica.id,
            host=spec.host,
            port=spec.port,
            upstream_model=spec.served_name,
            key=keys.key(spec),
            weight=weight,
            max_inflight=max_inflight,
        )
        return _Made(spec, keys, endpoint)


class _Made(NamedTuple):
    """An endpoint, and what it was made of."""

    spec: ShardSpec
    keys: EngineKeys
    endpoint: Endpoint


def _leaving(replica: ReplicaView) -> bool:
    return replica.unwanted or replica.state in ("draining", "stopping", "failed")


def _endpoints(model: Model, now_is: Standing, own: Iterable[_Made]) -> tuple[Endpoint, ...]:
    """Where requests for a model may go: nowhere while it is off or serving is stopped."""
    if now_is.state in ("off", "stopped"):
        return ()
    ours = tuple(made.endpoint for made in own)
    if model.external is None or now_is.state != "ready":
        return ours
    return (*ours, _provider(model.name, model.external))


def _provider(name: str, external: External) -> Endpoint:
    url = urlsplit(external.url)
    tls = url.scheme == "https"
    return Endpoint(
        id=EXTERNAL + name,
        host=url.hostname or "",
        port=url.port or (443 if tls else 80),
        upstream_model=external.model,
        external=True,
        tls=tls,
        prefix=url.path.rstrip("/"),
    )
