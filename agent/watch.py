"""Greenlets that watch a node: its shards' processes, its use, its devices and engines.

They observe and post events; what follows is decided by the machine.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import gevent
from msgspec.structs import replace

from agent.engines import ADAPTERS
from agent.events import Event, Exited, Gone, InventoryRead, Lingering, Measured, SignalName
from agent.hardware import Devices
from agent.hardware.base import HardwareError, Reading
from agent.hardware.host import HostMeter, memory_available, read_filesystems, read_host
from agent.installs import locate, probe
from agent.settings import Config
from agent.supervise.base import Supervisor
from agent.validate import NodeState
from llmgw.runtime.logs import Logger
from llmgw.wire.messages import DeviceUse, EngineInstall, ShardKey, ShardSpec, ShardUse

log = Logger("agent.watch")

POLL = 0.25
"""Seconds between looks at a shard's main process."""

LINGER = 5.0
"""Seconds after which processes that outlive SIGKILL are told."""

DEVICES_EVERY = 30.0
"""Seconds between readings of devices while no session asks for more."""

ENGINES_EVERY = 600.0
"""Seconds between checks that engines still run (ENG-05)."""

T = TypeVar("T")


def offload(function: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a native thread while other greenlets go on."""
    result: T = gevent.get_hub().threadpool.apply(function, arguments)
    return result


def watch_shard(supervisor: Supervisor, spec: ShardSpec, post: Callable[[Event], None]) -> None:
    """Watch the processes of one shard until none is left; tell how it ended."""
    key = spec.key
    while (status := supervisor.status(key)).alive:
        gevent.sleep(POLL)
    post(Exited(key, status.exit_status))
    pause = 0.01
    while offload(supervisor.members, key):
        gevent.sleep(pause)
        pause = min(0.5, pause * 2)
    tail = offload(supervisor.tail, key)
    adapter = ADAPTERS.get(spec.engine)
    supervisor.release(key)
    post(Gone(key, status.exit_status, tail, adapter.cause(tail) if adapter else None))


def signal_shard(supervisor: Supervisor, key: ShardKey, signal: SignalName, post: Callable[[Event], None]) -> None:
    """Signal every process of a shard; tell which ones are still there some time after
    SIGKILL, such as a main process that hangs in its driver."""
    pids = offload(supervisor.signal, key, signal)
    log.debug("signalled", shard=str(key), signal=signal, pids=len(pids))
    if signal == "KILL" and pids:
        gevent.sleep(LINGER)
        if members := offload(supervisor.members, key):
            post(Lingering(key, members))


class NodeWatch:
    """What the node has and how it is used."""

    def __init__(
        self,
        config: Config,
        *,
        boot_id: str,
        supervisor: Supervisor,
        devices: Devices,
        shards: Callable[[], Iterable[ShardKey]],
        post: Callable[[Event], None],
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._devices = devices
        self._shards = shards
        self._post = post
        self._base = read_host(config.address, boot_id, config.engine_ports, config.labels)
        self._installs = {name: locate(name, entry) for name, entry in config.engines.items()}
        self._engines = {name: EngineInstall(name=name, state="probing") for name in config.engines}
        self._reading: Reading | None = None
        self._device_fault = ""
        self._meter = HostMeter()
        self._cpu: dict[ShardKey, tuple[float, float]] = {}

    # ------------------------------------------------------------ inventory

    def start(self) -> None:
        """Read devices once and tell the first inventory. Run the ``watch_`` methods then."""
        self._read_devices()
        self._tell()

    def installs(self) -> dict[str, Any]:
        """Where each configured engine is."""
        return self._installs

    def state(self) -> NodeState:
        """What is known now, for the validation of a spec. Reads devices anew."""
        self._read_devices()
        keys = list(self._shards())
        members = offload(self._supervisor.members_of, keys) if keys else {}
        reading = None if self._device_fault else self._reading
        return NodeState(
            engines=dict(self._engines),
            engine_ports=self._config.engine_ports,
            devices=None if reading is None else {each.device.uuid: each for each in reading.devices},
            own_pids=frozenset(pid for pids in members.values() for pid in pids),
            memory_available=memory_available(),
        )

    @property
    def cpu_count(self) -> int | None:
        """Logical CPUs of the node."""
        return self._base.cpu.count

    def _tell(self) -> None:
        reading = self._reading or Reading()
        fault = (self._device_fault,) if self._device_fault else ()
        self._post(
            InventoryRead(
                replace(
                    self._base,
                    driver=reading.driver,
                    devices=tuple(each.device for each in reading.devices),
                    engines=tuple(self._engines.values()),
                    notes=self._base.notes + fault,
                )
            )
        )

    def _read_devices(self) -> None:
        """Devices that cannot be read now stay in the inventory, with a note."""
        try:
            self._reading = self._devices.read()
            fault = ""
        except HardwareError as error:
            fault = str(error)
        if fault and fault != self._device_fault:
            log.warning("devices are unknown", reason=fault)
        self._device_fault = fault

    def watch_devices(self) -> None:
        """For ever: read devices; a changed inventory is registered anew."""
        while True:
            gevent.sleep(DEVICES_EVERY)
            self._read_devices()
            self._tell()

    def watch_engines(self) -> None:
        """For ever: see whether each configured engine runs (PLC-12)."""
        while True:
            for name, entry in self._config.engines.items():
                self._installs[name] = offload(locate, name, entry)
                seen = probe(self._installs[name])
                if seen != self._engines[name]:
                    log.info("engine", name=name, state=seen.state, version=seen.version, detail=seen.detail)
                self._engines[name] = seen
                self._tell()
            gevent.sleep(ENGINES_EVERY)

    # ------------------------------------------------------------ use

    def measure(self) -> None:
        """Measure everything and tell it (AGT-02)."""
        self._read_devices()
        keys = list(self._shards())
        members = offload(self._supervisor.members_of, keys) if keys else {}
        now = time.monotonic()
        shards = tuple(self._shard_use(key, pids, now) for key, pids in members.items())
        self._cpu = {key: self._cpu[key] for key in members}
        own = frozenset(pid for pids in members.values() for pid in pids)
        measured = replace(
            self._meter.read(),
            devices=self._device_use(own),
            shards=shards,
            filesystems=offload(read_filesystems, self._config.weights_dirs) if self._config.weights_dirs else (),
        )
        self._post(Measured(measured))

    def _shard_use(self, key: ShardKey, pids: tuple[int, ...], now: float) -> ShardUse:
        use = self._supervisor.use(pids)
        before = self._cpu.get(key)
        self._cpu[key] = (now, use.cpu_seconds)
        cores = None
        if before is not None and now > before[0] and use.cpu_seconds >= before[1]:
            # Less than before means that a process of the group ended: unknown, not negative.
            cores = (use.cpu_seconds - before[1]) / (now - before[0])
        return ShardUse(replica_id=key.replica_id, rank=key.rank, cpu_cores=cores, memory_bytes=use.memory_bytes)

    def _device_use(self, own: frozenset[int]) -> tuple[DeviceUse, ...]:
        if self._reading is None or self._device_fault:
            return ()
        return tuple(
            DeviceUse(
                uuid=each.device.uuid,
                memory_used_bytes=each.memory_used_bytes,
                utilization_percent=each.utilization_percent,
                temperature_celsius=each.temperature_celsius,
                power_watts=each.power_watts,
                foreign_processes=tuple(str(process) for process in each.processes if process.pid not in own),
            )
            for each in self._reading.devices
        )
