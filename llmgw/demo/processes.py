"""Processes of the demo, found and ended by marks in their environment."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from llmgw.demo.engine import DemoError, tail

T = TypeVar("T")


class Found(NamedTuple):
    """A running process and its environment's marks that were asked for."""

    pid: int
    command: str


def marked(name: str, value: str) -> list[Found]:
    """Running processes whose environment has ``name=value``. Zombies do not count."""
    entry = f"{name}={value}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if state not in (b"Z", b"X"):
                    found.append(Found(int(folder.name), command))
        except (FileNotFoundError, ProcessLookupError, PermissionError, IndexError):
            continue  # it ended while we looked, or belongs to somebody else
    return sorted(found)


def end(find: Callable[[], Iterable[Found]], grace: float) -> list[Found]:
    """End what ``find`` finds: SIGTERM, then SIGKILL after ``grace`` seconds. Returns
    what is left all the same."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for process in find():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        until = time.monotonic() + seconds
        while list(find()) and time.monotonic() < until:
            time.sleep(0.05)
        if not list(find()):
            break
    return list(find())


def until(condition: Callable[[], T | None], seconds: float, failure: Callable[[], DemoError]) -> T:
    """The condition's first value that is not ``None``; raises ``failure()`` when there
    is none in ``seconds``."""
    limit = time.monotonic() + seconds
    while True:
        value = condition()
        if value is not None:
            return value
        if time.monotonic() > limit:
            raise failure()
        time.sleep(0.05)


class Part:
    """One part of the product as a process of its own."""

    def __init__(self, name: str, module: str, settings: Path, log: Path, marks: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        command = [sys.executable, "-m", module, "--config", str(settings)]
        with log.open("ab") as stream:
            # A session of its own: Ctrl-C is for us, so that engines are drained first.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **marks},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises ``DemoError`` with the end of its log if it is not running."""
        status = self.process.poll()
        if status is not None:
            raise DemoError(f"the {self.name} ended with exit status {status} ({self.log})", tail=tail(self.log))

    def reload(self) -> None:
        """Have it read its files again."""
        self.process.send_signal(signal.SIGHUP)

    def stop(self, grace: float = 10.0) -> bool:
        """SIGTERM, then SIGKILL. Whether the first was enough."""
        if self.process.poll() is not None:
            return True
        self.process.terminate()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True


def free_port(wanted: int, host: str = "127.0.0.1") -> int:
    """``wanted`` if nothing listens there, else another free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DemoError(f"no port of {host} is free")


def free_range(first: int, count: int, host: str = "127.0.0.1") -> tuple[int, int]:
    """``count`` free ports in a row at or above ``first``, below the ephemeral range."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ceiling = ephemeral if ephemeral > first + count else 65536
    start = first
    while start + count <= ceiling:
        taken = next((port for port in range(start, start + count) if free_port(port, host) != port), None)
        if taken is None:
            return start, start + count - 1
        start = taken + 1
    raise DemoError(f"no {count} free ports in a row from {first} to {ceiling - 1}")
