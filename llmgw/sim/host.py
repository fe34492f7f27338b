"""A simulated machine: processes, ports, devices, a disk that outlives crashes.

Engines are processes with a main process and perhaps a helper in the same group.
What a process does is drawn when it starts. The process table is the truth that
the invariants look at, never anybody's view of it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.records import Process
from llmgw.sim.world import HostClock, World
from llmgw.wire.messages import ShardKey, ShardSpec

TICKS = 100
"""Clock ticks per second, as in ``/proc/PID/stat``."""

FIRST_PID = 100
"""Pids are the lowest free ones, so that they are reused all the time."""

BIND_DELAY = 0.015
"""Seconds from an engine's start to its bind (llama-server)."""


@dataclass(slots=True)
class Temper:
    """How the engines that start now on a host behave. Times are seconds, chances 0 to 1."""

    load: tuple[float, float] = (0.1, 8.0)
    slow_load: float = 0.0
    crash: float = 0.0
    crash_after: float = 60.0
    ignore_first_term: float = 0.1
    ignore_terms: float = 0.0
    slow_exit: float = 0.0
    linger: float = 0.0
    helper: float = 0.2
    launch_fails: float = 0.0


@dataclass(slots=True, eq=False)
class Proc:
    """One process. ``key`` is the shard of its marker, ``None`` for a stranger."""

    pid: int
    started: int
    born: float
    key: ShardKey | None = None
    main: bool = False
    spec: ShardSpec | None = None
    port: int | None = None
    ready_since: float | None = None
    alive: bool = True
    dying: bool = False
    """Was sent SIGKILL, or ended by itself: what it still does is hold resources."""
    terms: int = 0
    ignore_terms: int = 0
    exit_delay: float = 0.0
    linger: float = 0.0
    status: int | None = None
    signalled: bool = False

    @property
    def identity(self) -> Process:
        """What cannot be confused with a later process of the same pid."""
        return Process(self.pid, self.started)

    def __repr__(self) -> str:
        return f"pid {self.pid}@{self.started} {self.key or 'stranger'}{' main' if self.main else ''}"


@dataclass(slots=True)
class Disk:
    """The agent's files: encoded, by name. ``failing`` refuses writes, ``slow`` delays them."""

    files: dict[str, bytes] = field(default_factory=dict)
    failing: bool = False
    slow: float = 0.0


SignalHook = Callable[["Host", Proc, str, str], None]


class Host:
    """One node's machine. ``on_signal(host, process, signal, why)`` is told before a
    signal takes effect; ``dirty`` says that the process table changed."""

    def __init__(self, world: World, name: str, memory: int, cores: int, devices: tuple[str, ...]) -> None:
        self.world = world
        self.name = name
        self.rng: random.Random = world.rng(f"host {name}")
        self.memory = memory
        self.cores = cores
        self.devices = devices
        self.clock = HostClock(world, self.rng.uniform(10.0, 1e6), self.rng.uniform(0.99, 1.01))
        self.boots = 1
        self.disk = Disk()
        self.temper = Temper()
        self.procs: dict[int, Proc] = {}
        self.on_signal: SignalHook | None = None
        self._enders: dict[ShardKey, Callable[[ShardKey], None]] = {}
        self.dirty = False
        self.calm = False
        """Engines end by themselves no more."""
        self.came_up: set[str] = set()
        """Replicas with an engine here that was ready at some time."""

    @property
    def boot_id(self) -> str:
        """Changes with each boot."""
        return f"{self.name}-boot-{self.boots}"

    # ------------------------------------------------------------ what there is

    def of(self, key: ShardKey) -> list[Proc]:
        """Live processes with the marker of a shard, the oldest first."""
        return [proc for proc in self.procs.values() if proc.key == key]

    def engines(self) -> list[Proc]:
        """Main processes of engines that are still there."""
        return [proc for proc in self.procs.values() if proc.main]

    def find(self, process: Process | None) -> Proc | None:
        """The very process, not another one of the same pid."""
        proc = self.procs.get(process.pid) if process is not None else None
        return proc if proc is not None and proc.identity == process else None

    def find_exactly(self, process: Process) -> Proc | None:
        """The same, for the invariants."""
        proc = self.procs.get(process.pid)
        return proc if proc is not None and proc.started == process.started else None

    def port_holder(self, port: int) -> Proc | None:
        """Who listens on a port."""
        return next((proc for proc in self.procs.values() if proc.port == port and not proc.dying), None)

    def age(self, proc: Proc) -> float:
        """Seconds a process has lived by this host's clock."""
        return (self.world.now - proc.born) * self.clock.rate

    def tell_end(self, key: ShardKey, tell: Callable[[ShardKey], None]) -> None:
        """Tell when the main process of a shard ends. The last one who asks is told."""
        self._enders[key] = tell

    # ------------------------------------------------------------ beginnings

    def spawn(self, spec: ShardSpec) -> Proc:
        """An engine starts: its group of processes."""
        rng, temper = self.rng, self.temper
        main = self._fork(spec.key)
        main.main, main.spec = True, spec
        if rng.random() < temper.ignore_terms:
            main.ignore_terms = 1000
        elif rng.random() < temper.ignore_first_term:
            main.ignore_terms = 1
        main.exit_delay = rng.uniform(0.01, 0.3) if rng.random() >= temper.slow_exit else rng.uniform(1.0, 15.0)
        main.linger = rng.uniform(1.0, 40.0) if rng.random() < temper.linger else 0.0
        if rng.random() < temper.helper:
            self._fork(spec.key).exit_delay = rng.uniform(0.01, 1.0)
        load = rng.uniform(*temper.load)
        if rng.random() < temper.slow_load:
            load += rng.uniform(10.0, 90.0)
        self.world.after(BIND_DELAY, self._bind, main, load)
        if rng.random() < temper.crash:
            self.world.after(rng.uniform(0.0, temper.crash_after), self._break, main, rng.choice((1, -6, -9, -11)))
        return main

    def stranger(self, port: int | None, seconds: float) -> None:
        """A process that is none of ours runs for a while, perhaps listening on a port."""
        proc = self._fork(None)
        if port is not None and self.port_holder(port) is None:
            proc.port = port
        self.world.after(seconds, self._end, proc, 0)

    def _fork(self, key: ShardKey | None) -> Proc:
        pid = FIRST_PID
        while pid in self.procs:
            pid += 1
        proc = Proc(pid, int(self.clock.monotonic() * TICKS), self.world.now, key)
        self.procs[proc.pid] = proc
        self.dirty = True
        return proc

    def _bind(self, proc: Proc, load: float) -> None:
        if not proc.alive or proc.dying or proc.spec is None:
            return
        if self.port_holder(proc.spec.port) is not None:
            self.world.log(self.name, f"{proc} cannot bind port {proc.spec.port}")
            self.crash(proc, 1)
            return
        proc.port = proc.spec.port
        self.world.after(load, self._loaded, proc)

    def _loaded(self, proc: Proc) -> None:
        if proc.alive and not proc.dying:
            proc.ready_since = self.world.now
            if proc.key is not None:
                self.came_up.add(proc.key.replica_id)
            self.world.log(self.name, f"{proc} is ready")

    # ------------------------------------------------------------ endings

    def _break(self, proc: Proc, status: int) -> None:
        if not self.calm:
            self.crash(proc, status)

    def crash(self, proc: Proc, status: int) -> None:
        """A process ends by itself."""
        if proc.alive and not proc.dying:
            self._end(proc, status)

    def signal(self, proc: Proc, name: str, why: str) -> None:
        """SIGTERM or SIGKILL to one process."""
        if not proc.alive:
            return
        if self.on_signal is not None:
            self.on_signal(self, proc, name, why)
        proc.signalled = True
        if name == "KILL":
            if not proc.dying:
                proc.dying = True
                proc.ready_since = None
                self.world.after(proc.linger or self.rng.uniform(0.0005, 0.05), self._end, proc, -9)
            return
        proc.terms += 1
        if proc.terms > proc.ignore_terms and proc.terms <= proc.ignore_terms + 1:
            self.world.after(proc.exit_delay, self._leave, proc)

    def _leave(self, proc: Proc) -> None:
        if proc.alive and not proc.dying:
            self._end(proc, 0)

    def reboot(self) -> None:
        """Everything that runs is gone; the disk stays."""
        for proc in list(self.procs.values()):
            self._end(proc, None)
        self.boots += 1
        self.clock.restart(self.rng.uniform(10.0, 60.0))

    def _end(self, proc: Proc, status: int | None) -> None:
        if not proc.alive:
            return
        proc.alive = False
        proc.status = status
        proc.port = proc.ready_since = None
        if self.procs.get(proc.pid) is proc:
            del self.procs[proc.pid]
        self.dirty = True
        if proc.key is not None:
            self.world.log(self.name, f"{proc} ended with {status}")
            teller = self._enders.get(proc.key)
            if teller is not None and proc.main:
                teller(proc.key)
