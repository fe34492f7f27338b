"""The host itself: processor, memory, system, load (AGT-01, AGT-02). Cheap reads only."""

import os
import platform
import socket
from pathlib import Path

import psutil

from llmgw.wire.messages import Cpu, Filesystem, Inventory, Measurements, PortRange

_MAX_FLAGS = 512


def read_cpu(root: Path = Path("/")) -> Cpu:
    """Model, usable logical CPUs and vector extensions."""
    model: str | None = None
    flags: tuple[str, ...] = ()
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name" and model is None:
            model = value.strip()
        elif name.strip() in ("flags", "Features") and not flags:
            flags = tuple(sorted(value.split())[:_MAX_FLAGS])
        if model is not None and flags:
            break
    return Cpu(model=model, count=len(os.sched_getaffinity(0)), flags=flags)


def cpu_notes(cpu: Cpu, machine: str) -> tuple[str, ...]:
    """Warnings about the processor, in words."""
    if machine == "x86_64" and cpu.flags and "avx2" not in cpu.flags:
        return ("the processor has no AVX2: common engine builds will not run on it, or very slowly",)
    return ()


def read_ephemeral_ports(root: Path = Path("/")) -> PortRange | None:
    """The ports the kernel hands to outgoing connections (PLC-13)."""
    try:
        first, last = (root / "proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return PortRange(first=int(first), last=int(last))
    except (OSError, ValueError):
        return None


def read_os(root: Path = Path("/")) -> str:
    """Name and version of the system, as it calls itself."""
    try:
        lines = (root / "etc/os-release").read_text(errors="replace").splitlines()
    except OSError:
        return platform.system()
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    return values.get("PRETTY_NAME", platform.system()).strip("\"'")


def port_notes(engine_ports: PortRange, ephemeral: PortRange | None) -> tuple[str, ...]:
    """A warning if outgoing connections may take an engine's port."""
    if ephemeral is None or engine_ports.last < ephemeral.first or engine_ports.first > ephemeral.last:
        return ()
    note = (
        f"engine_ports {engine_ports.first}-{engine_ports.last} overlap the kernel's ephemeral ports "
        f"{ephemeral.first}-{ephemeral.last}: choose others, outgoing connections may take them"
    )
    return (note,)


def read_host(address: str, boot_id: str, engine_ports: PortRange, labels: dict[str, str]) -> Inventory:
    """Everything of the inventory but devices, engines and filesystems."""
    cpu = read_cpu()
    ephemeral = read_ephemeral_ports()
    return Inventory(
        address=address,
        hostname=socket.gethostname(),
        os=read_os(),
        arch=platform.machine(),
        kernel=platform.release(),
        boot_id=boot_id,
        cpu=cpu,
        memory_bytes=psutil.virtual_memory().total,
        ephemeral_ports=ephemeral,
        engine_ports=engine_ports,
        labels=labels,
        notes=cpu_notes(cpu, platform.machine()) + port_notes(engine_ports, ephemeral),
    )


def read_filesystems(directories: tuple[Path, ...]) -> tuple[Filesystem, ...]:
    """Space where the told directories lie; a missing directory is skipped (PLC-06)."""
    found = []
    for directory in directories:
        try:
            usage = psutil.disk_usage(str(directory))
        except OSError:
            continue
        found.append(Filesystem(path=str(directory), total_bytes=usage.total, free_bytes=usage.free))
    return tuple(found)


def memory_available() -> int:
    """Bytes that can be used now without swapping."""
    return int(psutil.virtual_memory().available)


class HostMeter:
    """Measures the host. CPU use is that since the previous call, over all cores; it is
    unknown on the first."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def read(self) -> Measurements:
        """Load, memory and CPU use now."""
        memory = psutil.virtual_memory()
        return Measurements(
            cpu_percent=self._cpu_percent(),
            load1=os.getloadavg()[0],
            memory_used_bytes=memory.used,
            memory_available_bytes=memory.available,
        )

    def _cpu_percent(self) -> float | None:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Time of guests is counted within user and nice already.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        before, self._before = self._before, (idle, total)
        if before is None or total <= before[1]:
            return None
        busy = 1.0 - (idle - before[0]) / (total - before[1])
        return round(100.0 * min(max(busy, 0.0), 1.0), 1)
