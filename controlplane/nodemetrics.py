"""The metrics of nodes, their devices and what runs on them, as text (OBS-01).

They are nearly all of what a scrape of a large fleet holds: some 60 lines for each node of
eight devices, written once for each heartbeat.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any

from controlplane.exposition import Family
from controlplane.planning.view import NodeView, ReplicaView
from llmgw.wire.messages import Device, Inventory, Measurements, ShardUse

Figures = tuple[float | None, ...]

Texts = tuple[bytes, ...]
"""What is told of one node, by family in the order of ``FAMILIES``."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Families with the same labels whose figures are read of the same thing, together."""

    families: tuple[Family, ...]
    read: Callable[[Any], Figures]

    def labelled(self, *values: str) -> str:
        """The labels with these values."""
        return self.families[0].labelled(values)

    def texts(self, labels: Sequence[str], things: Sequence[Any]) -> Texts:
        """The lines of each family: one of each thing whose figure is known."""
        if not things:
            return (b"",) * len(self.families)
        columns = zip(*map(self.read, things), strict=True)
        return tuple(
            [_lines(family.name, labels, figures) for family, figures in zip(self.families, columns, strict=True)]
        )


def _lines(name: str, labels: Sequence[str], figures: Figures) -> bytes:
    pairs = zip(labels, figures, strict=True)
    return "".join([f"{name}{label} {figure!r}\n" for label, figure in pairs if figure is not None]).encode()


def _facts(labels: tuple[str, ...], read: Callable[[Any], Figures], texts: Mapping[str, str]) -> _Group:
    return _Group(tuple(Family(name, text, labels) for name, text in texts.items()), read)


def _measured(labels: tuple[str, ...], **families: tuple[str, str]) -> _Group:
    """``families``: name and meaning by the field that has the figure."""
    rows = tuple(Family(name, text, labels) for name, text in families.values())
    return _Group(rows, attrgetter(*families))


def _of_node(node: NodeView) -> Figures:
    told = node.inventory
    hardware = (told.cpu.count, told.memory_bytes) if told else (None, None)
    return (int(node.registered), int(node.cordon is not None), *hardware)


def _of_device(device: Device) -> Figures:
    return (int(device.excluded is not None), device.memory_bytes)


_NODE, _DEVICE, _SHARD = ("node",), ("node", "device", "class"), ("node", "model", "replica", "rank")

_NODE_FACTS = _facts(
    _NODE,
    _of_node,
    {
        "llmgw_node_up": "1 if the node is in session.",
        "llmgw_node_cordoned": "1 if nothing new is placed on the node.",
        "llmgw_node_cpus": "Logical CPUs.",
        "llmgw_node_memory_total_bytes": "Memory.",
    },
)
_DEVICE_FACTS = _facts(
    _DEVICE,
    _of_device,
    {
        "llmgw_device_excluded": "1 if the device must not be used.",
        "llmgw_device_memory_total_bytes": "Memory of the device.",
    },
)
_NODE_USE = _measured(
    _NODE,
    cpu_percent=("llmgw_node_cpu_utilization_percent", "Use of all CPUs."),
    load1=("llmgw_node_load", "Load average over one minute."),
    memory_used_bytes=("llmgw_node_memory_used_bytes", "Memory in use."),
    memory_available_bytes=("llmgw_node_memory_available_bytes", "Memory available."),
)
_DEVICE_USE = _measured(
    _DEVICE,
    memory_used_bytes=("llmgw_device_memory_used_bytes", "Memory in use."),
    utilization_percent=("llmgw_device_utilization_percent", "Utilisation."),
    temperature_celsius=("llmgw_device_temperature_celsius", "Temperature."),
    power_watts=("llmgw_device_power_watts", "Power drawn."),
)
_SHARD_USE = _measured(
    _SHARD,
    cpu_cores=("llmgw_shard_cpu_cores", "Cores a shard's processes use."),
    memory_bytes=("llmgw_shard_memory_bytes", "Resident memory of a shard's processes."),
)

FAMILIES = tuple(
    family for group in (_NODE_FACTS, _DEVICE_FACTS, _NODE_USE, _DEVICE_USE, _SHARD_USE) for family in group.families
)
"""In the order in which they are told."""

_HEADS = tuple(family.head.encode() for family in FAMILIES)

PIECE = 500
"""Texts that are put together in one go: some hundred kilobytes."""

Replicas = Mapping[str, ReplicaView]


class _Node:
    """What is told of one node, kept until a fact or its measurements change."""

    __slots__ = (
        *("_devices", "_facts", "_inventory", "_labels", "_measured", "_shard_labels", "_shards", "_state"),
        *("length", "texts"),
    )

    def __init__(self, node_id: str) -> None:
        self.texts: Texts = ()
        self.length = 0
        self._labels = (_NODE_FACTS.labelled(node_id),)
        self._inventory: Inventory | None = None
        self._state: tuple[bool, bool] | None = None
        self._facts: Texts = ()
        self._devices: dict[str, str] = {}
        self._measured: Measurements | None = None
        self._shards: list[tuple[str, str, int]] = []
        self._shard_labels: list[str] = []

    def update(self, node: NodeView, measured: Measurements, replicas: Replicas) -> None:
        """Bring the lines up to date."""
        state = (node.registered, node.cordon is not None)
        if self._inventory is not node.inventory or self._state != state:
            self._inventory, self._state = node.inventory, state
            self._tell_facts(node)
        elif self._measured is measured:
            return
        self._measured = measured
        uses = {use.uuid: use for use in measured.devices if use.uuid in self._devices}
        self.texts = (
            *self._facts,
            *_NODE_USE.texts(self._labels, (measured,)),
            *_DEVICE_USE.texts([self._devices[uuid] for uuid in uses], list(uses.values())),
            *self._tell_shards(node.id, measured.shards, replicas),
        )
        self.length = sum(map(len, self.texts))

    def _tell_facts(self, node: NodeView) -> None:
        devices = node.inventory.devices if node.inventory else ()
        labels = [_DEVICE_FACTS.labelled(node.id, device.uuid, device.device_class) for device in devices]
        self._devices = {device.uuid: label for device, label in zip(devices, labels, strict=True)}
        self._facts = _NODE_FACTS.texts(self._labels, (node,)) + _DEVICE_FACTS.texts(labels, devices)

    def _tell_shards(self, node_id: str, uses: Iterable[ShardUse], replicas: Replicas) -> Texts:
        known = [use for use in uses if use.replica_id in replicas]
        shards = [(replicas[use.replica_id].model, use.replica_id, use.rank) for use in known]
        if self._shards != shards:
            self._shards = shards
            self._shard_labels = [
                _SHARD_USE.labelled(node_id, model, replica, str(rank)) for model, replica, rank in shards
            ]
        return _SHARD_USE.texts(self._shard_labels, known)


class NodeMetrics:
    """The metrics of the nodes of one fleet."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def look(
        self, nodes: Iterable[NodeView], measured: Callable[[NodeView], Measurements], replicas: Replicas
    ) -> tuple[int, Iterator[bytes]]:
        """What is told of these nodes, all there are: its length, and its parts as it was when
        they were looked at, each put together when it is asked for. ``nodes`` may take its time
        between two. Costs as much as there is that changed since the last look.

        Shards are those of the replicas that were known when they were measured.
        """
        kept: dict[str, _Node] = {}
        length = sum(map(len, _HEADS))
        told: list[Texts] = []
        for view in nodes:
            node = kept[view.id] = self._nodes.get(view.id) or _Node(view.id)
            node.update(view, measured(view), replicas)
            length += node.length
            told.append(node.texts)
        self._nodes = kept
        return length, _parts(told)


def _parts(nodes: Sequence[Texts]) -> Iterator[bytes]:
    """Family by family, piece by piece."""
    texts = chain.from_iterable(chain((head,), map(itemgetter(place), nodes)) for place, head in enumerate(_HEADS))
    while piece := list(islice(texts, PIECE)):
        yield b"".join(piece)
