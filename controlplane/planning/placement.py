"""Where one more replica of a model goes, and why not elsewhere (PLC-10 to PLC-24).

Pure: a view, an overlay of claims, a model; a verdict for every candidate. Unknown
figures (``None``) never refuse (PLC-16).
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass

from controlplane.catalog.model import Model, Profile
from controlplane.planning.overlay import Claims, Overlay, Work
from controlplane.planning.view import FleetView, Holds, NodeView, Reason, Refusal, ReplicaView, Verdict
from controlplane.planning.words import cores, gb, listing, plural
from llmgw.wire.messages import Device, Inventory, PortRange

DEFAULT_PORTS = PortRange(first=20000, last=20999)
"""Engine ports of a node that does not say."""

__all__ = ["Choice", "Spot", "Work", "choose", "examine", "foreign_processes", "free_port", "refusal"]

RACK = "llmgw.io/rack"
PDU = "llmgw.io/pdu"

FETCHED = frozenset({"hf", "https"})
"""Schemes of sources that an agent must be able to fetch: it says so in its hello, as
``fetch:SCHEME``. One that says nothing cannot."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A node that can take a profile, with the devices and the port it would get."""

    profile: Profile
    node: NodeView
    devices: tuple[str, ...]
    port: int
    score: tuple[tuple[str, float | str], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The best spot, if any, and the verdicts of all candidates. ``examined`` counts them."""

    spot: Spot | None
    verdicts: tuple[Verdict, ...]


def choose(
    view: FleetView,
    overlay: Overlay,
    model: Model,
    nodes: Iterable[str],
    *,
    work: Work,
    now: float,
    leaving: ReplicaView | None = None,
) -> Generator[None, None, Choice]:
    """Examine every profile on every node. Yields between slices of work. ``leaving`` is
    a replica in whose stead the new one comes: it has no part in the spread."""
    order = list(nodes)
    yield from overlay.fill(view, work)
    spread = Spread(view, overlay, model.name, leaving)
    verdicts: list[tuple[Profile, NodeView, Spot | tuple[Reason, ...]]] = []
    best: tuple[tuple[float | str, ...], Spot] | None = None
    for rank, profile in enumerate(model.profiles):
        for node_id in order:
            node = view.nodes.get(node_id)
            if node is None:
                continue
            outcome = examine(node, overlay.on(node_id), profile, spread, holds=view.held(node), now=now)
            verdicts.append((profile, node, outcome))
            if isinstance(outcome, Spot):
                key = (-profile.priority, rank, *(value for _, value in outcome.score))
                if best is None or key < best[0]:
                    best = (key, outcome)
            if work.spent():
                yield
    spot = best[1] if best else None
    return Choice(spot, tuple(_verdict(profile, node, outcome, spot) for profile, node, outcome in verdicts))


def _verdict(profile: Profile, node: NodeView, outcome: "Spot | tuple[Reason, ...]", best: Spot | None) -> Verdict:
    if isinstance(outcome, Spot):
        return Verdict(profile.name, node.id, score=outcome.score, chosen=outcome is best)
    return Verdict(profile.name, node.id, reasons=outcome)


class Spread:
    """Where replicas of one model are already, by node, rack and PDU (PLC-22), and
    where it failed in its present row of failures."""

    def __init__(self, view: FleetView, overlay: Overlay, model: str, leaving: ReplicaView | None = None) -> None:
        health = view.health.get(model)
        self.failed = frozenset(health.failed_nodes) if health else frozenset()
        self.nodes: dict[str, int] = {}
        self.racks: dict[str, int] = {}
        self.pdus: dict[str, int] = {}
        places = list(overlay.places.get(model, ()))
        for shard in leaving.shards.values() if leaving is not None else ():
            if shard.node_id in places:
                places.remove(shard.node_id)
        for node_id in places:
            self.nodes[node_id] = self.nodes.get(node_id, 0) + 1
            node = view.nodes.get(node_id)
            labels: Mapping[str, str] = node.labels if node else {}
            for label, counts in ((RACK, self.racks), (PDU, self.pdus)):
                if label in labels:
                    counts[labels[label]] = counts.get(labels[label], 0) + 1

    def terms(self, node: NodeView) -> tuple[tuple[str, float | str], ...]:
        """First terms of PLC-23. A node without a rack or PDU label shares it with nobody.

        Before them all: a node on which the model just failed (weights that are not
        there, say) comes last, or it would be tried again until the model is parked.
        """
        labels = node.labels
        return (
            ("failed_here", 1.0 if node.id in self.failed else 0.0),
            ("same_rack", self.racks.get(labels.get(RACK, ""), 0)),
            ("same_pdu", self.pdus.get(labels.get(PDU, ""), 0)),
            ("same_node", self.nodes.get(node.id, 0)),
        )


def examine(
    node: NodeView, claims: Claims, profile: Profile, spread: Spread, *, holds: Holds, now: float
) -> Spot | tuple[Reason, ...]:
    """One candidate: a spot, or every reason against it. ``holds`` are the held domains
    that the node is in."""
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
    score = (
        *spread.terms(node),
        # Weights already there (PLC-07) come next, once agents report them.
        ("devices_left", float(free - len(devices))),
        ("untouched", 0.0 if claims.models else 1.0),
        ("memory_left", _memory_left(inventory, claims, profile)),
        ("node", node.id),
    )
    return Spot(profile, node, devices, port, score)


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
    message = f"needs {cores(profile.cpu_cores)} cores, {cores(max(left, 0))} of {count} free after claims"
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


def refusal(model: Model, verdicts: tuple[Verdict, ...], keep: int = 64) -> Refusal:
    """Why nothing fits, in one sentence with the nearest figures (PLC-04, PLC-24).

    All candidates are counted; at most ``keep`` verdicts are kept, the nearest first.
    """
    if not verdicts:
        return Refusal("no_nodes", "no node is enrolled")
    ranked = sorted(verdicts, key=_distance)
    nearest = ranked[0]
    groups: dict[str, set[str]] = {}
    for verdict in verdicts:
        for reason in verdict.reasons if verdict.node_id != nearest.node_id else ():
            groups.setdefault(reason.code, set()).add(verdict.node_id)
    profile = f"profile {nearest.profile} " if len(model.profiles) > 1 else ""
    message = f"{profile}{'; '.join(reason.message for reason in nearest.reasons)} (node {nearest.node_id})"
    others = len({verdict.node_id for verdict in verdicts}) - 1
    if others > 0:
        counted = ", ".join(f"{code} on {len(nodes)}" for code, nodes in sorted(groups.items()))
        message += f"; no better on {plural(others, 'other node')}: {counted}"
    return Refusal(nearest.reasons[0].code, message, tuple(ranked[:keep]))


_NEARNESS = (
    "memory_claimed", "cores_claimed", "devices_claimed", "ports_exhausted", "engine_probing",
    "engine_not_ready", "node_cordoned", "domain_held", "source_not_fetched", "no_device_of_class", "label_mismatch",
    "multi_node", "node_unreachable",
)  # fmt: skip


def _distance(verdict: Verdict) -> tuple[int, int, float, str, str]:
    """How far a candidate is from taking the model: figures before structure."""
    first = verdict.reasons[0]
    worst = max(_NEARNESS.index(reason.code) for reason in verdict.reasons)
    short = (first.needed or 0) - (first.available or 0)
    return worst, len(verdict.reasons), short, verdict.profile, verdict.node_id
