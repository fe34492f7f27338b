"""The metrics of nodes, their devices and what runs on them, as text (OBS-01).

They are nearly all of what a scrape of a large fleet holds: some 60 lines for each node of
eight devices.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from controlplane.exposition import Family
from controlplane.planning.view import NodeView, ReplicaView
from llmgw.wire.messages import Device, DeviceUse, Inventory, Measurements, ShardUse

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
    """What is kept of one node from scrape to scrape: lines that change with its inventory or
    its session, and labels. Lines that change with every heartbeat are not: of a large fleet
    they would be tens of megabytes, and nearly all are others by the next scrape."""

    __slots__ = ("_devices", "_facts", "_shards", "labels", "shards", "texts")

    def __init__(self, node_id: str) -> None:
        self.labels = _NODES[0].family.labelled((node_id,))
        self.texts: dict[str, str] = {}
        self.shards: tuple[str, ...] = ()
        self._facts: tuple[Inventory | None, bool, bool] | None = None
        self._devices: tuple[tuple[str, str], ...] = ()
        self._shards: tuple[_Shard, ...] = ()

    def update(self, node: NodeView) -> None:
        """Bring the lines up to date."""
        facts = (node.inventory, node.registered, node.cordon is not None)
        if self._facts is not None and self._facts[0] is facts[0] and self._facts[1:] == facts[1:]:
            return
        self._facts = facts
        devices = node.inventory.devices if node.inventory else ()
        labelled = _DEVICES[0].family.labelled
        labels = [labelled((node.id, device.uuid, device.device_class)) for device in devices]
        self._devices = tuple((device.uuid, label) for device, label in zip(devices, labels, strict=True))
        self.texts = {row.family.name: _lines(row, [(self.labels, node)]) for row in _NODES if not row.measured}
        for row in _DEVICES:
            if not row.measured:
                self.texts[row.family.name] = _lines(row, zip(labels, devices, strict=True))

    def devices(self, measured: Measurements) -> list[tuple[str, DeviceUse]]:
        """The labels of each device that was measured, and what was."""
        uses = {use.uuid: use for use in measured.devices}
        return [(labels, uses[uuid]) for uuid, labels in self._devices if uuid in uses]

    def shards_of(
        self, node_id: str, uses: Iterable[ShardUse], replicas: Mapping[str, ReplicaView]
    ) -> list[tuple[str, ShardUse]]:
        """The same of each shard whose replica is known."""
        known = [use for use in uses if use.replica_id in replicas]
        shards = tuple((use.replica_id, use.rank, replicas[use.replica_id].model) for use in known)
        if shards != self._shards:
            labelled = _SHARDS[0].family.labelled
            self._shards = shards
            self.shards = tuple(labelled((node_id, model, replica, str(rank))) for replica, rank, model in shards)
        return list(zip(self.shards, known, strict=True))


class _Row(NamedTuple):
    """One node in one scrape."""

    texts: Mapping[str, str]
    measured: list[tuple[str, Measurements]]
    devices: list[tuple[str, DeviceUse]]
    shards: list[tuple[str, ShardUse]]


_GROUPS: tuple[tuple[tuple[_Of, ...], Callable[[_Row], list[tuple[str, Any]]]], ...] = (
    (_NODES, itemgetter(1)),
    (_DEVICES, itemgetter(2)),
    (_SHARDS, itemgetter(3)),
)
"""Families, and what of a row their measured figures are read from."""


def _lines(of: _Of, samples: Iterable[tuple[str, Any]]) -> str:
    name, read = of.family.name, of.read
    return "".join([f"{name}{labels} {value!r}\n" for labels, it in samples if (value := read(it)) is not None])


class NodeMetrics:
    """The metrics of the nodes of one fleet."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def look(
        self,
        nodes: Iterable[NodeView],
        measured: Callable[[NodeView], Measurements],
        replicas: Mapping[str, ReplicaView],
    ) -> list[_Row]:
        """These nodes, all there are, as they are now. ``nodes`` may take its time between two."""
        kept: dict[str, _Node] = {}
        rows = []
        for view in nodes:
            node = kept[view.id] = self._nodes.get(view.id) or _Node(view.id)
            node.update(view)
            use = measured(view)
            shards = node.shards_of(view.id, use.shards, replicas) if use.shards or node.shards else []
            rows.append(_Row(node.texts, [(node.labels, use)], node.devices(use) if use.devices else [], shards))
        self._nodes = kept
        return rows


def told(rows: list[_Row]) -> Iterator[bytes]:
    """Family by family, piece by piece."""
    for families, samples in _GROUPS:
        for of in families:
            yield of.family.head.encode()
            for first in range(0, len(rows), PIECE):
                piece = rows[first : first + PIECE]
                if of.measured:
                    yield _lines(of, chain.from_iterable(map(samples, piece))).encode()
                else:
                    yield "".join([row.texts[of.family.name] for row in piece]).encode()
