"""Blocks of ports that no other test run and no outgoing connection takes."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST, LAST, SIZE = 10240, 32767, 32
"""Below the ephemeral range of Linux (32768 and up)."""


class PortBlock:
    """``SIZE`` ports in a row, reserved by a lock file for as long as this object is open."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / "llmgw-test-ports"
        folder.mkdir(mode=0o700, exist_ok=True)
        blocks = (LAST + 1 - FIRST) // SIZE
        for step in range(blocks):
            number = (os.getpid() * 7 + step) % blocks
            descriptor = os.open(folder / f"{number}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            self.first = FIRST + number * SIZE
            self.last = self.first + SIZE - 1
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            if all(_free(port) for port in range(self.first, self.last + 1)):
                self._descriptor = descriptor
                return
            os.close(descriptor)
        raise RuntimeError("no block of free ports")

    def close(self) -> None:
        """Give the block back."""
        os.close(self._descriptor)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
