"""A working stand-in for the ``pynvml`` module: cards and MIG instances as data."""

from dataclasses import dataclass, field


class NVMLError(Exception):
    pass


@dataclass
class Memory:
    total: int
    used: int = 0


@dataclass
class Utilization:
    gpu: int


@dataclass
class RunningProcess:
    pid: int
    usedGpuMemory: int | None = None


@dataclass
class Instance:
    uuid: str
    name: str
    memory: Memory
    processes: list = field(default_factory=list)


@dataclass
class Card:
    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory: Memory = field(default_factory=lambda: Memory(81559 * 1024 * 1024))
    mig: bool = False
    instances: dict = field(default_factory=dict)
    temperature: int | None = 29
    power_milliwatts: int | None = 67_740
    utilization: int | None = 0
    uncorrected: int | None = 0
    remap_failed: bool = False
    lost: bool = False
    processes: list = field(default_factory=list)


class FakeNvml:
    """Give it cards; set ``down`` to a message to make the driver fail."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, cards=(), driver="575.57.08"):
        self.cards = list(cards)
        self.driver = driver
        self.down = None
        self.initialised = 0

    def nvmlInit(self):
        self._check()
        self.initialised += 1

    def _check(self):
        if self.down:
            raise NVMLError(self.down)

    @staticmethod
    def _known(value):
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def nvmlSystemGetDriverVersion(self):
        self._check()
        return self.driver

    def nvmlDeviceGetCount(self):
        self._check()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.cards[index].lost:
            raise NVMLError("GPU is lost")
        return self.cards[index]

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid

    def nvmlDeviceGetName(self, handle):
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle):
        return handle.memory

    def nvmlDeviceGetMigMode(self, handle):
        return (int(handle.mig), int(handle.mig))

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        return self._known(handle.instances.get(index))

    def nvmlDeviceGetTemperature(self, handle, _sensor):
        return self._known(handle.temperature)

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._known(handle.power_milliwatts)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return Utilization(self._known(handle.utilization))

    def nvmlDeviceGetRemappedRows(self, handle):
        return (0, 0, 0, int(handle.remap_failed))

    def nvmlDeviceGetTotalEccErrors(self, handle, _kind, _counter):
        return self._known(handle.uncorrected)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return handle.processes
