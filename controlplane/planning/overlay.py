"""Claims on every node: those of the view, and those a plan adds on top.

Claims last until the exit of a shard is confirmed or its node is lost (PLC-13): a
replica that is stopping still holds its port, memory and devices.
"""

from collections.abc import Generator
from dataclasses import dataclass, field

from controlplane.catalog.model import Catalog
from controlplane.planning.view import FleetView, ReplicaView
from controlplane.planning.work import Work
from llmgw.wire.messages import ShardSpec


@dataclass(slots=True)
class Claims:
    """What is taken on one node. Devices and ports map to the replica that holds them."""

    memory: int = 0
    cores: float = 0.0
    devices: dict[str, str] = field(default_factory=dict)
    ports: dict[int, str] = field(default_factory=dict)
    models: dict[str, int] = field(default_factory=dict)
    """How many shards of each model."""


EMPTY = Claims()

PER_UNIT = 16
"""Replicas whose claims are taken in one unit of work."""


def claimed_memory(catalog: Catalog, spec: ShardSpec) -> int:
    """Bytes a shard claims: what the catalog declares for its profile now (PLC-04),
    else what its spec says; unknown claims nothing."""
    model = catalog.models.get(spec.model)
    for profile in model.profiles if model else ():
        if profile.name == spec.profile:
            return profile.memory_bytes or 0
    return spec.memory_bytes or 0


def _less(models: dict[str, int], model: str) -> dict[str, int]:
    left = {**models, model: models.get(model, 0) - 1}
    return {name: count for name, count in left.items() if count > 0}


class Overlay:
    """The claims a plan works on. Changing it changes no view. With ``later`` it is empty
    until ``fill`` filled it: a pass that places nothing needs no claims. ``log`` names the
    nodes whose claims were changed, in order; a copy (``without``) shares it."""

    def __init__(self, view: FleetView, *, later: bool = False) -> None:
        self.catalog = view.catalog
        self.nodes: dict[str, Claims] = {}
        self.places: dict[str, list[str]] = {}
        self.ids: set[str] = set()
        self.log: list[str] = []
        self.filled = not later
        if not later:
            for replica in view.replicas.values():
                self.add_replica(replica)

    def fill(self, view: FleetView, work: Work) -> Generator[None, None, None]:
        """Take the claims of all replicas, in slices. One that changes meanwhile may be
        taken as it was; ``check`` sees what that breaks."""
        if self.filled:
            return
        self.filled = True
        for number, replica in enumerate(list(view.replicas.values())):
            self.add_replica(replica)
            if number % PER_UNIT == 0 and work.spent():
                yield

    def add_replica(self, replica: ReplicaView) -> None:
        """Add the claims of the live shards of a replica."""
        self.ids.add(replica.id)
        for shard in replica.shards.values():
            if shard.live:
                self.add(replica.id, shard.node_id, shard.spec)

    def add(self, replica_id: str, node_id: str, spec: ShardSpec) -> None:
        """Add the claims of one shard."""
        self.ids.add(replica_id)
        self.log.append(node_id)
        claims = self.nodes.setdefault(node_id, Claims())
        claims.memory += claimed_memory(self.catalog, spec)
        claims.cores += spec.cpu_cores or 0.0
        claims.models[spec.model] = claims.models.get(spec.model, 0) + 1
        claims.ports[spec.port] = replica_id
        for uuid in spec.devices:
            claims.devices[uuid] = replica_id
        self.places.setdefault(spec.model, []).append(node_id)

    def without(self, replica: ReplicaView) -> "Overlay":
        """A copy in which a replica holds nothing."""
        copy = Overlay.__new__(Overlay)
        copy.catalog, copy.ids, copy.filled, copy.log = self.catalog, self.ids, True, self.log
        copy.nodes, copy.places = dict(self.nodes), dict(self.places)
        for shard in replica.shards.values():
            held, spec = copy.nodes.get(shard.node_id), shard.spec
            if held is None or not shard.live:
                continue
            copy.nodes[shard.node_id] = Claims(
                memory=held.memory - claimed_memory(self.catalog, spec),
                cores=held.cores - (spec.cpu_cores or 0.0),
                devices={uuid: owner for uuid, owner in held.devices.items() if owner != replica.id},
                ports={port: owner for port, owner in held.ports.items() if owner != replica.id},
                models=_less(held.models, spec.model),
            )
            places = list(copy.places.get(spec.model, ()))
            if shard.node_id in places:
                places.remove(shard.node_id)
            copy.places[spec.model] = places
        return copy

    def on(self, node_id: str) -> Claims:
        """The claims on a node. Not to be changed."""
        return self.nodes.get(node_id, EMPTY)
