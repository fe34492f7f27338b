"""One node of a simulated fleet: what it has, what it runs, and what it says it measured."""

import random
from dataclasses import dataclass

from llmgw.wire.messages import (
    Cpu,
    Device,
    DeviceUse,
    EngineInstall,
    Inventory,
    Measurements,
    PortRange,
    ShardKey,
    ShardStatus,
)

GIB = 1024**3
RACK = 16
"""Nodes of one rack."""

MEASURE_EVERY = 10.0
"""Seconds for which drawn measurements are good: a node that beats more often sends them again."""


@dataclass(frozen=True)
class Shape:
    """What every node has."""

    devices: int = 8
    device_class: str = "h100-80g"
    device_memory: int = 80 * GIB
    memory: int = 1024 * GIB
    cores: int = 128


class Node:
    """What one simulated node is and runs."""

    __slots__ = ("_measured_at", "_measurements", "index", "name", "rng", "shape", "shards")

    def __init__(self, index: int, name: str, shape: Shape, rng: random.Random) -> None:
        self.index = index
        self.name = name
        self.shape = shape
        self.rng = rng
        self.shards: dict[ShardKey, ShardStatus] = {}
        self._measured_at = -MEASURE_EVERY
        self._measurements = Measurements()

    def inventory(self) -> Inventory:
        """The node as it registers."""
        shape = self.shape
        return Inventory(
            address="127.0.0.1",
            hostname=self.name,
            os="simulated",
            arch="x86_64",
            boot_id=f"boot-{self.index}",
            driver="570.00" if shape.devices else None,
            cpu=Cpu(model="simulated", count=shape.cores),
            memory_bytes=shape.memory,
            engine_ports=PortRange(first=20000, last=20999),
            engines=tuple(EngineInstall(name=name, state="ready", version="1") for name in ("sim", "vllm", "llamacpp")),
            devices=tuple(
                Device(
                    uuid=self._uuid(number),
                    index=number,
                    name="Simulated GPU",
                    device_class=shape.device_class,
                    memory_bytes=shape.device_memory,
                )
                for number in range(shape.devices)
            ),
            labels={"llmgw.io/rack": f"r{self.index // RACK:03}", "llmgw.io/room": f"hall-{self.index // (RACK * 20)}"},
        )

    def measure(self, now: float) -> Measurements:
        """Drawn figures; busier where shards run."""
        if now - self._measured_at >= MEASURE_EVERY:
            self._measured_at = now
            self._measurements = self._drawn()
        return self._measurements

    def _drawn(self) -> Measurements:
        busy = 0.7 if self.shards else 0.05
        used = {device for status in self.shards.values() for device in status.spec.devices}
        draw = self.rng.uniform
        return Measurements(
            cpu_percent=round(100 * busy * draw(0.8, 1.2), 1),
            load1=round(self.shape.cores * busy * draw(0.8, 1.2), 2),
            memory_used_bytes=int(self.shape.memory * busy * draw(0.5, 1.0)),
            memory_available_bytes=int(self.shape.memory * (1 - busy) * draw(0.5, 1.0)),
            devices=tuple(
                DeviceUse(
                    uuid=uuid,
                    memory_used_bytes=int(self.shape.device_memory * 0.9) if uuid in used else GIB,
                    utilization_percent=round(draw(40, 100), 1) if uuid in used else 0.0,
                    temperature_celsius=round(draw(35, 75), 1),
                    power_watts=round(draw(80, 650), 1),
                )
                for uuid in map(self._uuid, range(self.shape.devices))
            ),
        )

    def _uuid(self, number: int) -> str:
        return f"GPU-{self.index:05}-{number}"
