"""The fleet as routers need it: every model of the catalog, where it is served, and
why if it is not (RTR-03). Pure."""

from collections.abc import Generator
from urllib.parse import urlsplit

from controlplane.catalog.model import Catalog, External, Model
from controlplane.fleet.keys import engine_key
from controlplane.planning.state import Standing, routable, standing
from controlplane.planning.view import FleetView, ReplicaView
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


def routes(view: FleetView, engine_secret: bytes | None) -> tuple[RoutedModel, ...]:
    """``routing`` at once."""
    work = routing(view, engine_secret)
    while True:
        try:
            next(work)
        except StopIteration as done:
            table: tuple[RoutedModel, ...] = done.value
            return table


def routing(view: FleetView, engine_secret: bytes | None) -> Generator[None, None, tuple[RoutedModel, ...]]:
    """All models by name. Endpoints are the ready replicas on nodes that are not lost;
    draining ones are left out (REC-06). The engine key is filled in where the engine
    demands one. Stays equal while nothing that matters to a router changes. Yields about
    every 5 ms of work; what happens between two yields is in the rows that come after.

    While settling, routers keep the endpoints they know: those of replicas that are on
    their way out are named, or a drain would go on being fed (REC-06, REC-25)."""
    settling = view.settling.active
    groups: dict[str, list[ReplicaView]] = {}
    for replica in view.replicas.values():
        groups.setdefault(replica.model, []).append(replica)
    table = []
    since = 0
    for name, model in sorted(view.catalog.models.items()):
        since += 1 + len(groups.get(name, ()))
        if since >= ROWS:
            since = 0
            yield
        replicas = sorted(groups.get(name, ()), key=lambda replica: replica.id)
        now_is = standing(view, model, replicas)
        table.append(
            RoutedModel(
                name=name,
                state=now_is.state,
                endpoints=_endpoints(view, model, replicas, now_is, engine_secret),
                aliases=model.aliases,
                created=view.catalog.modified,
                reason="" if now_is.state == "ready" else now_is.reason,
                retry_after=now_is.retry_after,
                listed=now_is.state != "off" and model.role != "guard",
                fallbacks=model.fallbacks,
                guard=model.role == "guard",
                withdrawn=tuple(replica.id for replica in replicas if _leaving(replica)) if settling else (),
            )
        )
    return tuple(table)


def _leaving(replica: ReplicaView) -> bool:
    return replica.unwanted or replica.state in ("draining", "stopping", "failed")


def _endpoints(
    view: FleetView, model: Model, replicas: list[ReplicaView], now_is: Standing, engine_secret: bytes | None
) -> tuple[Endpoint, ...]:
    """Where requests for a model may go: nowhere while it is off or serving is stopped."""
    if now_is.state in ("off", "stopped"):
        return ()
    own = tuple(_endpoint(view, replica, engine_secret) for replica in replicas if routable(view, replica))
    if model.external is None or now_is.state != "ready":
        return own
    return (*own, _provider(model.name, model.external))


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


def _endpoint(view: FleetView, replica: ReplicaView, engine_secret: bytes | None) -> Endpoint:
    spec = replica.shards[0].spec
    model = view.catalog.models[replica.model]
    profile = next((profile for profile in model.profiles if profile.name == replica.profile), None)
    return Endpoint(
        id=replica.id,
        host=spec.host,
        port=spec.port,
        upstream_model=spec.served_name,
        key=engine_key(engine_secret, spec.replica_id) if spec.keyed else "",
        weight=profile.weight if profile else 1.0,
        max_inflight=profile.max_inflight if profile else None,
    )
