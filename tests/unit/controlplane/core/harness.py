"""A recording harness: the real ``Loop``, a manual clock, and fake agents over the
real messages. Nodes heartbeat as the clock advances, unless told to be silent."""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from controlplane.catalog.load import parse_catalog
from controlplane.catalog.model import Catalog
from controlplane.events import (
    CatalogChanged,
    CloseSession,
    Commit,
    Committed,
    Decision,
    DropEngineKeys,
    Effect,
    EpochGranted,
    EpochWanted,
    Event,
    FrameReceived,
    Note,
    PublishRoutes,
    RouterReported,
    Send,
    SessionClosed,
    SessionOpened,
)
from controlplane.fleet.keys import EngineKeys
from controlplane.loop import Intent, Loop, LoopSettings
from controlplane.planning.view import FleetView, ReplicaView
from llmgw.runtime.clock import ManualClock
from llmgw.runtime.settings import parse_yaml
from llmgw.wire.messages import (
    CommandResult,
    Cpu,
    Device,
    Down,
    EngineInstall,
    Forget,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Inventory,
    Measurements,
    PortRange,
    Refuse,
    Register,
    ShardChanged,
    ShardExit,
    ShardExited,
    ShardKey,
    ShardSpec,
    ShardStatus,
    Start,
    Stop,
    Up,
    Welcome,
)
from llmgw.wire.routing import EndpointLoad, Report, RoutedModel

GIB = 1024**3
SECRET = b"secret-of-the-store"
GENERATION = "1-0a0b0c0d"

ONE_MODEL = """
models:
  tiny:
    scaling: {min: 1, max: 1}
    profiles:
      - {engine: sim, source: "sim:", min_memory_gb: 4, cpu_cores: 1, startup_timeout: 60s}
"""


def catalog_of(text: str) -> Catalog:
    """A catalog from YAML text, by the production path."""
    return parse_catalog({"catalog.yaml": parse_yaml(text.encode(), "catalog.yaml")})


def inventory(**changes: Any) -> Inventory:
    """What a small node has."""
    base = Inventory(
        address="127.0.0.1",
        hostname="host",
        boot_id="boot",
        cpu=Cpu(count=8),
        memory_bytes=32 * GIB,
        ephemeral_ports=PortRange(first=32768, last=60999),
        engine_ports=PortRange(first=20000, last=20009),
        engines=(EngineInstall(name="sim", state="ready"), EngineInstall(name="llamacpp", state="ready")),
    )
    return msgspec.structs.replace(base, **changes)


def gpus(count: int, device_class: str = "h100") -> tuple[Device, ...]:
    """Whole GPUs of one class."""
    return tuple(Device(uuid=f"GPU-{i}", index=i, device_class=device_class) for i in range(count))


class FakeAgent:
    """An agent that obeys: de-duplicates commands, starts, reports, stops, and keeps
    exits until they are forgotten. Its state survives a lost session."""

    def __init__(self, node_id: str, now: Callable[[], float], **changes: Any) -> None:
        self.node_id = node_id
        self.now = now
        self.inventory = inventory(**changes)
        self.measurements = Measurements()
        self.session: str | None = None
        self.silent = False
        self.load_time = 2.0
        self.stop_time = 0.0
        self.fail: Callable[[ShardSpec], ShardExit | None] = lambda spec: None
        self.refuse: Callable[[ShardSpec], str | None] = lambda spec: None
        self.shards: dict[ShardKey, tuple[ShardStatus, float]] = {}
        self.stopping: dict[ShardKey, float] = {}
        self.exits: dict[ShardKey, ShardExit] = {}
        self.commands: list[Down] = []
        self.seen: set[str] = set()
        self.last_command: str | None = None
        self.highest_epoch = 0
        self.leader = ""
        self.launched: list[ShardKey] = []
        self.heartbeat_due = 0.0
        self.sequence = 0
        self.deaf = False

    def hello(self) -> Hello:
        return Hello(
            node_id=self.node_id,
            version="1",
            oldest_protocol=1,
            newest_protocol=1,
            highest_epoch=self.highest_epoch,
            leader=self.leader,
            last_command=self.last_command,
        )

    def register(self) -> Register:
        return Register(
            inventory=self.inventory,
            shards=tuple(status for status, _ in self.shards.values()),
            exits=tuple(self.exits.values()),
            last_command=self.last_command,
        )

    def receive(self, message: Down) -> list[Up]:
        """Take one frame; what it answers at once."""
        if self.deaf:
            return []
        self.commands.append(message)
        if isinstance(message, Welcome):
            self.highest_epoch = max(self.highest_epoch, message.epoch)
            self.leader = message.leader
            self.heartbeat_due = self.now() + message.heartbeat_seconds
            return [self.register()]
        if isinstance(message, Forget):
            for key in message.shards:
                self.exits.pop(ShardKey(*key), None)
        if isinstance(message, Start):
            return self._start(message)
        if isinstance(message, Stop):
            return self._stop(message)
        return []

    def _start(self, message: Start) -> list[Up]:
        if message.command_id in self.seen:
            return [CommandResult(command_id=message.command_id, outcome="duplicate")]
        self.seen.add(message.command_id)
        self.last_command = message.command_id
        code = self.refuse(message.spec)
        if code is not None:
            return [CommandResult(command_id=message.command_id, outcome="refused", code=code, message=f"no: {code}")]
        key = message.spec.key
        assert key not in self.shards, "one shard was started twice"
        self.launched.append(key)
        status = ShardStatus(spec=message.spec.without_secret(), state="starting", pid=1000 + len(self.launched))
        self.shards[key] = (status, self.now() + self.load_time)
        return [CommandResult(command_id=message.command_id, outcome="accepted"), ShardChanged(status=status)]

    def _stop(self, message: Stop) -> list[Up]:
        self.last_command = message.command_id
        done: list[Up] = [CommandResult(command_id=message.command_id, outcome="accepted")]
        if message.key not in self.shards:
            gone = ShardExit(replica_id=message.replica_id, rank=message.rank, code="not_found", requested=True)
            return [*done, ShardExited(exit=gone)]
        self.stopping.setdefault(message.key, self.now() + self.stop_time)
        return [*done, *self.tick()]

    def run(self, spec: ShardSpec, state: str = "ready") -> None:
        """Have a shard running that no control plane of this test started."""
        status = ShardStatus(spec=spec, state=state, pid=77, age=500.0, state_age=400.0, adopted=True)  # type: ignore[arg-type]
        self.shards[spec.key] = (status, self.now() + self.load_time)

    def kill(self, key: ShardKey, code: str = "exited", exit_status: int = -9) -> list[Up]:
        """The engine dies."""
        self.shards.pop(key)
        self.stopping.pop(key, None)
        exit_ = ShardExit(replica_id=key.replica_id, code=code, message="engine ended", exit_status=exit_status)
        self.exits[key] = exit_
        return [ShardExited(exit=exit_)]

    def tick(self) -> list[Up]:
        """What time does to the node."""
        now = self.now()
        out: list[Up] = []
        for key, due in list(self.stopping.items()):
            if now >= due:
                del self.stopping[key]
                del self.shards[key]
                self.exits[key] = ShardExit(replica_id=key.replica_id, code="stopped", requested=True)
                out.append(ShardExited(exit=self.exits[key]))
        for key, (status, due) in list(self.shards.items()):
            if status.state != "starting" or now < due:
                continue
            exit_ = self.fail(status.spec)
            if exit_ is not None:
                del self.shards[key]
                self.exits[key] = exit_
                out.append(ShardExited(exit=exit_))
            else:
                ready = msgspec.structs.replace(status, state="ready")
                self.shards[key] = (ready, due)
                out.append(ShardChanged(status=ready))
        if now >= self.heartbeat_due:
            self.heartbeat_due = now + 10.0
            self.sequence += 1
            out.append(Heartbeat(sequence=self.sequence, measurements=self.measurements))
        return out


class Harness:
    """The loop and its surroundings. ``decisions`` are committed ones, ``notes`` the
    rest, ``table`` the newest routes."""

    def __init__(
        self,
        catalog: str = ONE_MODEL,
        nodes: Iterable[str] = ("n1",),
        *,
        clock: ManualClock | None = None,
        intent: Intent | None = None,
        seed: int = 1,
        epoch: int = 1,
        boot: str = "boot-a",
        secret: bytes | None = SECRET,
        connect: bool = True,
        **settings: float,
    ) -> None:
        self.clock = clock or ManualClock()
        self.enrolled = frozenset(nodes)
        self.agents: dict[str, FakeAgent] = {}
        self.sessions: dict[str, str] = {}
        self.opened = 0
        self.decisions: list[Decision] = []
        self.notes: list[Decision] = []
        self.tables: list[PublishRoutes] = []
        self.closed: list[CloseSession] = []
        self.epochs: list[int] = []
        self.until = math.inf
        self.proves = True
        self.dropped: list[tuple[str, ...]] = []
        self.sent: list[tuple[str, Down]] = []
        self.befores: dict[type, float] = {}
        self.doubtful: list[tuple[str, Down]] = []
        self.held: list[int] | None = None
        self.passes = 0
        self.between: Callable[[], None] | None = None
        self.report_routers: Callable[[], list[tuple[str, Report]]] = list
        self.boot(catalog, intent or Intent(), seed=seed, epoch=epoch, boot=boot, secret=secret, settings=settings)
        for node_id in sorted(self.enrolled):
            self.agents[node_id] = FakeAgent(node_id, self.clock.monotonic)
            if connect:
                self.connect(node_id)

    def boot(
        self,
        catalog: str,
        intent: Intent,
        *,
        seed: int,
        epoch: int,
        boot: str,
        secret: bytes | None,
        settings: dict[str, float],
        keys: EngineKeys | None = None,
    ) -> None:
        """Start a control plane; an earlier one is gone with all it knew."""
        self.loop = Loop(
            LoopSettings(**settings),  # type: ignore[arg-type]
            catalog_of(catalog),
            enrolled=self.enrolled,
            intent=intent,
            rng=random.Random(seed),
            epoch=epoch,
            leader=f"leader of {boot}",
            boot=boot,
            version="1",
            engine_keys=keys or EngineKeys({} if secret is None else {GENERATION: secret}),
            now=self.clock.monotonic(),
            until=self.until,
        )

    def restart(
        self,
        catalog: str = ONE_MODEL,
        boot: str = "boot-b",
        intent: Intent | None = None,
        keys: EngineKeys | None = None,
        **settings: float,
    ) -> None:
        """The control plane is killed and comes back; no agent is connected."""
        self.sessions.clear()
        for agent in self.agents.values():
            agent.session = None
        self.boot(catalog, intent or Intent(), seed=2, epoch=2, boot=boot, secret=SECRET, settings=settings, keys=keys)

    @property
    def view(self) -> FleetView:
        return self.loop.view

    @property
    def table(self) -> dict[str, RoutedModel]:
        return {model.name: model for model in self.tables[-1].models}

    def replicas(self, model: str = "tiny", *states: str) -> list[ReplicaView]:
        return [r for r in self.view.replicas.values() if r.model == model and (not states or r.state in states)]

    def only(self, model: str = "tiny", *states: str) -> ReplicaView:
        (replica,) = self.replicas(model, *states)
        return replica

    @property
    def failed(self) -> dict[str, set[str]]:
        """Replicas that were told to have failed, by node."""
        found: dict[str, set[str]] = {node_id: set() for node_id in self.agents}
        for note in self.kinds("failed"):
            if note.node is not None and note.replica is not None:
                found[note.node].add(note.replica)
        return found

    def kinds(self, kind: str) -> list[Decision]:
        return [d for d in [*self.decisions, *self.notes] if d.kind == kind]

    def starts(self, node_id: str = "n1") -> list[Start]:
        return [m for m in self.agents[node_id].commands if isinstance(m, Start)]

    def stops(self, node_id: str = "n1") -> list[Stop]:
        return [m for m in self.agents[node_id].commands if isinstance(m, Stop)]

    # ---------------------------------------------------------------- driving

    def feed(self, event: Event) -> None:
        """Handle one event and all that follows from it at once."""
        queue: deque[Effect] = deque(self.loop.handle(event, self.clock.monotonic()))
        self._carry(queue)

    def _carry(self, queue: deque[Effect]) -> None:
        now = self.clock.monotonic
        while queue:
            effect = queue.popleft()
            if isinstance(effect, Send):
                node_id = self.sessions.get(effect.session)
                if node_id is None:
                    continue
                if isinstance(effect.message, HeartbeatAck):
                    continue
                if now() >= effect.before:
                    continue
                self.sent.append((node_id, effect.message))
                self.befores[type(effect.message)] = effect.before
                if self.view.lease.doubtful:
                    self.doubtful.append((node_id, effect.message))
                for answer in self.agents[node_id].receive(effect.message):
                    queue.extend(self.loop.handle(FrameReceived(effect.session, answer), now()))
            elif isinstance(effect, CloseSession):
                self.closed.append(effect)
                node_id = self.sessions.pop(effect.session, None)
                if node_id is not None and self.agents[node_id].session == effect.session:
                    self.agents[node_id].session = None
            elif isinstance(effect, Commit):
                self.decisions += effect.decisions
                if self.held is None:
                    queue.extend(self.loop.handle(Committed(effect.batch), now()))
                else:
                    self.held.append(effect.batch)
            elif isinstance(effect, Note):
                self.notes.append(effect.decision)
            elif isinstance(effect, PublishRoutes):
                self.tables.append(effect)
            elif isinstance(effect, DropEngineKeys):
                self.dropped.append(effect.generations)
            else:
                assert isinstance(effect, EpochWanted)
                self.epochs.append(effect.seen)
                if self.proves:
                    queue.extend(self.loop.handle(EpochGranted(effect.seen + 1), now()))

    def release(self) -> None:
        """The store answers again: what it held is committed."""
        held, self.held = self.held or [], None
        for batch in held:
            self.feed(Committed(batch))

    def connect(self, node_id: str, session: str | None = None) -> str:
        """The agent opens a session, registers, and lives."""
        self.opened += 1
        session = session or f"s{self.opened}"
        agent = self.agents[node_id]
        agent.session = session
        self.sessions[session] = node_id
        self.feed(SessionOpened(session, node_id, agent.hello()))
        if self.proves and self.unproven(session) is not None:
            return self.connect(node_id)  # as an agent does that is told to come back
        return session

    def unproven(self, session: str) -> Refuse | None:
        """The refusal of a session whose agent has obeyed a higher epoch, if it was."""
        for closed in reversed(self.closed):
            if closed.session == session and closed.refuse is not None and closed.refuse.code == "epoch_unproven":
                return closed.refuse
        return None

    def disconnect(self, node_id: str, reason: str = "connection reset") -> None:
        """The connection breaks; both sides notice."""
        session = self.agents[node_id].session
        assert session is not None
        self.agents[node_id].session = None
        self.sessions.pop(session, None)
        self.feed(SessionClosed(session, reason))

    def up(self, node_id: str, messages: Iterable[Up]) -> None:
        """The agent says something."""
        session = self.agents[node_id].session
        for message in messages:
            if session is not None:
                self.feed(FrameReceived(session, message))

    def run_pass(self) -> None:
        self.passes += 1
        work = self.loop.run_pass(self.clock.monotonic())
        while True:
            try:
                next(work)
            except StopIteration as done:
                effects: list[Effect] = done.value
                break
            if self.between is not None:
                self.between()
        self._carry(deque(effects))

    def settle(self, limit: int = 20) -> None:
        """Passes until none is wanted."""
        for _ in range(limit):
            if not self.loop.dirty:
                return
            self.run_pass()
        raise AssertionError("the loop does not come to rest")

    def advance(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass: agents live and heartbeat, passes run when they are due."""
        end = self.clock.monotonic() + seconds
        self.settle()
        while self.clock.monotonic() < end - 1e-9:
            self.clock.advance(min(step, end - self.clock.monotonic()))
            for node_id, agent in sorted(self.agents.items()):
                messages = agent.tick()
                if not agent.silent:
                    self.up(node_id, messages)
            for router_id, report in self.report_routers():
                self.feed(RouterReported(router_id, report))
            if self.loop.dirty or self.clock.monotonic() >= self.loop.next_wake:
                self.run_pass()
                self.settle()

    def reload(self, catalog: str) -> None:
        self.feed(CatalogChanged(catalog_of(catalog)))


def report(sequence: int, inflight: dict[str, int], boot: str = "r") -> Report:
    """A report of a router that has a table of the first control plane."""
    loads = tuple(EndpointLoad(id=name, inflight=count) for name, count in inflight.items())
    return Report(boot=boot, sequence=sequence, version="1", generation="boot-a-1", endpoints=loads)


def spec(replica_id: str = "tiny-0000aaaa", **changes: Any) -> ShardSpec:
    """A shard spec as a control plane of another day sent it."""
    base = ShardSpec(
        replica_id=replica_id,
        model="tiny",
        profile="p0",
        fingerprint="0123456789abcdef",
        engine="sim",
        source="sim:",
        host="127.0.0.1",
        port=20005,
        served_name="tiny",
        keyed=True,
        key_generation=GENERATION,
    )
    return msgspec.structs.replace(base, **changes)


__all__ = ["GIB", "ONE_MODEL", "FakeAgent", "Harness", "Refuse", "catalog_of", "gpus", "inventory", "report", "spec"]
