"""What a node has and how it is used."""

from collections.abc import Callable
from pathlib import Path

from agent.hardware.base import DeviceReader, HardwareError, Reading
from agent.hardware.nvidia_smi import SmiReader
from agent.hardware.nvml import NvmlReader, load_library

Offload = Callable[[Callable[[], Reading]], Reading]


def choose_readers(mode: str, nvidia_smi: str) -> tuple[DeviceReader, ...]:
    """Readers to try in order, for the setting ``hardware.gpu``."""
    if mode == "off":
        return ()
    if mode == "nvidia-smi":
        return (SmiReader(nvidia_smi),)
    try:
        native: tuple[DeviceReader, ...] = (NvmlReader(load_library()),)
    except HardwareError:
        if mode == "nvml":
            raise
        native = ()
    return native if mode == "nvml" else (*native, SmiReader(nvidia_smi))


class Devices:
    """The node's devices through the first reader that answers.

    ``offload`` runs a native reader where it may block. ``wanted`` says that devices
    are expected (a reader was named in the settings), so that silence is a fault.
    """

    def __init__(
        self,
        readers: tuple[DeviceReader, ...],
        offload: Offload,
        wanted: bool = False,
        driver_sign: Path = Path("/proc/driver/nvidia"),
    ) -> None:
        self._readers = readers
        self._offload = offload
        self._wanted = wanted
        self._driver_sign = driver_sign
        self._answered = False

    def read(self) -> Reading:
        """Everything there is now. Raises ``HardwareError`` if no reader answers although
        there are, were, or should be devices: what is unknown is not nothing."""
        errors = []
        for reader in self._readers:
            try:
                reading = self._offload(reader.read) if reader.native else reader.read()
            except HardwareError as error:
                errors.append(str(error))
            else:
                self._answered = True
                return reading
        if errors and (self._wanted or self._answered or self._driver_sign.exists()):
            raise HardwareError("devices cannot be read: " + "; ".join(errors))
        return Reading()
