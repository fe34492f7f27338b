"""The fleet as routers need it: every model of the catalog, where it is served, and
why if it is not (RTR-03). Pure."""

from controlplane.fleet.keys import engine_key
from controlplane.planning.state import routable, standing
from controlplane.planning.view import FleetView, ReplicaView
from llmgw.wire.routing import Endpoint, RoutedModel


def routes(view: FleetView, engine_secret: bytes | None) -> tuple[RoutedModel, ...]:
    """All models by name. Endpoints are the ready replicas on nodes that are not lost;
    draining ones are left out (REC-06). The engine key is filled in where the engine
    demands one. Stays equal while nothing that matters to a router changes.

    While settling, routers keep the endpoints they know: those of replicas that are on
    their way out are named, or a drain would go on being fed (REC-06, REC-25)."""
    settling = view.settling.active
    groups: dict[str, list[ReplicaView]] = {}
    for replica in view.replicas.values():
        groups.setdefault(replica.model, []).append(replica)
    table = []
    for name, model in sorted(view.catalog.models.items()):
        replicas = sorted(groups.get(name, ()), key=lambda replica: replica.id)
        now_is = standing(view, model, replicas)
        listed = now_is.state != "off"
        table.append(
            RoutedModel(
                name=name,
                state=now_is.state,
                endpoints=tuple(
                    _endpoint(view, replica, engine_secret)
                    for replica in replicas
                    if listed and routable(view, replica)
                ),
                aliases=model.aliases,
                created=view.catalog.modified,
                reason="" if now_is.state == "ready" else now_is.reason,
                retry_after=now_is.retry_after,
                listed=listed,
                withdrawn=tuple(replica.id for replica in replicas if _leaving(replica)) if settling else (),
            )
        )
    return tuple(table)


def _leaving(replica: ReplicaView) -> bool:
    return replica.unwanted or replica.state in ("draining", "stopping", "failed")


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
