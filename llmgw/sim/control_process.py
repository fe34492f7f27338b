"""One control plane process: the real loop, inbox, driver steps and publisher.

What outlives it is in ``Durable``: the store (epoch, people's intent, engine secret),
the journal of committed decisions, and the files of people (catalog, tokens, keys).
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

from controlplane import driver, events
from controlplane.catalog.model import Catalog
from controlplane.inbox import Inbox
from controlplane.listeners.routers import RouterApplication
from controlplane.listeners.tokens import FleetTokens
from controlplane.loop import Intent, Loop, LoopSettings
from controlplane.publish.providers import AGAIN, KeyFile, ProviderKeys
from controlplane.publish.routes import key_files
from controlplane.publish.table import Publisher
from llmgw.sim.agent_listener import SimAgentListener
from llmgw.sim.network import End, Network
from llmgw.sim.say import describe
from llmgw.sim.world import WALL_OFFSET, HostClock, Process, Timer, Violation, World
from llmgw.wire.messages import HeartbeatAck
from llmgw.wire.routing import REPORT_PATH, TABLE_PATH

HOST = "cp"
AGENTS = "127.0.0.1:7001"

Reply = Callable[[int, bytes], None]
"""Takes the status and body of an answer to a router."""


def _nothing(_: events.Decision) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A decision on disk, and since when."""

    at: float
    epoch: int
    decision: events.Decision


@dataclass
class Durable:
    """What a control plane finds again after a crash."""

    catalog: Catalog
    tokens: FleetTokens
    epoch: int = 0
    cordons: dict[str, events.Cordon] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    holds: dict[str, events.Cordon] = field(default_factory=dict)
    serving: events.ServingSet = field(default_factory=lambda: events.ServingSet(stopped=False))
    key_files: dict[str, KeyFile] = field(default_factory=dict)
    """Files with keys of external models; one that is not here does not exist."""
    secret: bytes = b"simulated-engine-secret"
    journal: list[JournalEntry] = field(default_factory=list)
    decided: dict[str, list[JournalEntry]] = field(default_factory=dict)
    """The journal by replica."""
    starts: int = 0
    journal_delay: float = 0.0
    """Seconds a commit may take on top of the usual."""
    on_decision: Callable[[events.Decision], None] = _nothing
    """Told of each decision when it is made, and of each note."""

    def intent(self) -> Intent:
        """What people decided, as the store has it."""
        labels = {node: dict(given) for node, given in self.labels.items()}
        return Intent(dict(self.cordons), labels, dict(self.holds), self.serving)

    def read_keys(self, files: Iterable[str]) -> dict[str, KeyFile]:
        """What key files hold now."""
        missing = KeyFile(fault="its key file cannot be read: No such file or directory")
        return {file: self.key_files.get(file, missing) for file in files}

    def append(self, entry: JournalEntry) -> None:
        """A decision is durable."""
        self.journal.append(entry)
        if entry.decision.replica is not None:
            self.decided.setdefault(entry.decision.replica, []).append(entry)


class _Steps(driver.Driver):
    """The real driver, advanced by the simulation instead of a greenlet. Whatever
    goes wrong in the loop is a fault of the product: it is not swallowed."""

    def step(self) -> float:
        """What one turn of the driver's loop does. Seconds until the next one."""
        handled = self._take_events()
        if self._pass is None and self._due():
            self._pass_began = self._clock.monotonic()
            self._pass = self._loop.run_pass(self._pass_began)
        if self._pass is not None:
            self._slice(self._pass)
            return driver.SLICE
        if handled == driver.BATCH:
            return driver.SLICE
        wake = max(self._loop.next_wake, self._not_before)
        return max(driver.SLICE, wake - self._clock.monotonic())


@dataclass
class _Wall:
    """The clock of the control plane's host, as ``runtime.clock.Clock``."""

    world: World
    clock: HostClock

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.world.now + WALL_OFFSET, UTC)


class ControlProcess(Process):
    """See the module. ``fuse`` counts effects until death."""

    def __init__(
        self, world: World, network: Network, clock: HostClock, durable: Durable, settings: LoopSettings
    ) -> None:
        durable.starts += 1
        super().__init__(world, f"cp{durable.starts}")
        self.durable = durable
        self.settings = settings
        self.rng: random.Random = world.rng(f"control process {durable.starts}")
        self.clock = clock
        self.loop: Loop | None = None
        self.publisher: Publisher | None = None
        self._providers: ProviderKeys | None = None
        self._network = network
        self._inbox = Inbox()
        self._listener: SimAgentListener | None = None
        self._driver: _Steps | None = None
        self._alarm: Timer | None = None
        self._commits: deque[events.Commit] = deque()
        self._routers: RouterApplication | None = None
        self._waiting_routers: list[tuple[str, str, str, Reply]] = []
        self._sleeping = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """The process starts; it listens once it has read its store."""
        self.later(self.rng.uniform(0.2, 2.0), self._begin)

    def _begin(self) -> None:
        durable, boot = self.durable, f"boot{self.durable.starts}"
        durable.epoch += 1
        wall = _Wall(self.world, self.clock)
        self.publisher = Publisher(boot)
        self._providers = ProviderKeys(self.publisher, self._inbox.force, durable.read_keys)
        self._providers.need(key_files(durable.catalog).values())
        self._read_again()
        self._routers = RouterApplication(
            self.publisher, self._inbox, lambda: durable.tokens, wall, lambda _router, _batch: None
        )
        self.loop = Loop(
            self.settings,
            durable.catalog,
            enrolled=frozenset(durable.tokens.nodes),
            intent=durable.intent(),
            rng=self.world.rng(f"loop {durable.starts}"),
            epoch=durable.epoch,
            boot=boot,
            version="1.0",
            engine_secret=durable.secret,
            now=self.clock.monotonic(),
        )
        carriers: dict[type[Any], Callable[[Any], None]] = {
            events.Send: self._send,
            events.CloseSession: self._close,
            events.Commit: self._commit,
            events.Note: self._note,
            events.PublishRoutes: self._publish,
            events.EpochRaised: self._raise_epoch,
        }
        self._driver = _Steps(self.loop, self._inbox, wall, carriers)
        self._listener = SimAgentListener(
            self,
            inbox=self._inbox,
            kick=self.kick,
            tokens=lambda: durable.tokens,
            silence=self.settings.silence,
            boot=boot,
        )
        self._network.listen(AGENTS, HOST, self._accept)
        self.log(f"up with epoch {durable.epoch}")
        self.kick()

    def end(self) -> None:
        """The process is no more: everything that is not durable is lost."""
        if not self.alive:
            return
        self.kill()
        self._network.unlisten(AGENTS)
        if self._listener is not None:
            self._listener.cut()
        self.on_death()

    def died(self) -> None:
        """Killed between two effects."""
        self.log("killed between two effects")
        self.end()

    def shut_down(self) -> None:
        """SIGTERM: say goodbye, then end."""
        self._network.unlisten(AGENTS)
        if self._listener is not None:
            self._listener.goodbye()
        self.later(0.5, self.end)

    # ------------------------------------------------------------ events

    @property
    def up(self) -> bool:
        """Whether the loop runs."""
        return self.alive and self.loop is not None

    def put(self, event: events.Event) -> None:
        """Something for the writer, from people or files."""
        if self.up:
            self._inbox.force(event)
            self.kick()

    def tokens_changed(self) -> None:
        """SIGHUP after a change of the fleet tokens."""
        if self.up and self._listener is not None:
            self.put(events.EnrolmentChanged(frozenset(self.durable.tokens.nodes)))
            self._listener.drop_unenrolled()

    def kick(self) -> None:
        """Something is in the inbox: wake the writer, unless it sleeps between two slices."""
        if self._sleeping or self._alarm is None:
            self._arm(0.0)

    def report(self, router: str, token: str, body: bytes) -> None:
        """A router's report arrived."""
        if self.up:
            self._call_router("POST", REPORT_PATH, router, token, body=body)
            self.kick()

    def wait_table(self, router: str, token: str, generation: str, wait: float, reply: Reply) -> None:
        """A router asks for the table: answered once it differs from ``generation``,
        or with 304 after ``wait`` seconds."""
        if self.publisher is None or not self.publisher.generation:
            reply(503, b"")
        elif self.publisher.generation != generation:
            reply(*self._call_router("GET", TABLE_PATH, router, token, query=f"generation={generation}&wait=0"))
        else:
            waiting = (router, token, generation, reply)
            self._waiting_routers.append(waiting)
            self.later(wait, self._give_up, waiting)

    def _give_up(self, waiting: tuple[str, str, str, Reply]) -> None:
        if waiting in self._waiting_routers:
            self._waiting_routers.remove(waiting)
            waiting[3](304, b"")

    def _call_router(
        self, method: str, path: str, router: str, token: str, *, body: bytes = b"", query: str = ""
    ) -> tuple[int, bytes]:
        """A request through the real WSGI application: status and body."""
        if self._routers is None:
            return 503, b""
        answer: list[str] = []
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_AUTHORIZATION": f"Bearer {token}",
            "HTTP_LLMGW_ROUTER": router,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": BytesIO(body),
        }
        chunks = self._routers(environ, lambda status, _headers: answer.append(status))
        return int(answer[0][:3]), b"".join(chunks)

    def _accept(self, end: End) -> None:
        if self._listener is not None:
            self._listener.accept(end)

    def _arm(self, delay: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.later(delay, self._step)

    def _step(self) -> None:
        self._alarm = None
        if self._driver is None:
            return
        work = self.rng.uniform(0.0, 0.004)
        faults = self._driver.faults
        wait = self._driver.step()
        if self._driver.faults != faults:
            raise Violation("loop-fault", "the loop or a carrier raised an exception; see the log")
        self._sleeping = wait > driver.SLICE and not len(self._inbox)
        self._arm(wait / self.clock.rate if self._sleeping else driver.SLICE + work)

    # ------------------------------------------------------------ effects

    def _send(self, effect: events.Send) -> None:
        self.burn()
        if not isinstance(effect.message, HeartbeatAck):
            self.log(f"=> {effect.session} {describe(effect.message)}")
        if self._listener is not None:
            self._listener.send(effect.session, effect.message)

    def _close(self, effect: events.CloseSession) -> None:
        self.burn()
        self.log(describe(effect))
        if self._listener is not None:
            self._listener.close(effect.session, effect.refuse)

    def _commit(self, effect: events.Commit) -> None:
        self.burn()
        self.log(describe(effect))
        for decision in effect.decisions:
            self.durable.on_decision(decision)
        self._commits.append(effect)
        if len(self._commits) == 1:
            self._write_next()

    def _write_next(self) -> None:
        delay = self.rng.uniform(0.0005, 0.02) + self.rng.uniform(0.0, self.durable.journal_delay)
        self.later(delay, self._written)

    def _written(self) -> None:
        batch = self._commits.popleft()
        epoch = self.loop.epoch if self.loop is not None else 0
        for decision in batch.decisions:
            self.durable.append(JournalEntry(self.world.now, epoch, decision))
        self.log(f"committed {batch.batch}")
        if self._commits:
            self._write_next()
        self.later(self.rng.uniform(0.0, 0.002), self.put, events.Committed(batch.batch))

    def _note(self, effect: events.Note) -> None:
        self.burn()
        self.log(describe(effect))
        self.durable.on_decision(effect.decision)

    def _publish(self, effect: events.PublishRoutes) -> None:
        self.burn()
        self.log(describe(effect))
        if self.publisher is not None and self._providers is not None:
            if self._providers.need(effect.key_files.values()):
                self.later(self.rng.uniform(0.001, 0.05), self._read_keys)
            self.publisher.set_routes(effect.models, effect.settling, effect.aliases, effect.key_files)
            self._wake_routers()

    def _wake_routers(self) -> None:
        current = self.publisher.generation if self.publisher is not None else ""
        waiting = [each for each in self._waiting_routers if each[2] != current]
        self._waiting_routers = [each for each in self._waiting_routers if each[2] == current]
        for router, token, generation, reply in waiting:
            self.wait_table(router, token, generation, 0.0, reply)

    def _read_again(self) -> None:
        self.later(AGAIN, self._read_again)
        self._read_keys()

    def _read_keys(self) -> None:
        if self._providers is not None:
            self._providers.look()
            self._wake_routers()
            if self.loop is not None:
                self.kick()

    def _raise_epoch(self, effect: events.EpochRaised) -> None:
        self.burn()
        self.log(f"epoch raised to {effect.epoch}")
        self.durable.epoch = max(self.durable.epoch, effect.epoch)
