"""An in-memory supervisor: a world of processes that behave as their program says.

Several supervisors may look at one world, as successive agents look at one host.
A command's ``argv`` is ``("program", JSON of a Program)``.
"""

import json
from dataclasses import asdict, dataclass, field, replace

from agent.events import Found
from agent.records import Process
from agent.supervise.base import TAIL_LINES, GroupUse, LaunchError, MainStatus


@dataclass(frozen=True)
class Program:
    """What an engine's process does. ``on_term``: ``exit``, ``ignore`` or ``second`` (leave
    at the second SIGTERM). ``hangs``: it sits in the kernel and outlives SIGKILL. ``exits``:
    end at once with that status. ``sidecar``: start a child that ignores SIGTERM, in the
    same session (``child``) or its own (``setsid``)."""

    lines: tuple[str, ...] = ()
    on_term: str = "exit"
    exits: int | None = None
    hangs: bool = False
    sidecar: str | None = None

    def to_json(self):
        return json.dumps(asdict(self))


@dataclass
class FakeProcess:
    process: Process
    key: object
    state_dir: str
    program: Program
    leader: bool
    alive: bool = True
    exit_status: int | None = None
    terms: int = 0

    def receive(self, signal):
        if self.program.hangs:
            return
        if signal == "KILL":
            self.end(-9)
            return
        self.terms += 1
        if self.program.on_term == "exit":
            self.end(-15)
        elif self.program.on_term == "second" and self.terms == 2:
            self.end(1)

    def end(self, status):
        self.alive = False
        self.exit_status = status


@dataclass
class World:
    """The kernel and the disk, as far as supervisors see them."""

    now: float = 1000.0
    processes: dict[int, FakeProcess] = field(default_factory=dict)
    output: dict[object, list[str]] = field(default_factory=dict)
    next_pid: int = 100

    def spawn(self, key, state_dir, program, leader=True):
        process = Process(self.next_pid, int(self.now * 100))
        self.next_pid += 1
        self.processes[process.pid] = FakeProcess(process, key, state_dir, program, leader)
        return self.processes[process.pid]


class FakeSupervisor:
    """See the module."""

    def __init__(self, world, state_dir="/state"):
        self.world = world
        self.state_dir = state_dir
        self.groups = {}
        self.children = set()

    def launch(self, key, commands):
        started = []
        for command in commands:
            if command.argv[0] != "program":
                for process in started:
                    process.end(-9)
                raise LaunchError(f"{command.argv[0]}: No such file or directory")
            values = json.loads(command.argv[1])
            program = Program(**{**values, "lines": tuple(values["lines"])})
            main = self.world.spawn(key, self.state_dir, program)
            started.append(main)
            self.world.output.setdefault(key, []).extend(program.lines)
            if program.sidecar:
                self.world.spawn(key, self.state_dir, Program(on_term="ignore"), leader=program.sidecar == "setsid")
            if program.exits is not None:
                main.end(program.exits)
        self.groups[key] = main.process
        self.children.add(main.process)
        return main.process

    def adopt(self, key, process):
        self.groups[key] = process

    def is_alive(self, process):
        known = self.world.processes.get(process.pid)
        return known is not None and known.alive and known.process == process

    def age(self, process):
        return self.world.now - process.started / 100

    def status(self, key):
        process = self.groups[key]
        if process is None:
            return MainStatus(False)
        known = self.world.processes[process.pid]
        return MainStatus(known.alive, known.exit_status if process in self.children else None)

    def _living(self, key):
        processes = self.world.processes.values()
        return [p for p in processes if p.alive and p.key == key and p.state_dir == self.state_dir]

    def members(self, key):
        return tuple(process.process.pid for process in self._living(key))

    def members_of(self, keys):
        return {key: self.members(key) for key in keys}

    def signal(self, key, signal):
        living = self._living(key)
        for process in living:
            process.receive(signal)
        return tuple(process.process.pid for process in living)

    def scan(self):
        keys = {p.key for p in self.world.processes.values() if p.alive and p.state_dir == self.state_dir}
        found = []
        for key in keys:
            leaders = [p for p in self._living(key) if p.leader]
            main = leaders[0].process if leaders else None
            found.append(Found(key, tuple(sorted(self.members(key))), main, self.age(main) if main else None))
        return tuple(found)

    def use(self, pids):
        living = [pid for pid in pids if pid in self.world.processes and self.world.processes[pid].alive]
        return GroupUse(0.0, len(living) * 4096)

    def tail(self, key):
        return tuple(self.world.output.get(key, ())[-TAIL_LINES:])

    def trim(self, keys):
        for key in keys:
            self.world.output[key] = self.world.output.get(key, [])[-10_000:]

    def release(self, key):
        self.groups.pop(key, None)


def reused(world, process):
    """The pid of a dead process passes to a stranger."""
    stranger = world.processes[process.pid]
    later = Process(process.pid, process.started + 500)
    world.processes[process.pid] = replace(stranger, process=later, key=None, alive=True, exit_status=None)
