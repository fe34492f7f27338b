"""Independent verification of a plan before anything of it happens.

Shares no code with placement or the overlay: it counts again, from the view and the
plan alone. A violation is a fault of ours; it rejects the actions of that model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from controlplane.catalog.model import Profile
from controlplane.planning.plan import Action, Drain, Place, Plan
from controlplane.planning.view import FleetView, NodeView, ReplicaView
from llmgw.wire.messages import ShardSpec

NODES = 300
"""Nodes of one slice of a check of the whole."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant and the model whose actions broke it."""

    model: str
    message: str


@dataclass(slots=True)
class _Use:
    """What is held on one node, counted here."""

    memory: int = 0
    cores: float = 0.0
    devices: dict[str, str] = field(default_factory=dict)
    ports: dict[int, str] = field(default_factory=dict)


def check(plan: Plan, view: FleetView) -> list[Violation]:
    """Every invariant the plan's actions would break, in the order of the actions.

    Cost: replicas of the models acted on, shards on the nodes placed on.
    """
    if not plan.actions:
        return []
    models = {action.model for action in plan.actions}
    touched = {place.node_id for action in plan.actions if isinstance(action, Place) for place in action.shards}
    use = {node_id: _Use() for node_id in touched}
    alive: dict[str, int] = {}
    restarts: dict[str, str] = {}
    for model in models:
        found_model = view.catalog.models.get(model)
        profiles = {profile.name for profile in found_model.profiles} if found_model else set()
        for replica in view.replicas.of_model(model):
            if _counted(replica):
                alive[model] = alive.get(model, 0) + (replica.profile in profiles)
            if replica.restart not in (None, "queued"):
                restarts[model] = replica.id
    for replica in view.replicas.on_nodes(touched):
        for shard in replica.shards.values():
            if shard.phase not in ("exited", "lost") and shard.node_id in use:
                _hold(view, use[shard.node_id], replica.id, shard.spec)
    found: list[Violation] = []
    seen: set[str] = set()
    for action in plan.actions:
        messages = [*_action(action, view, use, alive), *_restarts(action, view, restarts)]
        if action.replica in seen:
            messages.append(f"two actions on replica {action.replica} in one pass")
        seen.add(action.replica)
        found += [Violation(action.model, message) for message in messages]
    return found


def _hold(view: FleetView, use: _Use, replica_id: str, spec: ShardSpec) -> None:
    profile = _profile(view, spec.model, spec.profile)
    use.memory += (profile.memory_bytes if profile else spec.memory_bytes) or 0
    use.cores += spec.cpu_cores or 0
    use.ports.setdefault(spec.port, replica_id)
    for uuid in spec.devices:
        use.devices.setdefault(uuid, replica_id)


def _profile(view: FleetView, model: str, profile: str) -> Profile | None:
    found = view.catalog.models.get(model)
    return next((p for p in found.profiles if p.name == profile), None) if found else None


def _action(action: Action, view: FleetView, use: dict[str, _Use], alive: dict[str, int]) -> Iterable[str]:
    if not action.reason:
        yield f"replica {action.replica} without a reason"
    if isinstance(action, Place):
        yield from _place(action, view, use, alive)
        return
    if view.lease.doubtful:
        yield f"replica {action.replica} ends while the lease is in doubt"
    replica = view.replicas.get(action.replica)
    if replica is not None and _counted(replica) and not _outdated(view, replica):
        alive[replica.model] -= 1
    if replica is None:
        yield f"replica {action.replica} does not exist"
    elif replica.unwanted:
        yield f"replica {action.replica} is already stopping"
    elif isinstance(action, Drain) and replica.state != "ready":
        yield f"replica {action.replica} is {replica.state}: only a ready one drains"
    elif not isinstance(action, Drain) and replica.state == "ready":
        yield f"replica {action.replica} is ready: it drains before it stops"
    elif not isinstance(action, Drain) and replica.state == "draining" and _early(replica, action.figures):
        yield f"replica {action.replica} began to drain just now"


def _early(replica: ReplicaView, figures: dict[str, object]) -> bool:
    """A drain ends by a witness or its deadline; both say how long it took."""
    return replica.deadline is not None and "drained" not in figures


def _place(action: Place, view: FleetView, use: dict[str, _Use], alive: dict[str, int]) -> Iterable[str]:
    model = view.catalog.models.get(action.model)
    profile = _profile(view, action.model, action.profile)
    if model is None or profile is None:
        yield f"model {action.model} has no profile {action.profile} in the catalog"
        return
    if view.settling.active:
        yield "a replica is placed while the control plane settles"
    if action.heals is not None:
        yield from _heals(action, view)
    elif view.lease.doubtful:
        yield "a replica is placed while the lease is in doubt"
    if action.replica in view.replicas:
        yield f"replica id {action.replica} is taken"
    health = view.health.get(action.model)
    if health is not None and (health.parked or health.quarantined):
        yield f"model {action.model} is {'parked' if health.parked else 'quarantined'}"
    if view.serving.stopped:
        yield "a replica is placed while serving is stopped"
    if profile.nodes > 1:
        yield f"a replica over {profile.nodes} nodes is placed on one"
    alive[action.model] = alive.get(action.model, 0) + (action.replaces is None)
    if alive[action.model] > model.scaling.max:
        yield f"model {action.model} would have {alive[action.model]} replicas; its max is {model.scaling.max}"
    if not action.shards:
        yield f"replica {action.replica} without a shard"
    for place in action.shards:
        node = view.nodes.get(place.node_id)
        if node is None or node.inventory is None or not node.registered:
            yield f"node {place.node_id} is not in session"
            continue
        if node.cordon is not None:
            yield f"node {place.node_id} is cordoned"
        for label, value in {**node.inventory.labels, **node.own_labels}.items():
            if f"{label}={value}" in view.holds:
                yield f"node {place.node_id} is in domain {label}={value}, which is held"
        scheme = place.spec.source.split(":", 1)[0]
        if scheme in ("hf", "https") and f"fetch:{scheme}" not in node.capabilities:
            yield f"node {place.node_id} cannot fetch {place.spec.source}"
        if place.spec.replica_id != action.replica:
            yield f"a spec of replica {place.spec.replica_id} in the placement of {action.replica}"
        yield from _shard(node, place.spec, profile, use[place.node_id], action.replica)
        _hold(view, use[place.node_id], action.replica, place.spec)


def _heals(action: Place, view: FleetView) -> Iterable[str]:
    """While the lease is in doubt a failed replica comes back where it was, once (HA-01)."""
    old = view.replicas.get(action.heals or "")
    if old is None or old.state != "failed" or old.model != action.model:
        yield f"replica {action.replica} heals {action.heals}, which did not fail"
        return
    if old.healed:
        yield f"replica {old.id} was healed before"
    if any(shard.phase not in ("exited", "lost") for shard in old.shards.values()):
        yield f"replica {old.id} is healed while it runs"
    were, are = ({shard.node_id for shard in shards} for shards in (old.shards.values(), action.shards))
    if were != are:
        yield f"replica {action.replica} heals {old.id} on another node than where that was"


def _restarts(action: Action, view: FleetView, restarts: dict[str, str]) -> Iterable[str]:
    """One restart at a time of each model; the old one counts no more once the new one
    does, and drains when the new one is ready (REC-30)."""
    replaces = action.replaces if isinstance(action, Place) else None
    if not isinstance(action, Place) and action.restart == "replaced":
        old = view.replicas.get(action.replica)
        new = view.replicas.get((old.restarting.replacement or "") if old and old.restarting else "")
        if old is None or old.restart != "replacing" or new is None or new.state != "ready" or new.unwanted:
            yield f"replica {action.replica} ends as replaced, and no replacement of it is ready"
        return
    begins = replaces if isinstance(action, Place) else action.replica if action.restart == "in place" else None
    if begins is None:
        return
    old = view.replicas.get(begins)
    if old is None or old.model != action.model or old.restart != "queued" or not _counted(old):
        yield f"nobody asked for a restart of replica {begins}, or it is under way"
    if action.model in restarts:
        yield f"replica {begins} is restarted while replica {restarts[action.model]} is"
    restarts[action.model] = begins


def _outdated(view: FleetView, replica: ReplicaView) -> bool:
    """Counted as alive but on its way out, because its profile left the catalog."""
    return _counted(replica) and _profile(view, replica.model, replica.profile) is None


def _counted(replica: ReplicaView) -> bool:
    """Whether it is one of those that make up its model's number."""
    going = replica.state in ("draining", "failed", "gone")
    replaced = replica.restarting is not None and replica.restarting.state == "replacing"
    return not (going or replaced or replica.unwanted or replica.surplus)


def _shard(node: NodeView, spec: ShardSpec, profile: Profile, use: _Use, replica_id: str) -> Iterable[str]:
    inventory = node.inventory
    if inventory is None:
        return
    if spec.port in use.ports:
        yield f"port {spec.port} on {node.id} is held by {use.ports[spec.port]}"
    ephemeral, span = inventory.ephemeral_ports, inventory.engine_ports
    if ephemeral is not None and ephemeral.first <= spec.port <= ephemeral.last:
        yield f"port {spec.port} on {node.id} is in the kernel's ephemeral range"
    if span is not None and not span.first <= spec.port <= span.last:
        yield f"port {spec.port} on {node.id} is outside {span.first}-{span.last}"
    devices = {device.uuid: device for device in inventory.devices}
    if len(set(spec.devices)) != profile.gpus:
        yield f"{len(set(spec.devices))} devices for a profile of {profile.gpus}"
    for uuid in spec.devices:
        device = devices.get(uuid)
        if device is None:
            yield f"node {node.id} has no device {uuid}"
        elif device.excluded or device.device_class != profile.gpu_class:
            yield f"device {uuid} is excluded or of class {device.device_class}, not {profile.gpu_class}"
        if uuid in use.devices:
            yield f"device {uuid} is held by {use.devices[uuid]}"
    memory, cores = profile.memory_bytes or 0, spec.cpu_cores or 0
    if memory and inventory.memory_bytes is not None and use.memory + memory > inventory.memory_bytes:
        yield f"{replica_id} takes node {node.id} to {use.memory + memory} of {inventory.memory_bytes} bytes"
    if cores and inventory.cpu.count is not None and use.cores + cores > inventory.cpu.count + 1e-6:
        yield f"{replica_id} takes node {node.id} to {use.cores + cores:g} of {inventory.cpu.count} cores"


def check_view(view: FleetView) -> Iterator[list[Violation]]:
    """Invariants of the whole view, ``NODES`` of it at a time: one owner for each device and
    port. What agents report can break them too (two engines on one device), so this only
    tells."""
    nodes = view.replicas.nodes()
    for first in range(0, len(nodes), NODES):
        yield [violation for node_id in nodes[first : first + NODES] for violation in _owners(view, node_id)]


def _owners(view: FleetView, node_id: str) -> Iterable[Violation]:
    owners: dict[str | int, str] = {}
    for replica in view.replicas.on_node(node_id):
        for shard in replica.shards.values():
            if shard.node_id != node_id or shard.phase in ("exited", "lost"):
                continue
            things: tuple[str | int, ...] = (shard.spec.port, *shard.spec.devices)
            for thing in things:
                owner = owners.setdefault(thing, replica.id)
                if owner != replica.id:
                    what = f"port {thing}" if isinstance(thing, int) else f"device {thing}"
                    message = f"{what} of node {node_id} is held by {owner} and by {replica.id}"
                    yield Violation(replica.model, message)
