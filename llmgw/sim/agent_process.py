"""One agent process: the real ``agent.core.Agent`` with a simulated driver.

It does what ``agent.driver`` and ``agent.watch`` do: events in, one at a time; effects
out, in order; saves one after another; everything slow answers later and in any
order. Death may come between any two effects.
"""

import random
from collections import deque
from typing import Protocol

import msgspec

from agent import events, session
from agent.core import Agent, Effect, Event
from agent.records import AgentState, Process, ShardRecord, file_stem
from llmgw.runtime.settings import Address
from llmgw.sim.agent_link import AgentLink
from llmgw.sim.host import Host
from llmgw.sim.network import Network
from llmgw.sim.node_watch import NodeWatch
from llmgw.sim.say import describe
from llmgw.sim.supervisor import SimSupervisor
from llmgw.sim.world import Process as SimProcess
from llmgw.sim.world import Timer
from llmgw.wire.messages import (
    CommandResult,
    HeartbeatAck,
    Measurements,
    PortRange,
    ShardKey,
    ShardSpec,
    Start,
    Stop,
    Welcome,
)

STATE_FILE = "agent"
POLL = 0.25
"""Seconds between two looks at a shard's main process."""

LINGER = 5.0
"""Seconds after which processes that outlive SIGKILL are told."""

MEASURE = 10.0
DEVICES = 30.0
STOP_WAIT = 3.0
"""Seconds that a stopping agent gives its last writes and launches."""

_state_decoder = msgspec.json.Decoder(AgentState)
_record_decoder = msgspec.json.Decoder(ShardRecord)


class Obedience(Protocol):
    """Who is told whom nodes obey."""

    def welcomed(self, node: str, epoch: int, leader: str) -> None:
        """A node took a leader's welcome."""

    def kept(self, node: str, epoch: int, leader: str) -> None:
        """Whose welcome it took last is on disk."""

    def accepted(self, node: str, epoch: int, leader: str) -> None:
        """A node took a leader's command."""


class AgentProcess(SimProcess):
    """See the module. ``watch`` is told whom the node obeys."""

    def __init__(
        self,
        host: Host,
        network: Network,
        *,
        addresses: tuple[Address, ...],
        ports: PortRange,
        generation: int,
    ) -> None:
        super().__init__(host.world, f"agent {host.name}")
        self.host = host
        self.rng: random.Random = host.world.rng(f"agent {host.name} {generation}")
        self.agent = Agent(host.name, "1.0", addresses, host.world.rng(f"agent core {host.name} {generation}"))
        self.supervisor = SimSupervisor(host)
        self.node = NodeWatch(host, ports)
        self.link = AgentLink(self, network)
        self.watch: Obedience | None = None
        self._orders: dict[str, tuple[int, str]] = {}
        """Epoch and leader of the commands that came in, by id."""
        self._saves: deque[events.Save] = deque()
        self._saving = False
        self._launching = 0
        self._alarm: Timer | None = None
        self._alarm_at: float | None = None

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """The process starts: it reads its disk and looks around."""
        self.later(self.rng.uniform(0.05, 1.0), self._boot)

    def end(self, *, graceful: bool = False) -> None:
        """The process is no more. Its engines stay; the kernel closes its connection."""
        if not self.alive:
            return
        if not graceful and self._saving and self.rng.random() < 0.5:
            self._write(self._saves[0])  # it was under way: it may have become durable
        self.kill()
        self.link.died(self.rng)
        self.on_death()

    def power_off(self) -> None:
        """The host went down: nobody is told."""
        self.kill()
        self.link.vanish()

    def died(self) -> None:
        """Killed between two effects."""
        self.log("killed between two effects")
        self.end()

    def shut_down(self) -> None:
        """SIGTERM: end the session, leave the engines, write what waits, end."""
        self.feed(session.ShutDown())
        self.later(0.05, self._wait_for_writes, self.host.clock.monotonic() + STOP_WAIT)

    def _wait_for_writes(self, deadline: float) -> None:
        if (self._saves or self._launching) and self.host.clock.monotonic() < deadline:
            self.later(0.05, self._wait_for_writes, deadline)
        else:
            self.end(graceful=True)

    def resume(self) -> None:
        """After a pause timers and what arrived meanwhile are seen in any order."""
        if self.alive and self._alarm_at is not None and self.rng.random() < 0.5:
            self.world.after(0.0, self._do, self.feed, (events.Woke(),))
        super().resume()

    def _boot(self) -> None:
        files = self.host.disk.files
        state = _state_decoder.decode(files[STATE_FILE]) if STATE_FILE in files else AgentState()
        found = self.supervisor.scan()
        stored = [self._stored(record) for record in self._records()]
        self.log(f"boots with {len(stored)} records and {len(found)} shards found")
        self.feed(events.Booted(self.host.boot_id, state, tuple(stored), found))
        self.read_inventory()
        self.later(self.rng.uniform(0.1, 2.0), self._engines_seen)
        self.later(self.rng.uniform(0.0, MEASURE), self._measure)
        self.later(DEVICES, self._watch_devices)

    def _records(self) -> list[ShardRecord]:
        files = self.host.disk.files
        return [_record_decoder.decode(data) for name, data in sorted(files.items()) if name != STATE_FILE]

    def _stored(self, record: ShardRecord) -> events.Stored:
        process = record.process
        alive = record.boot_id == self.host.boot_id and process is not None and self.supervisor.is_alive(process)
        age = self.supervisor.age(process) if alive and process is not None else None
        tail = () if alive or record.exit is not None else self.supervisor.tail(record.spec.key)
        return events.Stored(record, alive, age, tail)

    def records(self) -> set[ShardKey]:
        """The shards on disk that are not over."""
        return {record.spec.key for record in self._records() if record.exit is None}

    # ------------------------------------------------------------ what is read of the node

    def read_inventory(self) -> None:
        """Read what the node has, and tell the agent."""
        self.feed(events.InventoryRead(self.node.inventory()))

    def _engines_seen(self) -> None:
        self.node.engine_state = "ready"
        self.read_inventory()

    def _watch_devices(self) -> None:
        self.later(DEVICES, self._watch_devices)
        self.read_inventory()

    def _measure(self) -> None:
        self.later(MEASURE, self._measure)
        self.feed(events.Measured(Measurements(cpu_percent=float(self.rng.randint(0, 100)))))

    # ------------------------------------------------------------ events and effects

    def feed(self, event: Event) -> None:
        """What the driver's loop does with one event."""
        if not self.alive:
            return
        if not _common(event):
            self.log(f"<- {describe(event)}")
        effects = self.agent.handle(event, self.host.clock.monotonic())
        self._observe(event, effects)
        for effect in effects:
            self.burn()
            self._carry_out(effect)
        self._set_alarm()

    def _observe(self, event: Event, effects: list[Effect]) -> None:
        """Tell whose welcomes and commands are accepted."""
        welcome, occasions = self.agent.session.welcome, self.world.occasions
        message = event.message if isinstance(event, session.Received) else None
        occasions["node-refuses"] += isinstance(message, Welcome) and message is not welcome
        if self.watch is None or welcome is None:
            return
        if isinstance(message, Start | Stop):
            self._orders[message.command_id] = (message.epoch, welcome.leader)
            occasions["command-before-disk"] += not self.agent.machine.allegiance.durable
        elif message is welcome:
            self.watch.welcomed(self.host.name, welcome.epoch, welcome.leader)
        for effect in effects:
            if isinstance(effect, session.Send) and isinstance(effect.message, CommandResult):
                result = effect.message
                epoch, leader = self._orders.pop(result.command_id, (None, ""))
                if result.outcome == "accepted" and epoch is not None:
                    self.watch.accepted(self.host.name, epoch, leader)

    def _set_alarm(self) -> None:
        wake = self.agent.next_wake
        if wake == self._alarm_at and self._alarm is not None and self._alarm.action is not None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_at = wake
        if wake is not None:
            self._alarm = self.later(self.host.clock.until(wake), self._woke)

    def _woke(self) -> None:
        self._alarm_at = None
        self.feed(events.Woke())

    def _carry_out(self, effect: Effect) -> None:
        if not isinstance(effect, events.Notice | session.Send):
            self.log(f"-> {describe(effect)}")
        match effect:
            case events.Save():
                self._saves.append(effect)
                self._save_next()
            case events.Validate(spec):
                self.later(self.rng.uniform(0.001, 0.3), self._validate, spec)
            case events.Launch(spec):
                self._launching += 1
                self.later(self.rng.uniform(0.001, 0.05), self._launch, spec)
            case events.Watch(spec, process):
                self.supervisor.adopt(spec.key, process)
                self._watch(spec.key)
            case events.Probe(spec):
                self.later(self.rng.uniform(0.001, 0.05), self._probe, spec)
            case events.Signal(key, signal):
                self.later(self.rng.uniform(0.0001, 0.01), self._signal, key, signal)
            case events.KillUnidentified(key):
                self._kill_unidentified(key, 50)
            case session.Connect(attempt, address):
                self.link.connect(attempt, str(address))
            case session.Send(attempt, message):
                self.link.send(attempt, message)
            case session.Disconnect(attempt, reason):
                self.link.disconnect(attempt, reason)
            case events.Notice(level, message, fields):
                if level != "debug":
                    self.log(f"{level}: {message} {dict(fields)}")

    # ------------------------------------------------------------ disk

    def _save_next(self) -> None:
        if self._saves and not self._saving:
            self._saving = True
            self.later(self.rng.uniform(0.0005, 0.02) + self.rng.uniform(0.0, self.host.disk.slow), self._saved)

    def _saved(self) -> None:
        save = self._saves.popleft()
        self._saving = False
        error = ""
        if self.host.disk.failing and not isinstance(save.item, events.RemoveRecord):
            error = "no space left on device"
        else:
            self._write(save)
        self._save_next()
        self.later(0.0002, self.feed, events.Saved(save.sequence, error))

    def _write(self, save: events.Save) -> None:
        files = self.host.disk.files
        match save.item:
            case AgentState():
                files[STATE_FILE] = msgspec.json.encode(save.item)
                if self.watch is not None:
                    self.watch.kept(self.host.name, save.item.highest_epoch, save.item.leader)
            case ShardRecord():
                files[f"shard-{file_stem(save.item.spec.key)}"] = msgspec.json.encode(save.item)
            case events.RemoveRecord(key):
                files.pop(f"shard-{file_stem(key)}", None)

    # ------------------------------------------------------------ engines

    def _validate(self, spec: ShardSpec) -> None:
        own = [key for key, shard in self.agent.machine.shards.items() if shard.holds_process]
        self.feed(events.Validated(spec.key, self.node.faults(spec, own)))

    def _launch(self, spec: ShardSpec) -> None:
        if self.rng.random() < self.host.temper.launch_fails:
            self._launching -= 1
            self.feed(events.LaunchFailed(spec.key, "launch_failed", "exec format error"))
            return
        process = self.supervisor.start(spec)
        self.log(f"forked {process} for {spec.key}")
        self.later(self.rng.uniform(0.0, 0.02), self._launched, spec.key, process)

    def _launched(self, key: ShardKey, process: Process) -> None:
        self._launching -= 1
        self._watch(key)
        self.feed(events.Launched(key, process))

    def _probe(self, spec: ShardSpec) -> None:
        self.later(self.rng.uniform(0.0, 0.05), self.feed, self.node.probe(spec))

    def _signal(self, key: ShardKey, signal: events.SignalName) -> None:
        if self.supervisor.signal(key, signal) and signal == "KILL":
            self.later(LINGER, self._linger, key)

    def _linger(self, key: ShardKey) -> None:
        if members := self.supervisor.members(key):
            self.feed(events.Lingering(key, members))

    def _kill_unidentified(self, key: ShardKey, tries: int) -> None:
        if self.supervisor.members(key) and tries:
            self.supervisor.kill_unidentified(key)
            self.later(0.2, self._kill_unidentified, key, tries - 1)

    # ------------------------------------------------------------ watching

    def _watch(self, key: ShardKey) -> None:
        """Look at the main process until it ended. The simulated host says when there
        is something to see; the look comes within ``POLL``."""
        self.host.tell_end(key, self._main_ended)
        self.later(self.rng.uniform(0.0, POLL), self._main_ended, key)

    def _main_ended(self, key: ShardKey) -> None:
        self.later(self.rng.uniform(0.0, POLL), self._look, key)

    def _look(self, key: ShardKey) -> None:
        if not self.supervisor.knows(key):
            return
        status = self.supervisor.status(key)
        if not status.alive and self.supervisor.first_exit(key):
            self.feed(events.Exited(key, status.exit_status))
            self._await_members(key, status.exit_status, 0.01)

    def _await_members(self, key: ShardKey, exit_status: int | None, pause: float) -> None:
        if self.supervisor.members(key):
            self.later(pause, self._await_members, key, exit_status, min(0.5, pause * 2))
            return
        self.supervisor.release(key)
        self.feed(events.Gone(key, exit_status, self.supervisor.tail(key)))


def _common(event: Event) -> bool:
    """Whether an event is too common to be traced."""
    if isinstance(event, session.Received):
        return isinstance(event.message, HeartbeatAck)
    return isinstance(event, events.Measured | events.Woke)
