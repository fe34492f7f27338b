"""The agent as a pure machine: commands and observations in, effects out.

It holds what the control plane wants of this node and what was observed of it.
Losing the session changes nothing here: engines live on (AGT-09). See
``agent.events`` for both alphabets and ``agent.shard`` for the life of one shard.
"""

from collections.abc import Iterable

import msgspec

from agent.allegiance import Allegiance
from agent.events import (
    Booted,
    Commanded,
    Effect,
    EpochSeen,
    Event,
    Exited,
    Found,
    Gone,
    InventoryRead,
    KillUnidentified,
    Launched,
    LaunchFailed,
    Lingering,
    Measured,
    Notice,
    Probed,
    RemoveRecord,
    Report,
    Save,
    Saved,
    ShardEvent,
    SpecFault,
    Stored,
    Validated,
    Woke,
)
from agent.records import MAX_COMMANDS, MAX_EXITS, AgentState, ShardRecord, valid_replica_id
from agent.shard import Shard
from llmgw.wire import versions
from llmgw.wire.messages import (
    CommandOutcome,
    CommandResult,
    Forget,
    Hello,
    Inventory,
    Measurements,
    Register,
    ShardExit,
    ShardExited,
    ShardKey,
    ShardSpec,
    Start,
    Stop,
)

MEASUREMENT_LIFE = 60.0
"""Seconds after which a measurement is left out rather than repeated (AGT-02)."""

MAX_SHARDS = 256
"""Shards one agent holds at a time."""

MAX_SPEC = 16 * 1024
"""Bytes of an encoded shard spec: all shards must fit into one registration."""

MAX_HELD = 256
"""Commands that wait for a new epoch to be on disk."""

SAVE_AGAIN = 5.0
"""Seconds after which a failed write of what must not be forgotten is tried again."""

CAPABILITIES: tuple[str, ...] = ()
"""What this build can do beyond the protocol's first version."""


class Machine:
    """See the module. Feed ``Booted`` first; ``next_wake`` says when to feed ``Woke``."""

    def __init__(self, node_id: str, version: str) -> None:
        self.node_id = node_id
        self.version = version
        self.boot_id = ""
        self.booted = False
        self.inventory: Inventory | None = None
        self.shards: dict[ShardKey, Shard] = {}
        self.exits: dict[ShardKey, ShardExit] = {}
        self.allegiance = Allegiance()
        self.last_command: str | None = None
        self._commands: dict[str, None] = {}
        self._held: list[Start | Stop] = []
        self._sequence = 0
        self._saving: dict[int, AgentState | RemoveRecord] = {}
        self._save_again: dict[ShardKey | None, float] = {}
        self._measurements: tuple[float, Measurements] | None = None

    # ------------------------------------------------------------ content of the session

    @property
    def ready_to_register(self) -> bool:
        """Whether the node knows itself well enough to open a session."""
        return self.booted and self.inventory is not None

    def hello(self, _now: float) -> Hello:
        """First frame of a session."""
        return Hello(
            node_id=self.node_id,
            version=self.version,
            oldest_protocol=versions.OLDEST_PROTOCOL,
            newest_protocol=versions.PROTOCOL,
            capabilities=CAPABILITIES,
            highest_epoch=self.allegiance.epoch,
            leader=self.allegiance.leader,
            last_command=self.last_command,
            boot_id=self.boot_id,
        )

    def registration(self, now: float) -> Register:
        """Everything about the node (AGT-01, REC-20)."""
        if self.inventory is None:
            raise RuntimeError("the node has no inventory yet")
        return Register(
            inventory=self.inventory,
            shards=tuple(shard.status(now) for shard in self.shards.values()),
            exits=tuple(self.exits.values()),
            last_command=self.last_command,
        )

    def measurements(self, now: float) -> Measurements:
        """The latest measurements, or none if they are too old to be repeated."""
        if self._measurements is None or now - self._measurements[0] > MEASUREMENT_LIFE:
            return Measurements()
        return self._measurements[1]

    # ------------------------------------------------------------ events

    @property
    def next_wake(self) -> float | None:
        """The moment to feed ``Woke``, if there is one."""
        shards = (time for shard in self.shards.values() if (time := shard.next_wake) is not None)
        return min((*shards, *self._save_again.values()), default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event; the effects are to be carried out in order."""
        match event:
            case Booted():
                return self._boot(event, now)
            case Commanded(message):
                return self._forget(message.shards) if isinstance(message, Forget) else self._command(message, now)
            case EpochSeen(epoch, leader):
                self._held.clear()  # their session is over: the registration tells that they were not applied
                return [self._save_state()] if self.allegiance.see(epoch, leader) else []
            case InventoryRead(inventory):
                return self._inventory(inventory, now)
            case Measured(measurements):
                self._measurements = (now, measurements)
                return []
            case Woke():
                woken = [effect for shard in list(self.shards.values()) for effect in shard.wake(now)]
                return woken + self._retry_saves(now)
            case Saved():
                return self._saved(event, now)
            case _:
                return self._about_shard(event, now)

    def _about_shard(self, event: ShardEvent, now: float) -> list[Effect]:
        shard = self.shards.get(event.key)
        if shard is None:
            return []
        match event:
            case Validated():
                effects = shard.validated(event)
            case Launched():
                effects = shard.launched(event, now)
            case LaunchFailed():
                effects = shard.launch_failed(event)
            case Probed():
                effects = shard.probed(event, now)
            case Exited():
                effects = shard.exited(event.exit_status, now)
            case Gone():
                effects = shard.gone(event)
            case Lingering():
                effects = shard.lingering(event, now)
        return effects + self._settle(shard)

    # ------------------------------------------------------------ start of the agent

    def _boot(self, event: Booted, now: float) -> list[Effect]:
        self.booted = True
        self.boot_id = event.boot_id
        self.allegiance = Allegiance(event.state.highest_epoch, event.state.leader)
        self.last_command = event.state.last_command
        self._commands = dict.fromkeys(event.state.commands)
        found = {each.key: each for each in event.found}
        effects: list[Effect] = []
        for stored in event.stored:
            record = stored.record
            key = record.spec.key
            if record.exit is not None:
                self.exits[key] = record.exit
                continue
            effects += self._take_over(stored, found.pop(key, None), now)
        for stray in found.values():
            fields = {"shard": str(stray.key), "pids": str(list(stray.pids))}
            effects.append(Notice("warning", "killing an engine without a record: it holds resources", fields))
            effects.append(KillUnidentified(stray.key, stray.pids))
        return effects + self._bound_exits()

    def _take_over(self, stored: Stored, found: Found | None, now: float) -> list[Effect]:
        record = stored.record
        if record.boot_id != self.boot_id:
            # Not one process survives a reboot, whatever runs under the old pid now.
            stored, found = Stored(record, alive=False, tail=stored.tail), None
        shard = Shard(record.spec, self.boot_id, now, self._save)
        self.shards[shard.key] = shard
        effects = shard.adopt(stored, found, now)
        what = "adopted a running engine" if shard.adopted else "an engine ended while the agent was away"
        fields = {"shard": str(shard.key), "model": record.spec.model, "pid": shard.process and shard.process.pid}
        return [*effects, Notice("info", what, fields), *self._settle(shard)]

    # ------------------------------------------------------------ commands

    def _command(self, command: Start | Stop, now: float) -> list[Effect]:
        if objection := self.allegiance.objection(command.epoch, self.allegiance.leader):
            return [self._result(command, "refused", "stale_epoch", objection)]
        news = self.allegiance.raised(command.epoch)
        if not self.allegiance.durable:
            return self._hold(command, news)
        if command.command_id in self._commands:
            return [self._result(command, "duplicate"), *self._repeat_exit(self._key(command))]
        if not valid_replica_id(command.spec.replica_id if isinstance(command, Start) else command.replica_id):
            message = "the replica id must be 1 to 128 letters, digits, dots, dashes or underscores"
            return [self._result(command, "refused", "invalid_spec", message)]
        if isinstance(command, Start):
            if (size := len(msgspec.msgpack.encode(command.spec))) > MAX_SPEC:
                message = f"the shard spec has {size} bytes; the limit is {MAX_SPEC}: shorten args and env"
                return [self._result(command, "refused", "invalid_spec", message)]
            return self._start(command, now)
        return self._stop(command, now)

    def _hold(self, command: Start | Stop, news: bool) -> list[Effect]:
        """A command that must wait: its epoch is not on disk yet (AGT-04)."""
        effects: list[Effect] = [self._save_state()] if news else []
        if len(self._held) >= MAX_HELD:
            message = f"epoch {command.epoch} cannot be written to the state directory, so it is not obeyed yet"
            return [*effects, self._result(command, "refused", "agent_error", message)]
        self._held.append(command)
        return effects

    def _start(self, command: Start, now: float) -> list[Effect]:
        spec = command.spec
        if spec.key in self.shards or spec.key in self.exits:
            return [*self._apply(command), self._result(command, "duplicate"), *self._repeat_exit(spec.key)]
        if len(self.shards) >= MAX_SHARDS:
            message = f"the node runs {len(self.shards)} shards already; the limit is {MAX_SHARDS}"
            return [self._result(command, "refused", "agent_error", message)]
        shard = Shard(spec, self.boot_id, now, self._save)
        faults = self._conflicts(spec)
        self.shards[spec.key] = shard
        effects: list[Effect] = [*shard.begin(), *self._apply(command), self._result(command, "accepted")]
        if faults:
            # What another shard of this node holds needs no look at the machine.
            effects += shard.refuse(faults)
            return effects + self._settle(shard)
        notice = Notice("info", "starting a shard", {"shard": str(spec.key), "model": spec.model, "port": spec.port})
        return [*effects, notice]

    def _stop(self, command: Stop, now: float) -> list[Effect]:
        effects: list[Effect] = [*self._apply(command), self._result(command, "accepted")]
        shard = self.shards.get(command.key)
        if shard is None:
            return effects + (self._repeat_exit(command.key) or [_not_found(command)])
        grace = min(max(command.grace_seconds, 0.0), 3600.0)
        fields = {"shard": str(command.key), "reason": command.reason, "grace": grace}
        effects.append(Notice("info", "stopping a shard", fields))
        return effects + shard.stop(command.reason, grace, now) + self._settle(shard)

    def _conflicts(self, spec: ShardSpec) -> tuple[SpecFault, ...]:
        """One live owner per device and port on this node."""
        faults = []
        for other in self.shards.values():
            if other.spec.port == spec.port:
                faults.append(SpecFault("port_in_use", f"port {spec.port} belongs to shard {other.key} of this node"))
            for device in sorted(set(other.spec.devices) & set(spec.devices)):
                faults.append(SpecFault("device_busy", f"device {device} belongs to shard {other.key} of this node"))
        return tuple(faults)

    def _apply(self, command: Start | Stop) -> list[Effect]:
        """Remember the command before it has consequences (AGT-04)."""
        self.last_command = command.command_id
        self._commands[command.command_id] = None
        while len(self._commands) > MAX_COMMANDS:
            del self._commands[next(iter(self._commands))]
        return [self._save_state()]

    def _forget(self, keys: Iterable[ShardKey]) -> list[Effect]:
        return [self._remove(key) for key in keys if self.exits.pop(key, None) is not None]

    def _repeat_exit(self, key: ShardKey) -> list[Effect]:
        known = self.exits.get(key)
        return [Report(ShardExited(exit=known))] if known is not None else []

    @staticmethod
    def _key(command: Start | Stop) -> ShardKey:
        return command.spec.key if isinstance(command, Start) else command.key

    @staticmethod
    def _result(command: Start | Stop, outcome: CommandOutcome, code: str = "", message: str = "") -> Report:
        return Report(CommandResult(command_id=command.command_id, outcome=outcome, code=code, message=message))

    # ------------------------------------------------------------ observations

    def _inventory(self, inventory: Inventory, now: float) -> list[Effect]:
        changed = inventory != self.inventory
        self.inventory = inventory
        if not changed or not self.booted:
            return []
        return [Report(self.registration(now))]

    def _saved(self, event: Saved, now: float) -> list[Effect]:
        effects: list[Effect] = []
        item = self._saving.pop(event.sequence, None)
        if event.error:
            if item is not None:
                key = item.key if isinstance(item, RemoveRecord) else None
                self._save_again.setdefault(key, now + SAVE_AGAIN)
            effects.append(Notice("error", "could not write to the state directory", {"error": event.error}))
        elif isinstance(item, AgentState):
            self.allegiance.kept(item.highest_epoch, item.leader)
            effects += self._release(now)
        for shard in list(self.shards.values()):
            effects += shard.saved(event) + self._settle(shard)
        return effects

    def _release(self, now: float) -> list[Effect]:
        """Take up the commands that waited, if what they waited for is on disk."""
        if not self.allegiance.durable:
            return []
        held, self._held = self._held, []
        return [effect for command in held for effect in self._command(command, now)]

    def _retry_saves(self, now: float) -> list[Effect]:
        """What must be durable and is not yet: epoch and command ids as they are now
        (``None``), and records that were acknowledged and must go."""
        effects: list[Effect] = []
        for key in [key for key, due in self._save_again.items() if due <= now]:
            del self._save_again[key]
            if key is None:
                effects.append(self._save_state())
            elif key not in self.shards and key not in self.exits:
                effects.append(self._remove(key))
        return effects

    def _settle(self, shard: Shard) -> list[Effect]:
        """A shard that is gone becomes an exit, told now and kept until forgotten."""
        if shard.exit is None or self.shards.get(shard.key) is not shard:
            return []
        del self.shards[shard.key]
        self.exits[shard.key] = shard.exit
        fields = {"shard": str(shard.key), "model": shard.spec.model, "code": shard.exit.code}
        notice = Notice("info" if shard.exit.requested else "warning", f"shard is gone: {shard.exit.message}", fields)
        return [Report(ShardExited(exit=shard.exit)), notice, *self._bound_exits()]

    def _bound_exits(self) -> list[Effect]:
        surplus = list(self.exits)[: max(0, len(self.exits) - MAX_EXITS)]
        return self._forget(surplus)

    # ------------------------------------------------------------ disk

    def _save(self, item: AgentState | ShardRecord | RemoveRecord) -> Save:
        self._sequence += 1
        if not isinstance(item, ShardRecord):
            self._saving[self._sequence] = item
        return Save(self._sequence, item)

    def _save_state(self) -> Save:
        epoch, leader, commands = self.allegiance.epoch, self.allegiance.leader, tuple(self._commands)
        return self._save(
            AgentState(highest_epoch=epoch, leader=leader, last_command=self.last_command, commands=commands)
        )

    def _remove(self, key: ShardKey) -> Save:
        return self._save(RemoveRecord(key))


def _not_found(command: Stop) -> Report:
    return Report(
        ShardExited(
            exit=ShardExit(
                replica_id=command.replica_id,
                rank=command.rank,
                incarnation=command.incarnation,
                code="not_found",
                message="this node runs no such shard",
                requested=True,
            )
        )
    )
