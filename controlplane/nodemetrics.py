"""The metrics of nodes, their devices and what runs on them, as text (OBS-01).

They are nearly all of what a scrape of a large fleet holds: some 60 lines for each node of
eight devices, written once for each heartbeat.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from controlplane.exposition import Family
from controlplane.planning.view import NodeView, ReplicaView
from llmgw.wire.messages import Device, Inventory, Measurements, ShardUse

Figure = float | None


@dataclass(frozen=True, slots=True)
class _Of:
    """One family, and how its figure is read: of a node, of a device, of its use or of a
    shard's. ``measured``: it changes with every heartbeat."""

    family: Family
    read: Callable[..., Figure]
    measured: bool


def _node(name: str, text: str, read: Callable[[NodeView], Figure] | str) -> _Of:
    measured = isinstance(read, str)
    return _Of(Family(name, text, ("node",)), attrgetter(read) if isinstance(read, str) else read, measured)


def _device(name: str, text: str, read: Callable[[Device], Figure] | str) -> _Of:
    measured = isinstance(read, str)
    labels = ("node", "device", "class")
    return _Of(Family(name, text, labels), attrgetter(read) if isinstance(read, str) else read, measured)


def _shard(name: str, text: str, read: str) -> _Of:
    return _Of(Family(name, text, ("node", "model", "replica", "rank")), attrgetter(read), measured=True)


_NODES = (
    _node("llmgw_node_up", "1 if the node is in session.", lambda node: int(node.registered)),
    _node("llmgw_node_cordoned", "1 if nothing new is placed on the node.", lambda node: int(node.cordon is not None)),
    _node("llmgw_node_cpus", "Logical CPUs.", lambda node: node.inventory.cpu.count if node.inventory else None),
    _node("llmgw_node_cpu_utilization_percent", "Use of all CPUs.", "cpu_percent"),
    _node("llmgw_node_load", "Load average over one minute.", "load1"),
    _node(
        "llmgw_node_memory_total_bytes", "Memory.", lambda node: node.inventory.memory_bytes if node.inventory else None
    ),
    _node("llmgw_node_memory_used_bytes", "Memory in use.", "memory_used_bytes"),
    _node("llmgw_node_memory_available_bytes", "Memory available.", "memory_available_bytes"),
)

_DEVICES = (
    _device(
        "llmgw_device_excluded", "1 if the device must not be used.", lambda device: int(device.excluded is not None)
    ),
    _device("llmgw_device_memory_total_bytes", "Memory of the device.", lambda device: device.memory_bytes),
    _device("llmgw_device_memory_used_bytes", "Memory in use.", "memory_used_bytes"),
    _device("llmgw_device_utilization_percent", "Utilisation.", "utilization_percent"),
    _device("llmgw_device_temperature_celsius", "Temperature.", "temperature_celsius"),
    _device("llmgw_device_power_watts", "Power drawn.", "power_watts"),
)

_SHARDS = (
    _shard("llmgw_shard_cpu_cores", "Cores a shard's processes use.", "cpu_cores"),
    _shard("llmgw_shard_memory_bytes", "Resident memory of a shard's processes.", "memory_bytes"),
)

_ALL = (*_NODES, *_DEVICES, *_SHARDS)

FAMILIES = tuple(row.family for row in _ALL)
"""In the order in which they are told."""

PIECE = 1000
"""Nodes whose lines of a family are put together in one go."""

_Shard = tuple[str, int, str]
"""A replica's id, a rank, and the replica's model."""


class _Node:
    """What is told of one node: its lines by family, kept until what they say changes."""

    __slots__ = ("_devices", "_facts", "_labels", "_measured", "_shards", "texts")

    def __init__(self, node_id: str) -> None:
        self.texts: dict[str, str] = {}
        self._labels = _NODES[0].family.labelled((node_id,))
        self._facts: tuple[Inventory | None, bool, bool] | None = None
        self._measured: Measurements | None = None
        self._devices: tuple[tuple[str, str], ...] = ()
        self._shards: tuple[_Shard, ...] = ()

    def update(self, node: NodeView, measured: Measurements, replicas: Mapping[str, ReplicaView]) -> None:
        """Bring the lines up to date."""
        facts = (node.inventory, node.registered, node.cordon is not None)
        if self._facts is None or self._facts[0] is not facts[0] or self._facts[1:] != facts[1:]:
            self._facts = facts
            self._measured = None
            self._tell_facts(node)
        fresh = self._measured is not measured
        if fresh:
            self._measured = measured
            uses = {use.uuid: use for use in measured.devices}
            known = [(labels, uses[uuid]) for uuid, labels in self._devices if uuid in uses]
            self._tell(_NODES, [(self._labels, measured)])
            self._tell(_DEVICES, known)
        if measured.shards or self._shards or fresh:
            self._tell_shards(node.id, measured.shards, replicas, fresh=fresh)

    def _tell_facts(self, node: NodeView) -> None:
        devices = node.inventory.devices if node.inventory else ()
        labelled = _DEVICES[0].family.labelled
        labels = [labelled((node.id, device.uuid, device.device_class)) for device in devices]
        self._devices = tuple((device.uuid, label) for device, label in zip(devices, labels, strict=True))
        self._tell(_NODES, [(self._labels, node)], measured=False)
        self._tell(_DEVICES, list(zip(labels, devices, strict=True)), measured=False)

    def _tell_shards(
        self, node_id: str, uses: Iterable[ShardUse], replicas: Mapping[str, ReplicaView], *, fresh: bool
    ) -> None:
        known = [use for use in uses if use.replica_id in replicas]
        shards = tuple((use.replica_id, use.rank, replicas[use.replica_id].model) for use in known)
        if not fresh and shards == self._shards:
            return
        self._shards = shards
        labelled = _SHARDS[0].family.labelled
        labels = [labelled((node_id, model, replica, str(rank))) for replica, rank, model in shards]
        self._tell(_SHARDS, list(zip(labels, known, strict=True)))

    def _tell(self, families: Iterable[_Of], samples: list[tuple[str, Any]], *, measured: bool = True) -> None:
        for of in families:
            if of.measured == measured:
                name, read = of.family.name, of.read
                self.texts[name] = "".join(
                    [f"{name}{labels} {value!r}\n" for labels, it in samples if (value := read(it)) is not None]
                )


class NodeMetrics:
    """The metrics of the nodes of one fleet."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def look(
        self,
        nodes: Iterable[NodeView],
        measured: Callable[[NodeView], Measurements],
        replicas: Mapping[str, ReplicaView],
    ) -> list[Mapping[str, str]]:
        """The lines of these nodes, all there are, by family. ``nodes`` may take its time
        between two. Costs as much as there is that changed since the last look."""
        kept: dict[str, _Node] = {}
        for view in nodes:
            node = kept[view.id] = self._nodes.get(view.id) or _Node(view.id)
            node.update(view, measured(view), replicas)
        self._nodes = kept
        return [node.texts for node in kept.values()]


def told(of: list[Mapping[str, str]]) -> Iterator[bytes]:
    """Family by family, piece by piece."""
    for family in FAMILIES:
        yield family.head.encode()
        for first in range(0, len(of), PIECE):
            yield "".join([texts[family.name] for texts in of[first : first + PIECE]]).encode()
