"""The life of one shard on this node, as a pure machine (AGT-05 to AGT-08).

accepted -> validating -> launching -> starting -> ready, and from any of them through
``ending`` to gone. The spec is on disk before anything is launched, and again with
the process's identity after. A shard is gone only when no process of it is left.
"""

from collections.abc import Callable
from typing import Literal

from agent.events import (
    Effect,
    Found,
    Gone,
    Launch,
    Launched,
    LaunchFailed,
    Lingering,
    Notice,
    Probe,
    Probed,
    Report,
    Save,
    Saved,
    Signal,
    SpecFault,
    Stored,
    Validate,
    Validated,
    Watch,
)
from agent.records import Ending, Process, ShardRecord
from llmgw.wire.messages import ShardChanged, ShardExit, ShardKey, ShardSpec, ShardState, ShardStatus

PROBE_FAST = 0.1
"""Seconds between readiness probes of a shard that started less than ``PROBE_FAST_FOR`` ago."""

PROBE_FAST_FOR = 5.0
PROBE_SLOW = 1.0
PROBE_TIMEOUT = 5.0
"""Seconds after which an unanswered probe counts as lost and is sent again."""

FAILURE_GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a shard that failed by itself."""

KILL_AGAIN = 1.0
"""Seconds between repeated SIGKILLs: a process may have forked while the first was under way."""

MAX_MESSAGE = 2000
"""Characters of an exit's message."""

_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_SIGNALS |= {13: "SIGPIPE", 15: "SIGTERM", 24: "SIGXCPU", 31: "SIGSYS"}

Phase = Literal["accepted", "validating", "launching", "starting", "ready"]


def describe_exit(status: int | None) -> str:
    """An exit status in words a person understands."""
    if status is None:
        return "its exit status is unknown"
    if status < 0:
        name = _SIGNALS.get(-status, f"signal {-status}")
        hint = " (the kernel may have run out of memory)" if status == -9 else ""
        hint = " (the binary was built for another processor)" if status == -4 else hint
        return f"it was killed by {name}{hint}"
    return f"it ended with exit status {status}"


class Shard:
    """See the module. ``save`` makes the effect that puts a record on disk. ``exit`` is
    set once the shard is gone; the owner then drops the shard."""

    def __init__(self, spec: ShardSpec, boot_id: str, now: float, save: Callable[[ShardRecord], Save]) -> None:
        self.spec = spec
        self.key: ShardKey = spec.key
        self.phase: Phase = "accepted"
        self.process: Process | None = None
        self.ending: Ending | None = None
        self.exit: ShardExit | None = None
        self.adopted = False
        self.detail = ""
        self._boot_id = boot_id
        self._save = save
        self._began = now
        self._since = now
        self._await_save: int | None = None
        self._deadline: float | None = None
        self._next_probe: float | None = None
        self._asked: float | None = None
        self._answered = False
        self._signals: list[tuple[float, Literal["TERM", "KILL"]]] = []

    # ------------------------------------------------------------ what others see

    @property
    def state(self) -> ShardState:
        """The state as the wire knows it."""
        if self.ending is not None:
            return "stopping"
        return "ready" if self.phase == "ready" else "starting"

    @property
    def holds_process(self) -> bool:
        """Whether processes of the shard exist, or may exist any moment."""
        return self.phase in ("launching", "starting", "ready")

    @property
    def next_wake(self) -> float | None:
        """When ``wake`` has something to do."""
        times = [time for time, _ in self._signals]
        if self.ending is None:
            times += [time for time in (self._deadline, self._next_probe) if time is not None]
        return min(times, default=None)

    def status(self, now: float) -> ShardStatus:
        """The shard as a registration tells it: without its secret."""
        return ShardStatus(
            spec=self.spec.without_secret(),
            state=self.state,
            pid=self.process.pid if self.process else None,
            age=now - self._began,
            state_age=now - self._since,
            adopted=self.adopted,
            detail=self.detail,
        )

    def record(self) -> ShardRecord:
        """The shard as the disk holds it."""
        return ShardRecord(
            spec=self.spec.without_secret() if self.exit else self.spec,
            boot_id=self._boot_id,
            pid=self.process.pid if self.process else None,
            started=self.process.started if self.process else None,
            state="ready" if self.phase == "ready" else "starting",
            ending=self.ending,
            exit=self.exit,
        )

    # ------------------------------------------------------------ beginnings

    def begin(self) -> list[Effect]:
        """A start was accepted: first of all the record."""
        save = self._save(self.record())
        self._await_save = save.sequence
        return [save]

    def adopt(self, stored: Stored, found: Found | None, now: float) -> list[Effect]:
        """Take over after a restart of the agent (AGT-07). ``stored.alive`` means that
        the recorded process runs; ``found`` are live processes with our marker."""
        record = stored.record
        process, age = (record.process, stored.age) if stored.alive else (None, None)
        if process is None and record.process is None and found is not None:
            # Launched, but the agent died before it could write the pid down.
            process, age = found.main, found.age
        self.ending = record.ending
        if process is not None:
            return self._adopt_process(process, record, age, now)
        if self.ending is None and record.process is None:
            message = "the agent was restarted while it was starting the engine"
            self.ending = Ending(code="agent_error", message=message, requested=False, grace_seconds=0.0)
        elif self.ending is None and record.boot_id != self._boot_id:
            message = "the node was restarted"
            self.ending = Ending(code="exited", message=message, requested=False, grace_seconds=0.0)
        elif self.ending is None:
            message = "the engine ended while the agent was away; its exit status is unknown"
            self.ending = Ending(code="exited", message=message, requested=False, grace_seconds=0.0)
        if found is not None:
            # The main process is gone and left others behind: they hold devices.
            self.phase = "starting"
            self._signals = [(now + KILL_AGAIN, "KILL")]
            return [Watch(self.spec, None), Signal(self.key, "KILL")]
        return self._end(None, stored.tail, None)

    def _adopt_process(self, process: Process, record: ShardRecord, age: float | None, now: float) -> list[Effect]:
        self.process = process
        self.adopted = True
        self.detail = "adopted after a restart of the agent"
        self._began = now - age if age is not None else now
        self.phase = "ready" if record.state == "ready" else "starting"
        effects: list[Effect] = [Watch(self.spec, process)]
        if record.process != process:
            effects.append(self._save(self.record()))
        if self.ending is not None:
            return effects + self._schedule_signals(self.ending.grace_seconds, now)
        if self.phase == "starting":
            self._deadline = now + max(0.0, self.spec.startup_timeout - (age or 0.0))
            if self.spec.rank == 0:
                self._next_probe = now
            else:
                effects += self._become_ready(now)
        return effects

    # ------------------------------------------------------------ progress

    def saved(self, event: Saved) -> list[Effect]:
        """A save ended; only the first one is waited for."""
        if event.sequence != self._await_save:
            return []
        self._await_save = None
        if event.error:
            message = f"the shard could not be written down: {event.error}"
            return self._fail_unlaunched(SpecFault("agent_error", message))
        self.phase = "validating"
        return [Validate(self.spec)]

    def validated(self, event: Validated) -> list[Effect]:
        """The spec was checked against this node."""
        if self.phase != "validating":
            return []
        if event.faults:
            return self.refuse(event.faults)
        self.phase = "launching"
        return [Launch(self.spec)]

    def refuse(self, faults: tuple[SpecFault, ...]) -> list[Effect]:
        """It cannot run here; every reason is told."""
        return self._fail_unlaunched(SpecFault(faults[0].code, "; ".join(fault.message for fault in faults)))

    def launched(self, event: Launched, now: float) -> list[Effect]:
        """The engine runs: write down which process it is, then wait for readiness."""
        if self.phase != "launching":
            return []
        self.process = event.process
        self.phase = "starting"
        self._began = self._since = now
        effects: list[Effect] = [self._save(self.record())]
        if self.ending is not None:
            return effects + self._schedule_signals(self.ending.grace_seconds, now)
        if not event.probed:
            return effects + self._become_ready(now)
        self._deadline = now + self.spec.startup_timeout
        self._next_probe = now + PROBE_FAST / 2
        return [*effects, self._report(now)]

    def launch_failed(self, event: LaunchFailed) -> list[Effect]:
        """No process of it runs."""
        if self.phase != "launching":
            return []
        return self._fail_unlaunched(SpecFault(event.code, event.message))

    def probed(self, event: Probed, now: float) -> list[Effect]:
        """The engine answered, or not."""
        if self.phase != "starting" or self.ending is not None:
            return []
        self._answered = True
        if event.ready:
            self.detail = "adopted after a restart of the agent" if self.adopted else ""
            return self._become_ready(now)
        pause = PROBE_FAST if now - self._began < PROBE_FAST_FOR else PROBE_SLOW
        self._next_probe = now + pause
        if event.detail == self.detail:
            return []
        self.detail = event.detail
        return [self._report(now)]

    def _become_ready(self, now: float) -> list[Effect]:
        self.phase = "ready"
        self._since = now
        self._deadline = self._next_probe = None
        notice = Notice("info", "shard is ready", {"shard": str(self.key), "model": self.spec.model})
        return [self._save(self.record()), self._report(now), notice]

    # ------------------------------------------------------------ endings

    def stop(self, reason: str, grace: float, now: float) -> list[Effect]:
        """End it as commanded. Repeating it can only shorten the grace."""
        if self.ending is not None:
            if self._signals and now + grace < self._kill_at():
                return self._schedule_signals(grace, now)
            return []
        self._since = now
        self.ending = Ending(code="stopped", message=f"stopped: {reason}", requested=True, grace_seconds=grace)
        if not self.holds_process:
            return self._end(None, (), None)
        effects: list[Effect] = [self._save(self.record()), self._report(now)]
        if self.phase != "launching":
            effects += self._schedule_signals(grace, now)
        return effects

    def exited(self, exit_status: int | None, now: float) -> list[Effect]:
        """The main process ended: what is left of its group goes at once (AGT-06)."""
        if self.phase not in ("starting", "ready"):
            return []
        if self.ending is None:
            while_starting = " while it was starting" if self.phase == "starting" else ""
            message = f"the engine ended by itself{while_starting}: {describe_exit(exit_status)}"
            self.ending = Ending(code="exited", message=message, requested=False, grace_seconds=0.0)
        self._since = now
        self._signals = [(now + KILL_AGAIN, "KILL")]
        return [Signal(self.key, "KILL")]

    def gone(self, event: Gone) -> list[Effect]:
        """No process is left: the shard is over."""
        if not self.holds_process:
            return []
        return self._end(event.exit_status, event.tail, event.cause)

    def lingering(self, event: Lingering, now: float) -> list[Effect]:
        """Processes survive SIGKILL: say so, so that a drain names its blocker."""
        pids = ", ".join(map(str, event.pids[:8]))
        detail = f"waiting for processes that survive SIGKILL: pid {pids}"
        if detail == self.detail:
            return []
        self.detail = detail
        return [self._report(now), Notice("warning", detail, {"shard": str(self.key)})]

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        if self.ending is not None:
            return self._signal_due(now)
        if self._deadline is not None and now >= self._deadline:
            if self._asked is None or now - self._asked > PROBE_TIMEOUT:
                # The agent was away, or stopped: the engine may have become ready meanwhile (AGT-09).
                self._deadline = now + PROBE_TIMEOUT
                return self._ask(now)
            if not self._answered and now < self._asked + PROBE_TIMEOUT:
                # Asked just now, as after a restart of the agent: its answer decides.
                self._deadline = self._asked + PROBE_TIMEOUT
                return []
            said = f"; the last probe said: {self.detail}" if self.detail and not self.adopted else ""
            message = f"the engine was not ready within {self.spec.startup_timeout:g} s{said}"
            self.ending = Ending(code="startup_timeout", message=message, requested=False, grace_seconds=FAILURE_GRACE)
            self._since = now
            effects: list[Effect] = [self._save(self.record()), self._report(now)]
            return effects + self._schedule_signals(FAILURE_GRACE, now)
        if self._next_probe is not None and now >= self._next_probe:
            return self._ask(now)
        return []

    def _ask(self, now: float) -> list[Effect]:
        self._asked = now
        self._answered = False
        self._next_probe = now + PROBE_TIMEOUT
        return [Probe(self.spec)]

    def _schedule_signals(self, grace: float, now: float) -> list[Effect]:
        """SIGTERM now and at half the grace, SIGKILL at its end: an engine that is busy
        may hang after the first SIGTERM, and leave at once at the second."""
        self._deadline = self._next_probe = None
        self._signals = [(now, "TERM"), (now + grace / 2, "TERM"), (now + grace, "KILL")]
        return self._signal_due(now)

    def _signal_due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._signals and self._signals[0][0] <= now:
            _, signal = self._signals.pop(0)
            effects = [Signal(self.key, signal)]
            if not self._signals:
                self._signals = [(now + KILL_AGAIN, "KILL")]
        return effects

    def _kill_at(self) -> float:
        return self._signals[-1][0]

    def _fail_unlaunched(self, fault: SpecFault) -> list[Effect]:
        if self.ending is None:
            self.ending = Ending(code=fault.code, message=fault.message, requested=False, grace_seconds=0.0)
        return self._end(None, (), None)

    def _end(self, exit_status: int | None, tail: tuple[str, ...], cause: SpecFault | None) -> list[Effect]:
        ending = self.ending
        code, message, requested = "exited", f"the engine ended by itself: {describe_exit(exit_status)}", False
        if ending is not None:
            code, message, requested = ending.code, ending.message, ending.requested
        if code == "exited" and cause is not None:
            code, message = cause.code, f"{cause.message}; {message}"
        self.exit = ShardExit(
            replica_id=self.key.replica_id,
            rank=self.key.rank,
            incarnation=self.key.incarnation,
            code=code,
            model=self.spec.model,
            message=message[:MAX_MESSAGE],
            exit_status=exit_status,
            tail=tail,
            requested=requested,
        )
        self._signals = []
        self._deadline = self._next_probe = None
        return [self._save(self.record())]

    def _report(self, now: float) -> Report:
        return Report(ShardChanged(status=self.status(now)))
