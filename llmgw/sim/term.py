"""One term of a simulated control plane: the real loop, inbox, driver steps and publisher,
from the moment it leads until it ends or leads no more.

Everything it does goes through its process, which may be paused and killed.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from controlplane import driver, events
from controlplane.inbox import Inbox
from controlplane.leadership.notice import NOTICE_PATH
from controlplane.listeners.http import PEER
from controlplane.listeners.routers import RouterApplication
from controlplane.loop import Loop, LoopSettings
from controlplane.publish.providers import AGAIN, ProviderKeys
from controlplane.publish.routes import key_files
from controlplane.publish.table import Publisher
from llmgw.identity.names import Identity, Kind, Presented
from llmgw.sim.agent_listener import SimAgentListener
from llmgw.sim.durable import Durable, JournalEntry
from llmgw.sim.say import describe
from llmgw.sim.wall import Wall
from llmgw.sim.world import Timer, Violation
from llmgw.wire.messages import Goodbye, HeartbeatAck
from llmgw.wire.routing import REPORT_PATH, TABLE_PATH

if TYPE_CHECKING:
    from llmgw.sim.control_process import ControlProcess

SPREAD = 2.0
"""Seconds over which agents that were said goodbye to come back."""

Reply = Callable[[int, bytes], None]
"""Takes the status and body of an answer to a router; status 0: the connection broke."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A router that asks: its name, and the highest epoch of a table it took, and whose."""

    router: str
    epoch: int = 0
    leader: str = ""


class _Everybody:
    """Every router may speak."""

    def admit(self, presented: Presented, kind: str, name: str) -> None:
        """It may."""


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
        return self._idle()


class Term:
    """See the module. ``epoch`` and ``leader`` are those it began with."""

    def __init__(
        self,
        process: "ControlProcess",
        durable: Durable,
        settings: LoopSettings,
        *,
        wall: Wall,
        epoch: int,
        leader: str,
        until: float,
    ) -> None:
        durable.starts += 1
        boot = f"boot{durable.starts}"
        self.process = process
        self.durable = durable
        self.leader = leader
        self.over = False
        self._settings = settings
        self._wall = wall
        self._rng: random.Random = process.world.rng(f"term {durable.starts}")
        self._inbox = Inbox()
        self._alarm: Timer | None = None
        self._commits: deque[events.Commit] = deque()
        self._waiting_routers: list[tuple[Asking, str, Reply]] = []
        self._sleeping = False
        self.publisher = Publisher(boot)
        self._providers = ProviderKeys(self.publisher, self._inbox.force, durable.read_keys)
        self._providers.need(key_files(durable.catalog).values())
        self._routers = self._router_application()
        self.loop = Loop(
            settings,
            durable.catalog,
            enrolled=frozenset(durable.enrolled),
            intent=durable.intent(),
            rng=process.world.rng(f"loop {durable.starts}"),
            epoch=epoch,
            leader=leader,
            boot=boot,
            version="1.0",
            engine_keys=durable.engine_keys,
            now=wall.monotonic(),
            until=until,
        )
        carriers: dict[type[Any], Callable[[Any], None]] = {
            events.Send: self._send,
            events.CloseSession: self._close,
            events.Commit: self._commit,
            events.Note: self._note,
            events.PublishRoutes: self._publish,
            events.EpochWanted: self._want_epoch,
            events.DropEngineKeys: lambda _: None,
        }
        self._driver = _Steps(self.loop, self._inbox, wall, carriers)
        self.listener = SimAgentListener(
            process,
            put=self._taken,
            admits=lambda node: node in durable.enrolled,
            silence=settings.silence,
            boot=boot,
        )
        self._read_again()
        self.kick()

    def end(self) -> None:
        """It is over: nothing of it happens any more."""
        self.over = True
        if self._alarm is not None:
            self._alarm.cancel()
        waiting, self._waiting_routers = self._waiting_routers, []
        for _, _, reply in waiting:
            reply(0, b"")

    def goodbye(self) -> None:
        """Let the agents go (HA-02)."""
        self.listener.goodbye(Goodbye(reason="the control plane leads no more", spread_seconds=SPREAD))

    # ------------------------------------------------------------ events

    def put(self, event: events.Event) -> None:
        """Something for the writer, from people, files or the lease."""
        if not self.over:
            self._inbox.force(event)
            self.kick()

    def enrolment_changed(self) -> None:
        """People enrolled a node, or removed one."""
        self.put(events.EnrolmentChanged(frozenset(self.durable.enrolled)))
        self.listener.drop_refused()

    def kick(self) -> None:
        """Something is in the inbox: wake the writer, unless it sleeps between two slices."""
        if self._sleeping or self._alarm is None:
            self._arm(0.0)

    def _taken(self, event: events.SessionOpened | events.FrameReceived | events.SessionClosed) -> None:
        if self.over:
            return
        if isinstance(event, events.SessionClosed):
            self._inbox.force(event)
        else:
            self._inbox.put(event)
        self.kick()

    def _later(self, delay: float, action: Callable[..., None], *args: Any) -> Timer:
        return self.process.later(delay, self._do, action, *args)

    def _do(self, action: Callable[..., None], *args: Any) -> None:
        if not self.over:
            action(*args)

    def _arm(self, delay: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._later(delay, self._step)

    def _step(self) -> None:
        self._alarm = None
        work = self._rng.uniform(0.0, 0.004)
        faults = self._driver.faults
        wait = self._driver.step()
        if self._driver.faults != faults:
            raise Violation("loop-fault", "the loop or a carrier raised an exception; see the log")
        if self.over:
            return
        self._sleeping = wait > driver.SLICE and not len(self._inbox)
        self._arm(wait / self._wall.clock.rate if self._sleeping else driver.SLICE + work)

    # ------------------------------------------------------------ routers

    def report(self, asking: Asking, body: bytes) -> None:
        """A router's report arrived."""
        if not self.over:
            self._call("POST", REPORT_PATH, asking, body=body)
            self.kick()

    def wait_table(self, asking: Asking, generation: str, wait: float, reply: Reply) -> None:
        """A router asks for the table: answered once it differs from ``generation``,
        or with 304 after ``wait`` seconds."""
        if not self.publisher.generation:
            reply(503, b"")
        elif self.publisher.generation != generation:
            reply(*self._call("GET", TABLE_PATH, asking, query=f"generation={generation}&wait=0"))
            self.kick()
        else:
            waiting = (asking, generation, reply)
            self._waiting_routers.append(waiting)
            self._later(wait, self._give_up, waiting)

    def notice(self, control: str, body: bytes) -> tuple[int, bytes]:
        """Another control plane says that it leads: what it is answered."""
        return self._call("POST", NOTICE_PATH, Asking(control), body=body, kind="controlplane")

    def _give_up(self, waiting: tuple[Asking, str, Reply]) -> None:
        if waiting in self._waiting_routers:
            self._waiting_routers.remove(waiting)
            waiting[2](304, b"")

    def _wake_routers(self) -> None:
        current = self.publisher.generation
        waiting = [each for each in self._waiting_routers if each[1] != current]
        self._waiting_routers = [each for each in self._waiting_routers if each[1] == current]
        for asking, generation, reply in waiting:
            self.wait_table(asking, generation, 0.0, reply)

    def _router_application(self) -> RouterApplication:
        return RouterApplication(
            self.publisher,
            self._inbox,
            credentials=None,  # type: ignore[arg-type]  # routers renew no certificates here
            identities=_Everybody(),  # type: ignore[arg-type]
            clock=self._wall,
            leads=lambda: (self.loop.epoch, self.leader),
            superseded=self.process.superseded,
            take_usage=lambda _router, _batch: None,
        )

    def _call(
        self, method: str, path: str, asking: Asking, *, body: bytes = b"", query: str = "", kind: Kind = "router"
    ) -> tuple[int, bytes]:
        """A request through the real WSGI application: status and body."""
        answer: list[str] = []
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_LLMGW_ROUTER": asking.router,
            PEER: Presented(Identity(kind, asking.router), "1", 0.0, math.inf),
            "HTTP_LLMGW_EPOCH": f"{asking.epoch} {asking.leader}",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": BytesIO(body),
        }
        chunks = self._routers(environ, lambda status, _headers: answer.append(status))
        return int(answer[0][:3]), b"".join(chunks)

    # ------------------------------------------------------------ effects

    def _send(self, effect: events.Send) -> None:
        self.process.burn()
        if not isinstance(effect.message, HeartbeatAck):
            self.process.log(f"=> {effect.session} {describe(effect.message)}")
        self.process.monitor.sends(self, effect.message)
        self.listener.send(effect.session, effect.message)

    def _close(self, effect: events.CloseSession) -> None:
        self.process.burn()
        self.process.log(describe(effect))
        self.listener.close(effect.session, effect.refuse)

    def _commit(self, effect: events.Commit) -> None:
        self.process.burn()
        self.process.log(describe(effect))
        for decision in effect.decisions:
            self.process.monitor.decided(self, decision)
        self._commits.append(effect)
        if len(self._commits) == 1:
            self._write_next()

    def _write_next(self) -> None:
        delay = self._rng.uniform(0.0005, 0.02) + self._rng.uniform(0.0, self.durable.journal_delay)
        self._later(delay, self._written)

    def _written(self) -> None:
        batch = self._commits.popleft()
        for decision in batch.decisions:
            self.durable.append(JournalEntry(self.process.world.now, self.loop.epoch, decision))
        self.process.log(f"committed {batch.batch}")
        self.process.monitor.committed(self)
        if self._commits:
            self._write_next()
        self._later(self._rng.uniform(0.0, 0.002), self.put, events.Committed(batch.batch))

    def _note(self, effect: events.Note) -> None:
        self.process.burn()
        self.process.log(describe(effect))
        self.process.monitor.decided(self, effect.decision)

    def _publish(self, effect: events.PublishRoutes) -> None:
        self.process.burn()
        self.process.log(describe(effect))
        if self._providers.need(effect.key_files.values()):
            self._later(self._rng.uniform(0.001, 0.05), self._read_keys)
        self.publisher.set_routes(effect)
        self._wake_routers()

    def _read_again(self) -> None:
        self._later(AGAIN, self._read_again)
        self._read_keys()

    def _read_keys(self) -> None:
        self._providers.look()
        self._wake_routers()
        self.kick()

    def _want_epoch(self, effect: events.EpochWanted) -> None:
        self.process.burn()
        self.process.log(f"wants an epoch above {effect.seen}")
        self.process.want_epoch(effect.seen)
