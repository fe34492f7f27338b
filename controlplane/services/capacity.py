"""What the fleet has, and what of it is claimed and used (CLI-02)."""

from typing import Any

from controlplane.planning.overlay import Overlay
from controlplane.planning.view import NodeView
from llmgw.wire.messages import Measurements

Plain = dict[str, Any]


class Capacity:
    """Sums over connected nodes; claims are those of all their live shards. A node that
    does not know a figure is counted in ``unknown`` and adds nothing."""

    def __init__(self, claims: Overlay) -> None:
        self._claims = claims
        self._classes: dict[str, dict[str, int]] = {}
        self._memory = _Sum()
        self._cores = _Sum()

    def add(self, node: NodeView, measured: Measurements) -> None:
        """One more node; one that is not connected adds nothing."""
        if node.status != "connected" or node.inventory is None:
            return
        claims, inventory = self._claims.on(node.id), node.inventory
        self._memory.add(inventory.memory_bytes, claims.memory, measured.memory_used_bytes)
        count = inventory.cpu.count
        busy = None if count is None or measured.cpu_percent is None else count * measured.cpu_percent / 100
        self._cores.add(count, claims.cores, busy)
        for device in inventory.devices:
            of_class = self._classes.setdefault(
                device.device_class or device.name or "unknown",
                {"total": 0, "claimed": 0, "excluded": 0, "free": 0},
            )
            of_class["total"] += 1
            taken, excluded = device.uuid in claims.devices, device.excluded is not None
            of_class["claimed"] += taken
            of_class["excluded"] += excluded
            of_class["free"] += not taken and not excluded

    def read(self) -> Plain:
        """The sums."""
        return {
            "devices": [{"device_class": name, **figures} for name, figures in sorted(self._classes.items())],
            "memory": self._memory.read("bytes"),
            "cores": self._cores.read("cores"),
        }


class _Sum:
    def __init__(self) -> None:
        self.total = 0.0
        self.claimed = 0.0
        self.used = 0.0
        self.known = 0
        self.measured = 0
        self.nodes = 0

    def add(self, total: float | None, claimed: float, used: float | None) -> None:
        self.nodes += 1
        self.claimed += claimed
        if total is not None:
            self.known += 1
            self.total += total
        if used is not None:
            self.measured += 1
            self.used += used

    def read(self, unit: str) -> Plain:
        number = int if unit == "bytes" else float
        return {
            f"total_{unit}": number(self.total) if self.known else None,
            f"claimed_{unit}": number(self.claimed),
            f"used_{unit}": number(self.used) if self.measured else None,
            "nodes": self.nodes,
            "unknown_nodes": self.nodes - self.known,
        }
