"""Reading ``/proc``: which processes there are and which of them are ours."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent.records import Process
from agent.supervise.environment import MARK_SHARD, MARK_STATE

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

Listener = Literal["ours", "stranger", "nobody", "unknown"]

_LISTEN = "0A"
_MAX_ENVIRON = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stat:
    """A line of ``/proc/PID/stat``, as far as it matters here."""

    pid: int
    state: str
    parent: int
    session: int
    cpu_ticks: int
    started: int
    resident_pages: int

    @property
    def alive(self) -> bool:
        """A zombie, or a process about to vanish, is dead: it holds nothing."""
        return self.state not in "ZXx"

    @property
    def process(self) -> Process:
        """Its identity."""
        return Process(self.pid, self.started)


def read_stat(pid: int) -> Stat | None:
    """The process of that pid, or ``None`` if there is none."""
    try:
        data = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name is in parentheses and may hold anything, also parentheses.
    fields = data[data.rindex(b")") + 2 :].split()
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        started=int(fields[19]),
        resident_pages=int(fields[21]),
    )


def read_all() -> dict[int, Stat]:
    """Every process there is."""
    stats = (read_stat(int(entry.name)) for entry in os.scandir(PROC) if entry.name.isdecimal())
    return {stat.pid: stat for stat in stats if stat is not None}


def read_marks(pid: int) -> tuple[str, str] | None:
    """Values of the shard marker and the state directory marker, if the process was
    started with both."""
    try:
        with (PROC / str(pid) / "environ").open("rb") as stream:
            data = stream.read(_MAX_ENVIRON)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    shard = state = None
    for entry in data.split(b"\0"):
        if entry.startswith(_SHARD):
            shard = entry[len(_SHARD) :].decode("utf-8", "replace")
        elif entry.startswith(_STATE):
            state = entry[len(_STATE) :].decode("utf-8", "replace")
    return (shard, state) if shard is not None and state is not None else None


def who_listens(pids: Iterable[int], port: int) -> Listener:
    """Who listens on a TCP port, in the network of these processes: one of them, somebody
    else, nobody; or it cannot be told, because a process does not let us look."""
    found: Listener = "nobody"
    for pid in pids:
        try:
            sockets = _listeners(pid, port)
            if not sockets:
                continue
            found = "stranger" if found == "nobody" else found
            if any(_target(entry.path) in sockets for entry in os.scandir(PROC / str(pid) / "fd")):
                return "ours"
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:
            found = "unknown"
    return found


def _listeners(pid: int, port: int) -> set[str]:
    """The sockets that listen on a port, as the process's network has them."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - the text is wanted: socket:[1]
    except FileNotFoundError:
        return ""


def boot_id() -> str:
    """Identity of this boot of the host."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def uptime() -> float:
    """Seconds since boot."""
    return float((PROC / "uptime").read_text().split()[0])


_SHARD = f"{MARK_SHARD}=".encode()
_STATE = f"{MARK_STATE}=".encode()
