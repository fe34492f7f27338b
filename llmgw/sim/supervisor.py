"""What supervision is to an agent (``agent.supervise.base``), on a simulated host's
process table. Engines start from their spec; output and use are not simulated."""

from agent.events import Found, SignalName
from agent.records import Process
from agent.supervise.base import MainStatus
from llmgw.sim.host import Host, Proc
from llmgw.wire.messages import ShardKey, ShardSpec


class SimSupervisor:
    """One agent process's supervisor: what it knows of its shards dies with it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._children: dict[ShardKey, Proc] = {}
        self._mains: dict[ShardKey, Process | None] = {}
        self._exited: set[ShardKey] = set()

    def start(self, spec: ShardSpec) -> Process:
        """Start the shard's processes, as ``launch`` does; a simulated engine needs no command."""
        main = self._host.spawn(spec)
        self._children[spec.key] = main
        self._mains[spec.key] = main.identity
        return main.identity

    def adopt(self, key: ShardKey, process: Process | None) -> None:
        """Take over what runs already."""
        self._mains[key] = process

    def is_alive(self, process: Process) -> bool:
        """Same pid and start time."""
        return self._host.find(process) is not None

    def age(self, process: Process) -> float | None:
        """Seconds since it started, by the host's clock."""
        proc = self._host.find(process)
        return self._host.age(proc) if proc is not None else None

    def status(self, key: ShardKey) -> MainStatus:
        """Only a child's exit status is known."""
        child = self._children.get(key)
        if child is not None:
            return MainStatus(child.alive, child.status)
        main = self._mains.get(key)
        return MainStatus(main is not None and self.is_alive(main))

    def members(self, key: ShardKey) -> tuple[int, ...]:
        """Every living process of the shard."""
        return tuple(proc.pid for proc in self._host.of(key))

    def signal(self, key: ShardKey, signal: SignalName) -> tuple[int, ...]:
        """Signal every living process of the shard."""
        members = self._host.of(key)
        for proc in members:
            self._host.signal(proc, signal, "asked")
        return tuple(proc.pid for proc in members)

    def kill_unidentified(self, key: ShardKey) -> None:
        """Kill what carries the marker of a shard nobody knows."""
        for proc in self._host.of(key):
            self._host.signal(proc, "KILL", "unidentified")

    def scan(self) -> tuple[Found, ...]:
        """All living processes with a marker, by shard."""
        shards: dict[ShardKey, list[Proc]] = {}
        for proc in self._host.procs.values():
            if proc.key is not None:
                shards.setdefault(proc.key, []).append(proc)
        found = []
        for key, procs in shards.items():
            main = min((proc for proc in procs if proc.main), key=lambda proc: (proc.started, proc.pid), default=None)
            pids = tuple(sorted(proc.pid for proc in procs))
            age = self._host.age(main) if main is not None else None
            found.append(Found(key, pids, main.identity if main is not None else None, age))
        return tuple(found)

    def tail(self, key: ShardKey) -> tuple[str, ...]:
        """What the engine wrote last."""
        return (f"output of {key}",)

    def release(self, key: ShardKey) -> None:
        """Forget a shard whose processes are gone."""
        self._children.pop(key, None)
        self._mains.pop(key, None)
        self._exited.discard(key)

    def knows(self, key: ShardKey) -> bool:
        """Whether the shard was launched or adopted, and not released."""
        return key in self._mains

    def first_exit(self, key: ShardKey) -> bool:
        """Whether the end of the main process is seen for the first time."""
        if key in self._exited:
            return False
        self._exited.add(key)
        return True
