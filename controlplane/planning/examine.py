"""Whether a node can take a profile: what it would get there, or every reason against it
(PLC-10 to PLC-16). Pure. Unknown figures (``None``) never refuse.
"""

from dataclasses import dataclass

from controlplane.catalog.model import Profile
from controlplane.planning.overlay import Claims
from controlplane.planning.view import Holds, NodeView, Reason
from controlplane.planning.words import cores, gb, listing
from llmgw.wire.messages import Device, Inventory, PortRange

DEFAULT_PORTS = PortRange(first=20000, last=20999)
"""Engine ports of a node that does not say."""

FETCHED = frozenset({"hf", "https"})
"""Schemes of sources that an agent must be able to fetch: it says so in its hello, as
``fetch:SCHEME``. One that says nothing cannot."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a profile would get on a node, and the terms of PLC-23 that are the same for
    every model: smaller is better."""

    devices: tuple[str, ...]
    port: int
    devices_left: float
    untouched: float
    memory_left: float


Need = tuple[object, ...]


def need(profile: Profile) -> Need:
    """All that ``examine`` looks at of a profile: two with the same need get the same
    answer on every node."""
    scheme = profile.source.partition(":")[0]
    return (
        profile.engine,
        scheme if scheme in FETCHED else "",
        profile.nodes,
        tuple(sorted(profile.node_selector.items())),
        profile.gpu_class,
        profile.gpus,
        profile.memory_bytes,
        profile.cpu_cores,
    )


def examine(node: NodeView, claims: Claims, profile: Profile, *, holds: Holds, now: float) -> Fit | tuple[Reason, ...]:
    """One candidate: what it would get, or every reason against it. ``holds`` are the held
    domains that the node is in. What it looks at of a node is in ``candidates.Seen``, and of a
    profile in ``need``: both must follow it."""
    inventory = node.inventory
    if not node.registered or inventory is None:
        return (_not_in_session(node),)
    reasons: list[Reason] = []
    if node.cordon is not None:
        why = f": {node.cordon.reason}" if node.cordon.reason else ""
        reasons.append(Reason("node_cordoned", f"the node is cordoned by {node.cordon.actor}{why}"))
    for domain, hold in holds:
        why = f": {hold.reason}" if hold.reason else ""
        reasons.append(Reason("domain_held", f"domain {domain} is held by {hold.actor}{why}"))
    reasons += _engine(inventory, profile)
    reasons += _source(node, profile)
    if profile.nodes > 1:
        message = f"needs {profile.nodes} nodes; this release places a replica on one node only"
        reasons.append(Reason("multi_node", message, profile.nodes, 1))
    reasons += _labels(node, profile)
    devices, free, device_reason = _devices(node, inventory, claims, profile)
    if device_reason:
        reasons.append(device_reason)
    reasons += _memory(inventory, claims, profile)
    reasons += _cores(inventory, claims, profile)
    port = free_port(node, claims, now)
    if port is None:
        span = inventory.engine_ports or DEFAULT_PORTS
        reasons.append(Reason("ports_exhausted", f"no port of {span.first}-{span.last} is free", 1, 0))
    if reasons or port is None:
        return tuple(reasons)
    # Weights already there (PLC-07) come before these, once agents report them.
    return Fit(
        devices,
        port,
        devices_left=float(free - len(devices)),
        untouched=0.0 if claims.models else 1.0,
        memory_left=_memory_left(inventory, claims, profile),
    )


def _not_in_session(node: NodeView) -> Reason:
    if node.session is not None:
        return Reason("node_unreachable", "the node is in session but has not registered yet")
    if node.last_heard is None:
        return Reason("node_unreachable", "the node has not been heard from since this control plane started")
    status = "reconnecting" if node.status == "connected" else node.status
    return Reason("node_unreachable", f"the node is {status}: it is not in session")


def _engine(inventory: Inventory, profile: Profile) -> list[Reason]:
    if inventory.engines is None:
        return []
    for engine in inventory.engines:
        if engine.name != profile.engine or engine.state == "ready":
            continue
        words = f": {engine.detail}" if engine.detail else ""
        code = "engine_probing" if engine.state == "probing" else "engine_not_ready"
        return [Reason(code, f"{engine.name} is {engine.state}{words}")]
    if any(engine.name == profile.engine for engine in inventory.engines):
        return []
    known = listing(sorted(engine.name for engine in inventory.engines)) or "none"
    return [Reason("engine_not_ready", f"{profile.engine} is not installed (the node has: {known})")]


def _source(node: NodeView, profile: Profile) -> list[Reason]:
    scheme = profile.source.partition(":")[0]
    if scheme not in FETCHED or f"fetch:{scheme}" in node.capabilities:
        return []
    message = (
        f"weights from {scheme}: are fetched by the node's agent, and this one "
        f"({node.agent_version or 'of unknown version'}) cannot: put them on the node and name them with file:"
    )
    return [Reason("source_not_fetched", message)]


def _labels(node: NodeView, profile: Profile) -> list[Reason]:
    reasons = []
    labels = node.labels if profile.node_selector else {}
    for label, wanted in sorted(profile.node_selector.items()):
        has = labels.get(label)
        if has != wanted:
            found = "the node has no such label" if has is None else f"the node has {has}"
            reasons.append(Reason("label_mismatch", f"needs label {label}={wanted}; {found}"))
    return reasons


def foreign_processes(node: NodeView) -> dict[str, tuple[str, ...]]:
    """Devices on which processes run that are not ours, by UUID. Unmeasured is not foreign."""
    measured = node.measurements.devices if node.measurements else ()
    return {use.uuid: use.foreign_processes for use in measured if use.foreign_processes}


def _devices(
    node: NodeView, inventory: Inventory, claims: Claims, profile: Profile
) -> tuple[tuple[str, ...], int, Reason | None]:
    """The devices it would get, how many are free (of its class, or of any for a
    profile without devices), and the reason against it."""
    foreign = foreign_processes(node)
    matching = [d for d in inventory.devices if profile.gpus == 0 or d.device_class == profile.gpu_class]
    free: list[Device] = []
    notes: list[str] = []
    for device in matching:
        if device.excluded:
            notes.append(f"{device.uuid} is excluded: {device.excluded}")
        elif device.uuid in foreign:
            notes.append(f"{device.uuid} is used by {listing(foreign[device.uuid])}")
        elif device.uuid not in claims.devices:
            free.append(device)
    if profile.gpus == 0:
        return (), len(free), None
    if not matching:
        classes = listing(sorted({d.device_class for d in inventory.devices if d.device_class})) or "none"
        message = f"needs {profile.gpus} x {profile.gpu_class}; the node has: {classes}"
        return (), 0, Reason("no_device_of_class", message, profile.gpus, 0)
    if len(free) < profile.gpus:
        usable = len(matching) - len(notes)
        message = f"needs {profile.gpus} x {profile.gpu_class}, {len(free)} of {len(matching)} free after claims"
        if notes:
            message += f" ({'; '.join(notes[:3])})"
        code = "devices_claimed" if usable else "no_device_of_class"
        return (), len(free), Reason(code, message, profile.gpus, len(free))
    free.sort(key=lambda device: (device.index is None, device.index or 0, device.uuid))
    return tuple(device.uuid for device in free[: profile.gpus]), len(free), None


def _memory(inventory: Inventory, claims: Claims, profile: Profile) -> list[Reason]:
    if not profile.memory_bytes or inventory.memory_bytes is None:
        return []
    left = inventory.memory_bytes - claims.memory
    if profile.memory_bytes <= left:
        return []
    message = (
        f"needs {gb(profile.memory_bytes)} GB memory, "
        f"{gb(max(left, 0))} of {gb(inventory.memory_bytes)} GB free after claims"
    )
    return [Reason("memory_claimed", message, profile.memory_bytes, left)]


def _cores(inventory: Inventory, claims: Claims, profile: Profile) -> list[Reason]:
    count = inventory.cpu.count
    if not profile.cpu_cores or count is None:
        return []
    left = count - claims.cores
    if profile.cpu_cores <= left + 1e-9:
        return []
    noun = "core" if profile.cpu_cores == 1 else "cores"
    message = f"needs {cores(profile.cpu_cores)} {noun}, {cores(max(left, 0))} of {count} free after claims"
    return [Reason("cores_claimed", message, profile.cpu_cores, left)]


def _memory_left(inventory: Inventory, claims: Claims, profile: Profile) -> float:
    """Share of the node's memory left after this placement; unknown ranks in the middle."""
    if not inventory.memory_bytes:
        return 0.5
    return round((inventory.memory_bytes - claims.memory - (profile.memory_bytes or 0)) / inventory.memory_bytes, 2)


def free_port(node: NodeView, claims: Claims, now: float) -> int | None:
    """Lowest port of the node's range that is not claimed, not in the kernel's
    ephemeral range, and was not found in use of late (PLC-13)."""
    inventory = node.inventory
    span = (inventory.engine_ports if inventory else None) or DEFAULT_PORTS
    ephemeral = inventory.ephemeral_ports if inventory else None
    port = max(span.first, 1)
    while port <= min(span.last, 65535):
        if ephemeral is not None and ephemeral.first <= port <= ephemeral.last:
            port = ephemeral.last + 1
            continue
        if port not in claims.ports and node.avoid_ports.get(port, now) <= now:
            return port
        port += 1
    return None
