"""The supervision protocol (AGT-06, AGT-07).

A backend starts the processes of a shard, says which of them live, signals all of
them, and finds them again after the agent was away. It decides nothing. Every
backend is held by the same conformance suite.

``launch`` and ``status`` are quick and must be called on the thread that launched;
the other methods read the process table and files and may be called from a native
thread.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from agent.engines.base import Command
from agent.events import Found, SignalName
from agent.records import Process
from llmgw.wire.messages import ShardKey

TAIL_LINES = 200
"""Last lines of output that travel with a failure."""

TAIL_LINE = 2000
"""Characters of one such line."""

TAIL_BYTES = 32 * 1024
"""Bytes of all of them: many exits must fit into one registration."""


class LaunchError(Exception):
    """The shard's processes could not be started; none of them is left."""


@dataclass(frozen=True, slots=True)
class MainStatus:
    """Whether the main process lives. ``exit_status`` is negative for a signal and
    ``None`` while it lives or if nobody can know (an adopted process)."""

    alive: bool
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class GroupUse:
    """Use of all processes of a shard: CPU seconds since their start, resident bytes."""

    cpu_seconds: float
    memory_bytes: int


class Supervisor(Protocol):
    """One backend. A shard is known to it from ``launch`` or ``adopt`` until ``release``."""

    def launch(self, key: ShardKey, commands: tuple[Command, ...]) -> Process:
        """Start the commands in order; the last one is the main process. Raises
        ``LaunchError``."""
        ...

    def adopt(self, key: ShardKey, process: Process | None) -> None:
        """Take over processes that run already; ``None`` if the main one is gone."""
        ...

    def is_alive(self, process: Process) -> bool:
        """Whether this very process runs: not a zombie, not another of the same pid."""
        ...

    def age(self, process: Process) -> float | None:
        """Seconds since the process started."""
        ...

    def status(self, key: ShardKey) -> MainStatus:
        """The main process of a known shard."""
        ...

    def members(self, key: ShardKey) -> tuple[int, ...]:
        """Every living process of the shard, also those that left its group or session."""
        ...

    def members_of(self, keys: Iterable[ShardKey]) -> dict[ShardKey, tuple[int, ...]]:
        """The same for many shards in one look at the process table."""
        ...

    def signal(self, key: ShardKey, signal: SignalName) -> tuple[int, ...]:
        """Signal every living process of the shard; the pids that were signalled."""
        ...

    def scan(self) -> tuple[Found, ...]:
        """All living processes that carry this agent's markers, by shard."""
        ...

    def use(self, pids: Iterable[int]) -> GroupUse:
        """Measured use of processes; those that are gone count nothing."""
        ...

    def tail(self, key: ShardKey) -> tuple[str, ...]:
        """The last ``TAIL_LINES`` lines of output, also of an earlier agent's time."""
        ...

    def trim(self, keys: Iterable[ShardKey]) -> None:
        """Keep the output of these shards within its bound; drop the oldest others'."""
        ...

    def release(self, key: ShardKey) -> None:
        """Forget a shard whose processes are gone. Its output stays readable."""
        ...
