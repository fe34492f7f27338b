"""What an agent keeps on its node's disk (AGT-04, AGT-07). Pure definitions.

One file holds what the agent must not forget about commands; one file per shard
holds its whole spec, the identity of its process and, once it is gone, why.
"""

import re
from typing import Literal, NamedTuple

from llmgw.wire.messages import Part, ShardExit, ShardKey, ShardSpec

MAX_COMMANDS = 256
"""Command ids remembered for de-duplication."""

MAX_EXITS = 64
"""Exits kept until the control plane has recorded them; the oldest goes first."""

_REPLICA_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Process(NamedTuple):
    """A process that cannot be confused with a later one of the same pid: ``started``
    is its start time in clock ticks since boot (field 22 of ``/proc/PID/stat``)."""

    pid: int
    started: int


class Ending(Part, frozen=True):
    """Why a shard is being ended. ``code`` is one of ``errors.SHARD``; ``requested`` is
    true if a stop command asked for it. ``grace_seconds`` lies between the first
    SIGTERM and SIGKILL."""

    code: str
    message: str
    requested: bool
    grace_seconds: float


class AgentState(Part, frozen=True):
    """Commands as far as they must survive a restart. ``highest_epoch`` is the highest that
    a leader showed, ``leader`` whose it was (empty = unknown). ``commands`` holds the ids
    of the latest ones, oldest first."""

    highest_epoch: int = 0
    leader: str = ""
    last_command: str | None = None
    commands: tuple[str, ...] = ()


RecordState = Literal["starting", "ready"]


class ShardRecord(Part, frozen=True):
    """One shard on disk. ``spec`` holds the engine key until the shard is gone.

    ``pid`` and ``started`` are ``None`` if the engine was not launched yet, or the
    agent died between launching it and writing that down.
    """

    spec: ShardSpec
    boot_id: str
    pid: int | None = None
    started: int | None = None
    state: RecordState = "starting"
    ending: Ending | None = None
    exit: ShardExit | None = None

    @property
    def process(self) -> Process | None:
        """Identity of the engine's main process, if it was recorded."""
        return Process(self.pid, self.started) if self.pid is not None and self.started is not None else None


def valid_replica_id(replica_id: str) -> bool:
    """Whether an id may become part of a file name."""
    return _REPLICA_ID.fullmatch(replica_id) is not None


def file_stem(key: ShardKey) -> str:
    """Name of a shard's files, without suffix. Unique per key."""
    return f"{key.replica_id}-{key.rank}.{key.incarnation}"
