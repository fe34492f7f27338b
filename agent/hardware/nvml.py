"""Devices through NVML (AGT-01). Calls block: run ``read`` in a native thread."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from agent.hardware.base import (
    NOTHING_CARVED,
    DeviceProcess,
    DeviceReading,
    HardwareError,
    Reading,
    device_class,
    ecc_reason,
    mig_class,
    mig_index,
    mig_profile,
)
from llmgw.wire.messages import Device

T = TypeVar("T")


def load_library() -> Any:
    """The ``pynvml`` module. Raises ``HardwareError`` if it is not installed."""
    try:
        import pynvml  # noqa: PLC0415 - only nodes with devices need it
    except ImportError as error:
        raise HardwareError("the package nvidia-ml-py is not installed") from error
    return pynvml


class NvmlReader:
    """See the module. ``library`` is ``pynvml`` or a stand-in with the same functions."""

    name = "nvml"
    native = True

    def __init__(self, library: Any = None) -> None:
        self._library = library if library is not None else load_library()
        self._started = False

    def read(self) -> Reading:
        """Every card and every MIG instance. A card that cannot be read is left out of
        the figures it does not give; a driver that does not answer raises."""
        nvml = self._library
        try:
            if not self._started:
                nvml.nvmlInit()
                self._started = True
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            count = nvml.nvmlDeviceGetCount()
            devices: list[DeviceReading] = []
            for index in range(count):
                devices += self._card(index)
        except nvml.NVMLError as error:
            self._started = False
            raise HardwareError(f"NVML: {error}") from error
        return Reading(driver, tuple(devices))

    def _card(self, index: int) -> list[DeviceReading]:
        nvml = self._library
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            # A card that fell off the bus: the others must not vanish with it.
            lost = Device(uuid=f"card-{index}", index=index, excluded=f"the driver cannot read the card: {error}")
            return [DeviceReading(lost)]
        name = _text(self._ask(lambda: nvml.nvmlDeviceGetName(handle)) or "")
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        total = int(memory.total) if memory is not None else None
        mig_mode = self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle))
        in_mig_mode = mig_mode is not None and mig_mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
        heat = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        busy = None if in_mig_mode else self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        card = DeviceReading(
            Device(
                uuid=uuid,
                index=index,
                name=name,
                device_class=device_class(name, total),
                memory_bytes=total,
                excluded=self._fault(handle),
            ),
            memory_used_bytes=int(memory.used) if memory is not None else None,
            utilization_percent=float(busy.gpu) if busy is not None else None,
            temperature_celsius=float(heat) if heat is not None else None,
            power_watts=power / 1000 if power is not None else None,
            processes=self._processes(handle),
        )
        if not in_mig_mode:
            return [card]
        uncarved = replace(card.device, excluded=card.device.excluded or NOTHING_CARVED)
        return self._instances(handle, card) or [dataclasses.replace(card, device=uncarved)]

    def _instances(self, handle_of_card: Any, card: DeviceReading) -> list[DeviceReading]:
        count = self._ask(lambda: self._library.nvmlDeviceGetMaxMigDeviceCount(handle_of_card)) or 0
        found = (self._instance(handle_of_card, card, index) for index in range(count))
        return [instance for instance in found if instance is not None]

    def _instance(self, handle_of_card: Any, card: DeviceReading, index: int) -> DeviceReading | None:
        """The MIG instance at ``index``; ``None`` if that place is empty."""
        nvml = self._library
        whole = card.device
        handle = self._ask(lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle_of_card, index))
        if handle is None:
            return None
        name = _text(self._ask(lambda: nvml.nvmlDeviceGetName(handle)) or "")
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        profile = mig_profile(name) or self._profile(handle)
        device = Device(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            kind="mig",
            index=mig_index(whole.index, index),
            name=name,
            device_class=mig_class(whole.device_class, profile) if profile else "",
            memory_bytes=int(memory.total) if memory is not None else None,
            parent=whole.uuid,
            excluded=whole.excluded or (None if profile else "the driver does not tell the instance's profile"),
        )
        return DeviceReading(
            device,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            temperature_celsius=card.temperature_celsius,
            power_watts=card.power_watts,
            processes=self._processes(handle),
        )

    def _profile(self, handle: Any) -> str | None:
        """Older drivers do not name the profile: slices and memory make it up."""
        attributes = self._ask(lambda: self._library.nvmlDeviceGetAttributes(handle))
        if attributes is None:
            return None
        return f"{attributes.gpuInstanceSliceCount}g.{(attributes.memorySizeMB + 1023) // 1024}gb"

    def _fault(self, handle: Any) -> str | None:
        nvml = self._library
        remapped = self._ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        uncorrected = self._ask(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )
        return ecc_reason(uncorrected, remapped is not None and bool(remapped[3]))

    def _processes(self, handle: Any) -> tuple[DeviceProcess, ...]:
        processes = self._ask(lambda: self._library.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        return tuple(DeviceProcess(each.pid, _process_name(each.pid), each.usedGpuMemory) for each in processes)

    def _ask(self, question: Callable[[], T]) -> T | None:
        """``None`` for what this driver, card or permission does not give."""
        try:
            return question()
        except (self._library.NVMLError, AttributeError):
            return None


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
