"""What reads a node's devices (AGT-01, AGT-02), and how devices are named (PLC-08).

One protocol, two readers: NVML and ``nvidia-smi``. Readers are held by one
conformance suite. A figure that a driver does not give is ``None``, never zero.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from llmgw.wire.messages import Device

MIB = 1024 * 1024
GIB = 1024 * MIB


class HardwareError(Exception):
    """The devices cannot be read; the message says why, in words for a person."""


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that uses a device's memory."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f" ({self.memory_bytes / GIB:.1f} GiB)"
        return f"pid {self.pid} {self.name}".rstrip() + size


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device as it is now. Power in watts, temperature in degrees Celsius."""

    device: Device
    memory_used_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """All devices of a node, and the driver's version."""

    driver: str | None = None
    devices: tuple[DeviceReading, ...] = ()


class DeviceReader(Protocol):
    """One way to read devices. ``native`` tells that ``read`` blocks its thread and
    belongs into a native thread; otherwise it cooperates and belongs into a greenlet."""

    name: str
    native: bool

    def read(self) -> Reading:
        """Read everything. Raises ``HardwareError``."""
        ...


_NOMINAL_GIB = (
    *(2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 44, 48, 64, 80, 94, 96),
    *(120, 128, 141, 144, 180, 192, 256, 288),
)
_NOISE = re.compile(r"NVIDIA|TESLA|GEFORCE|QUADRO|GENERATION|GPU|PCIE|SXM\d*|HBM\d*E?|NVL|MIG|\d+GB", re.IGNORECASE)


def device_class(name: str, memory_bytes: int | None) -> str:
    """Class of a whole card: model and nominal memory, such as ``h100-80g``.

    The nominal size is the one in the name if it agrees with the memory (a GH200's
    name gives its processor's), else the smallest sold size that holds the memory.
    """
    words = [word for word in re.split(r"[\s_/-]+", name) if word and not _NOISE.fullmatch(word)]
    model = "-".join(words).lower() or "gpu"
    said = re.search(r"(\d+)\s?GB", name, re.IGNORECASE)
    size = int(said[1]) if said else None
    if memory_bytes is not None:
        gib = memory_bytes / GIB
        if size is None or not 0.85 * size <= gib <= 1.05 * size:
            size = next((nominal for nominal in _NOMINAL_GIB if nominal >= gib - 0.5), round(gib))
    return model if size is None else f"{model}-{size}g"


def mig_class(card_class: str, profile: str) -> str:
    """Class of a MIG instance, such as ``h100-80g-mig-3g.40gb``."""
    return f"{card_class}-mig-{profile.lower()}"


def mig_index(card: int | None, instance: int) -> int | None:
    """Number of a MIG instance (PLC-08)."""
    return None if card is None else 1000 + 100 * card + instance


def mig_profile(name: str) -> str | None:
    """The profile in an instance's name, such as ``3g.40gb`` or ``1g.10gb+me``."""
    match = re.search(r"\b(\d+[cg]\.(?:\d+g\.)?\d+gb(?:\+[\w.]+)*)", name, re.IGNORECASE)
    return match[1].lower() if match else None


NOTHING_CARVED = "in MIG mode with no instance carved: create instances or turn MIG mode off"


def ecc_reason(uncorrected: int | None, remap_failed: bool = False) -> str | None:
    """Why a card's memory must not be trusted, if so (PLC-02)."""
    if remap_failed:
        return "row remapping failed: the card's memory is defective, replace it"
    if uncorrected:
        return f"{uncorrected} uncorrected memory errors since the last reset: reset the card"
    return None
