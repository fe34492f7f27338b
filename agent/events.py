"""What goes into the agent's machine and what comes out of it.

The machine (``agent.machine``) is sans-IO: a driver, or the simulator, feeds it
events with the monotonic time and carries the effects out, ``Save`` effects strictly
in order. Every effect that can fail answers with an event.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.records import AgentState, Process, ShardRecord
from llmgw.wire.messages import Forget, Inventory, Measurements, ShardKey, ShardSpec, Start, Stop, Up

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Found:
    """Live processes that carry the marker of one shard of this agent.

    ``main`` is the one that looks like the engine's main process (the oldest session
    leader); ``age`` its age in seconds, if known.
    """

    key: ShardKey
    pids: tuple[int, ...]
    main: Process | None
    age: float | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A shard's record as read from disk. ``alive`` tells whether the very process it
    names still runs (same pid *and* start time *and* boot); ``age`` in seconds."""

    record: ShardRecord
    alive: bool = False
    age: float | None = None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Booted:
    """The first event: what the disk and the process table hold (AGT-07)."""

    boot_id: str
    state: AgentState
    stored: tuple[Stored, ...] = ()
    found: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command arrived over the session."""

    message: Start | Stop | Forget


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """A control plane welcomed this agent with its epoch, and a new session began."""

    epoch: int
    leader: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """The ``Save`` of that sequence is durable, or failed with ``error`` in words."""

    sequence: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class SpecFault:
    """One reason why a spec cannot run here. ``code`` is one of ``errors.SHARD``."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Validated:
    """Answer to ``Validate``: no faults means it may be launched (AGT-05)."""

    key: ShardKey
    faults: tuple[SpecFault, ...] = ()


@dataclass(frozen=True, slots=True)
class Launched:
    """The shard's main process runs. ``probed`` is false for a rank that serves no
    HTTP: it is ready by staying alive (AGT-08)."""

    key: ShardKey
    process: Process
    probed: bool = True


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """No process of the shard runs: it could not be started."""

    key: ShardKey
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Probed:
    """Answer to ``Probe``."""

    key: ShardKey
    ready: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Exited:
    """The shard's main process ended; others of its group may still run."""

    key: ShardKey
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """No process of the shard is left, confirmed.

    ``exit_status`` is negative for a signal and ``None`` if unknown (an adopted
    process). ``cause`` is what the engine's adapter read out of the output, if it did.
    """

    key: ShardKey
    exit_status: int | None = None
    tail: tuple[str, ...] = ()
    cause: SpecFault | None = None


@dataclass(frozen=True, slots=True)
class Lingering:
    """Processes of the shard that are still there some time after SIGKILL."""

    key: ShardKey
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InventoryRead:
    """What the node has, read anew."""

    inventory: Inventory


@dataclass(frozen=True, slots=True)
class Measured:
    """What the node's use was measured to be just now."""

    measurements: Measurements


@dataclass(frozen=True, slots=True)
class Woke:
    """Time passed: ``next_wake`` was reached."""


ShardEvent = Validated | Launched | LaunchFailed | Probed | Exited | Gone | Lingering
"""What is about one shard; ignored if the machine knows no shard of that key."""

Event = Booted | Commanded | EpochSeen | Saved | InventoryRead | Measured | Woke | ShardEvent

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class RemoveRecord:
    """What to save: that a shard's record is no longer needed."""

    key: ShardKey


@dataclass(frozen=True, slots=True)
class Save:
    """Make ``item`` durable, in order, and answer ``Saved(sequence)``."""

    sequence: int
    item: AgentState | ShardRecord | RemoveRecord


@dataclass(frozen=True, slots=True)
class Validate:
    """Check everything that can be checked before launching; answer ``Validated``."""

    spec: ShardSpec


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the engine; answer ``Launched`` or ``LaunchFailed``, then watch it: tell
    ``Exited`` and ``Gone``."""

    spec: ShardSpec


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch processes that were running already: tell ``Exited`` and ``Gone``.
    ``process`` is ``None`` if the main process is gone and only others are left."""

    spec: ShardSpec
    process: Process | None


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the engine whether it is ready; answer ``Probed``."""

    spec: ShardSpec


SignalName = Literal["TERM", "KILL"]


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal every process of the shard."""

    key: ShardKey
    signal: SignalName


@dataclass(frozen=True, slots=True)
class KillUnidentified:
    """Kill processes that carry our marker and belong to no shard we know (AGT-07)."""

    key: ShardKey
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the control plane, if a session stands; what is lost is in the next
    registration."""

    message: Up


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the agent's log."""

    level: Literal["debug", "info", "warning", "error"]
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


Effect = Save | Validate | Launch | Watch | Probe | Signal | KillUnidentified | Report | Notice
