"""Devices through the ``nvidia-smi`` program, where NVML cannot be loaded (AGT-01).

Two calls: ``-q -x`` has the figures, ``-L`` the UUIDs and profiles of MIG instances,
which the former lacks; they are joined by card and index. Parsed leniently: versions
differ, and ``N/A`` stands where a figure is not given.
"""

import re
import subprocess
from collections.abc import Callable
from xml.etree import ElementTree

from agent.hardware.base import (
    MIB,
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

TIMEOUT = 30.0
MAX_OUTPUT = 16 * 1024 * 1024

_CARD = re.compile(r"^GPU\s+(\d+):.*\(UUID:\s*(\S+?)\)", re.ASCII)
_INSTANCE = re.compile(r"^\s+MIG\s+(\S+)\s+Device\s+(\d+):\s*\(UUID:\s*(\S+?)\)", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)


def run_program(argv: tuple[str, ...]) -> str:
    """Output of a program. Raises ``HardwareError``."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise HardwareError(f"{argv[0]} did not end within {TIMEOUT:g} s: the driver may be stuck") from error
    except OSError as error:
        raise HardwareError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        raise HardwareError(f"{argv[0]} ended with {done.returncode}: {said[-1][:300] if said else 'no message'}")
    return done.stdout[:MAX_OUTPUT].decode("utf-8", "replace")


class SmiReader:
    """See the module. ``run`` runs a program and returns its output."""

    name = "nvidia-smi"
    native = False

    def __init__(self, program: str = "nvidia-smi", run: Callable[[tuple[str, ...]], str] = run_program) -> None:
        self._program = program
        self._run = run

    def read(self) -> Reading:
        """Every card and every MIG instance."""
        listing = self._run((self._program, "-L"))
        details = self._run((self._program, "-q", "-x"))
        return parse(listing, details)


def parse(listing: str, details: str) -> Reading:
    """Join the outputs of ``-L`` and ``-q -x``. Raises ``HardwareError``."""
    indices, instances = _parse_listing(listing)
    try:
        # From a program on this node that runs as we do; entities are not resolved from outside.
        root = ElementTree.fromstring(details)  # noqa: S314
    except ElementTree.ParseError as error:
        raise HardwareError(f"nvidia-smi -q -x gave no XML: {error}") from error
    devices: list[DeviceReading] = []
    for position, card in enumerate(root.iter("gpu")):
        uuid = _text(card, "uuid")
        if uuid is None:
            continue
        index = indices.get(uuid, position)
        devices += _card(card, uuid, index, instances.get(index, {}))
    return Reading(_text(root, "driver_version"), tuple(devices))


def _parse_listing(listing: str) -> tuple[dict[str, int], dict[int, dict[int, tuple[str, str]]]]:
    """Card indices by UUID, and profile and UUID of each MIG instance by card and index."""
    indices: dict[str, int] = {}
    instances: dict[int, dict[int, tuple[str, str]]] = {}
    card = None
    for line in listing.splitlines():
        if match := _CARD.match(line):
            card = int(match[1])
            indices[match[2]] = card
        elif card is not None and (match := _INSTANCE.match(line)):
            instances.setdefault(card, {})[int(match[2])] = (match[1], match[3])
    return indices, instances


def _card(
    card: ElementTree.Element, uuid: str, index: int, instances: dict[int, tuple[str, str]]
) -> list[DeviceReading]:
    name = _text(card, "product_name") or ""
    total = _mib(card, "fb_memory_usage/total")
    card_class = device_class(name, total)
    excluded = ecc_reason(_uncorrected(card), (_text(card, "remapped_rows/remapped_row_failure") or "") == "Yes")
    heat = _number(card, "temperature/gpu_temp")
    watts = _first(card, "gpu_power_readings/instant_power_draw", "gpu_power_readings/average_power_draw")
    watts = watts if watts is not None else _first(card, "gpu_power_readings/power_draw", "power_readings/power_draw")
    processes = _processes(card)
    if _text(card, "mig_mode/current_mig") == "Enabled":
        readings = []
        for mig in card.findall("mig_devices/mig_device"):
            number = int(_number(mig, "index") or 0)
            if number not in instances:
                continue
            said, mig_uuid = instances[number]
            profile = mig_profile(said) or said.lower()
            group = _text(mig, "gpu_instance_id")
            device = Device(
                uuid=mig_uuid,
                kind="mig",
                index=mig_index(index, number),
                name=f"{name} MIG {profile}",
                device_class=mig_class(card_class, profile),
                memory_bytes=_mib(mig, "fb_memory_usage/total"),
                parent=uuid,
                excluded=excluded,
            )
            used = _mib(mig, "fb_memory_usage/used")
            mine = tuple(process for owner, process in processes if owner == group)
            readings.append(DeviceReading(device, used, None, heat, watts, mine))
        if readings:
            return readings
        excluded = excluded or NOTHING_CARVED
    device = Device(uuid=uuid, index=index, name=name, device_class=card_class, memory_bytes=total, excluded=excluded)
    used, busy = _mib(card, "fb_memory_usage/used"), _number(card, "utilization/gpu_util")
    return [DeviceReading(device, used, busy, heat, watts, tuple(process for _, process in processes))]


def _uncorrected(card: ElementTree.Element) -> int | None:
    volatile = card.find("ecc_errors/volatile")
    if volatile is None:
        return None
    counts = [_number(volatile, child.tag) for child in volatile if "uncorrectable" in child.tag]
    known = [int(count) for count in counts if count is not None]
    return sum(known) if known else None


def _processes(card: ElementTree.Element) -> list[tuple[str | None, DeviceProcess]]:
    """Processes with the MIG GPU instance they run in, if any."""
    found = []
    for each in card.findall("processes/process_info"):
        pid = _number(each, "pid")
        if pid is None:
            continue
        name = (_text(each, "process_name") or "").rsplit("/", 1)[-1]
        found.append((_text(each, "gpu_instance_id"), DeviceProcess(int(pid), name, _mib(each, "used_memory"))))
    return found


def _text(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if not text or text in ("N/A", "None") or text.startswith("[") else text


def _number(element: ElementTree.Element, path: str) -> float | None:
    text = _text(element, path)
    match = _NUMBER.match(text) if text else None
    return float(match[0]) if match else None


def _first(element: ElementTree.Element, *paths: str) -> float | None:
    return next((value for path in paths if (value := _number(element, path)) is not None), None)


def _mib(element: ElementTree.Element, path: str) -> int | None:
    value = _number(element, path)
    return None if value is None else int(value * MIB)
