"""Supervision without systemd: every command is the leader of a session of its own.

A shard's processes are those that carry its marker in their environment, those in
the session of a leader we know, and all their descendants: so a sidecar that left
its group, or a worker that overwrote its environment, is still found (AGT-06). A
process is known by pid and start time; signals go through a pidfd, so a reused pid
is never hit.
"""

import os
import signal as signals
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.engines.base import Command
from agent.events import Found, SignalName
from agent.records import Process
from agent.supervise import proc
from agent.supervise.base import GroupUse, LaunchError, MainStatus
from agent.supervise.environment import inherited_environment, markers, parse_mark
from agent.supervise.output import OutputFiles
from agent.supervise.proc import Stat
from llmgw.wire.messages import ShardKey

_SIGNALS = {"TERM": signals.SIGTERM, "KILL": signals.SIGKILL}


@dataclass(slots=True)
class _Group:
    """What is known of one shard. ``leaders`` were seen alive by this supervisor, so
    their session ids cannot have passed to strangers while it watches."""

    main: Process | None
    leaders: list[Process] = field(default_factory=list)
    child: subprocess.Popen[bytes] | None = None
    sidecars: list[subprocess.Popen[bytes]] = field(default_factory=list)


class ProcessGroups:
    """See the module. ``state_dir`` tells this agent's engines from another's."""

    def __init__(self, node_id: str, state_dir: Path, output: OutputFiles) -> None:
        self._node_id = node_id
        self._state_dir = str(state_dir.absolute())
        self._output = output
        self._groups: dict[ShardKey, _Group] = {}

    # ------------------------------------------------------------ beginnings

    def launch(self, key: ShardKey, commands: tuple[Command, ...]) -> Process:
        """Start the commands; on failure what was started is killed again."""
        group = self._groups[key] = _Group(main=None)
        environment = inherited_environment(os.environ)
        try:
            descriptor = self._output.open(key)
        except OSError as error:
            del self._groups[key]
            raise LaunchError(f"the output file cannot be opened: {error.strerror}") from error
        try:
            for command in commands:
                mine = {**environment, **command.env, **markers(self._node_id, key, self._state_dir)}
                group.child = subprocess.Popen(
                    command.argv,
                    env=mine,
                    cwd=self._state_dir,
                    stdin=subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                if command is not commands[-1]:
                    group.sidecars.append(group.child)
                # One that ended and was reaped already has no start time left: 0 is nobody's.
                stat = proc.read_stat(group.child.pid)
                group.main = stat.process if stat is not None else Process(group.child.pid, 0)
                if stat is not None:
                    group.leaders.append(stat.process)
        except (OSError, ValueError) as error:
            self.signal(key, "KILL")
            del self._groups[key]
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise LaunchError(f"{command.argv[0]}: {reason}") from error
        finally:
            os.close(descriptor)
        if group.main is None:
            del self._groups[key]
            raise LaunchError("there is no command to run")
        return group.main

    def adopt(self, key: ShardKey, process: Process | None) -> None:
        """Not children of ours: watched through ``/proc``."""
        alive = process is not None and self.is_alive(process)
        self._groups[key] = _Group(main=process, leaders=[process] if process is not None and alive else [])

    # ------------------------------------------------------------ looking

    def is_alive(self, process: Process) -> bool:
        """Same pid, same start time, no zombie."""
        stat = proc.read_stat(process.pid)
        return stat is not None and stat.alive and stat.started == process.started

    def age(self, process: Process) -> float | None:
        """Seconds since it started."""
        return max(0.0, proc.uptime() - process.started / proc.TICKS)

    def status(self, key: ShardKey) -> MainStatus:
        """Reaps the main process if it is a child that ended."""
        group = self._groups[key]
        for sidecar in group.sidecars:
            sidecar.poll()
        if group.child is not None:
            exit_status = group.child.poll()
            return MainStatus(exit_status is None, exit_status)
        return MainStatus(group.main is not None and self.is_alive(group.main))

    def members(self, key: ShardKey) -> tuple[int, ...]:
        """See ``members_of``."""
        return self.members_of((key,))[key]

    def members_of(self, keys: Iterable[ShardKey]) -> dict[ShardKey, tuple[int, ...]]:
        """One look at the process table for all of them."""
        table = proc.read_all()
        marked = self._marked(table)
        return {key: tuple(stat.pid for stat in self._members(key, table, marked.get(key, []))) for key in keys}

    def scan(self) -> tuple[Found, ...]:
        """Everything with our markers, known or not."""
        table = proc.read_all()
        found = []
        for key, stats in self._marked(table).items():
            leaders = [stat for stat in stats if stat.session == stat.pid]
            main = min(leaders, key=lambda stat: (stat.started, stat.pid), default=None)
            pids = tuple(sorted(stat.pid for stat in self._members(key, table, stats)))
            age = self.age(main.process) if main is not None else None
            found.append(Found(key, pids, main.process if main is not None else None, age))
        return tuple(found)

    def use(self, pids: Iterable[int]) -> GroupUse:
        """CPU time and resident memory from ``/proc/PID/stat``."""
        stats = [stat for pid in pids if (stat := proc.read_stat(pid)) is not None]
        ticks = sum(stat.cpu_ticks for stat in stats)
        return GroupUse(ticks / proc.TICKS, sum(stat.resident_pages for stat in stats) * proc.PAGE)

    def _marked(self, table: dict[int, Stat]) -> dict[ShardKey, list[Stat]]:
        marked: dict[ShardKey, list[Stat]] = {}
        for stat in table.values():
            if not stat.alive or stat.pid == os.getpid():
                continue
            marks = proc.read_marks(stat.pid)
            if marks is None or marks[1] != self._state_dir:
                continue
            key = parse_mark(marks[0])
            if key is not None:
                marked.setdefault(key, []).append(stat)
        return marked

    def _members(self, key: ShardKey, table: dict[int, Stat], marked: list[Stat]) -> list[Stat]:
        group = self._groups.get(key)
        sessions = {leader.pid: leader.started for leader in group.leaders} if group is not None else {}
        members = {stat.pid: stat for stat in marked}
        for stat in table.values():
            if stat.session in sessions and stat.started >= sessions[stat.session]:
                leader = table.get(stat.session)
                # The number may have passed to a stranger's session once ours was empty.
                if leader is None or leader.started == sessions[stat.session]:
                    members[stat.pid] = stat
        children: dict[int, list[Stat]] = {}
        for stat in table.values():
            children.setdefault(stat.parent, []).append(stat)
        queue = list(members)
        while queue:
            for child in children.get(queue.pop(), ()):
                if child.pid not in members:
                    members[child.pid] = child
                    queue.append(child.pid)
        return [stat for stat in members.values() if stat.alive]

    # ------------------------------------------------------------ endings

    def signal(self, key: ShardKey, signal: SignalName) -> tuple[int, ...]:
        """Signal each member by pidfd. A fork under way may be missed: whoever kills
        asks again until no member is left."""
        table = proc.read_all()
        members = self._members(key, table, self._marked(table).get(key, []))
        return tuple(stat.pid for stat in members if _send(stat.process, _SIGNALS[signal]))

    def release(self, key: ShardKey) -> None:
        """Forget the shard."""
        self._groups.pop(key, None)

    # ------------------------------------------------------------ output

    def tail(self, key: ShardKey) -> tuple[str, ...]:
        """See ``OutputFiles.tail``."""
        return self._output.tail(key)

    def trim(self, keys: Iterable[ShardKey]) -> None:
        """See ``OutputFiles.trim``."""
        self._output.trim(keys)


def _send(process: Process, number: signals.Signals) -> bool:
    """Signal this very process; ``False`` if it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        stat = proc.read_stat(process.pid)
        if stat is None or stat.started != process.started:
            return False
        signals.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
