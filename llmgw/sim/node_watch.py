"""What an agent's watchers read of a simulated host: inventory, validation, probes."""

from agent.engines import ADAPTERS
from agent.events import Probed, SpecFault
from agent.hardware.base import DeviceProcess, DeviceReading
from agent.validate import NodeState, spec_faults
from llmgw.sim.host import Host
from llmgw.wire.messages import (
    Cpu,
    Device,
    EngineInstall,
    EngineState,
    Inventory,
    PortRange,
    ShardKey,
    ShardSpec,
)

DEVICE_CLASS = "sim-gpu"


def address_of(name: str) -> str:
    """Where a node's engines are reached."""
    return f"10.0.0.{name.removeprefix('n')}"


class NodeWatch:
    """The eyes of one agent process. ``excluded`` maps a device to why it must not be used."""

    def __init__(self, host: Host, ports: PortRange) -> None:
        self.host = host
        self.ports = ports
        self.excluded: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.engine_state: EngineState = "probing"

    def inventory(self) -> Inventory:
        """What the node has."""
        host = self.host
        return Inventory(
            address=address_of(host.name),
            hostname=host.name,
            boot_id=host.boot_id,
            cpu=Cpu(model="sim", count=host.cores),
            memory_bytes=host.memory,
            ephemeral_ports=PortRange(first=32768, last=60999),
            engine_ports=self.ports,
            devices=self._devices(),
            engines=(self._engine(),),
            labels=dict(self.labels),
        )

    def faults(self, spec: ShardSpec, own: list[ShardKey]) -> tuple[SpecFault, ...]:
        """What the product's own validation says of a spec, and whether its port is free."""
        host = self.host
        held: dict[str, list[DeviceProcess]] = {}
        used = 0
        for proc in host.engines():
            if proc.spec is not None:
                used += proc.spec.memory_bytes or 0
                for uuid in proc.spec.devices:
                    held.setdefault(uuid, []).append(DeviceProcess(proc.pid, "engine"))
        state = NodeState(
            engines={"sim": self._engine()},
            engine_ports=self.ports,
            devices={
                device.uuid: DeviceReading(device, processes=tuple(held.get(device.uuid, ())))
                for device in self._devices()
            },
            own_pids=frozenset(proc.pid for key in own for proc in host.of(key)),
            memory_available=host.memory - used,
        )
        faults = spec_faults(spec, ADAPTERS[spec.engine], state)
        if host.port_holder(spec.port) is not None:
            faults.append(SpecFault("port_in_use", f"port {spec.port} on {spec.host} is used by another process"))
        return tuple(faults)

    def probe(self, spec: ShardSpec) -> Probed:
        """What whatever listens on the port answers; strangers speak no HTTP."""
        holder = self.host.port_holder(spec.port)
        if holder is None:
            return Probed(spec.key, ready=False, detail="not listening yet")
        if holder.key is None:
            return Probed(spec.key, ready=False, detail="the port does not speak HTTP")
        if holder.ready_since is None:
            return Probed(spec.key, ready=False, detail="HTTP 503: Loading model")
        return Probed(spec.key, ready=True)

    def _engine(self) -> EngineInstall:
        return EngineInstall(name="sim", state=self.engine_state, version="1")

    def _devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(
                uuid=uuid,
                index=index,
                device_class=DEVICE_CLASS,
                memory_bytes=80 << 30,
                excluded=self.excluded.get(uuid),
            )
            for index, uuid in enumerate(self.host.devices)
        )
