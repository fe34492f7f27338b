"""One control plane process: it stands by until it has the lease, leads for a term, and
stands by again once it leads no more (HA-01, HA-02).

Without a standby (``alone``) it takes the lease at once and keeps it: a lock keeps others
out.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from controlplane import events
from controlplane.leadership import lease
from controlplane.loop import LoopSettings
from llmgw.sim.agent_listener import SimAgentListener
from llmgw.sim.durable import Durable
from llmgw.sim.invariants import Monitor
from llmgw.sim.lease_keeper import TIMEOUT, Decided, LeaseKeeper, Times
from llmgw.sim.network import End, Network
from llmgw.sim.store import SimStore
from llmgw.sim.telling import Telling
from llmgw.sim.term import Asking, Reply, Term
from llmgw.sim.wall import Wall
from llmgw.sim.world import HostClock, Process, World
from llmgw.wire.messages import Refuse

AGENTS_PORT = 7001

AGAIN = 1.0
"""Seconds between two tries to get an answer out of the store."""

FAREWELL = 0.5
"""Seconds from the goodbye to the end of a process that is stopped."""


@dataclass
class ControlSite:
    """Where a control plane runs: its host, whose clocks outlive its processes."""

    host: str
    clock: HostClock
    wall: Wall

    @property
    def agents(self) -> str:
        """Where agents reach it."""
        return f"{self.host}:{AGENTS_PORT}"


class ControlProcess(Process):
    """See the module. ``fuse`` counts effects until death."""

    def __init__(
        self,
        world: World,
        network: Network,
        site: ControlSite,
        *,
        durable: Durable,
        store: SimStore,
        settings: LoopSettings,
        times: Times,
        monitor: Monitor,
        alone: bool,
        controls: Callable[[], dict[str, "ControlProcess"]],
    ) -> None:
        durable.starts += 1
        super().__init__(world, f"{site.host}-{durable.starts}")
        self.site = site
        self.durable = durable
        self.settings = settings
        self.monitor = monitor
        self.alone = alone
        self.rng: random.Random = world.rng(f"control process {durable.starts}")
        self.term: Term | None = None
        self.keeper: LeaseKeeper | None = None
        self._network = network
        self._store = store
        self._times = times
        self._controls = controls
        self._standby: SimAgentListener | None = None
        self._stopping = False
        self._number = 0
        self._epoch = 0

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """The process starts."""
        self.later(self.rng.uniform(0.2, 2.0), self._begin)

    def _begin(self) -> None:
        self._standby = SimAgentListener(
            self,
            put=lambda _: None,
            admits=lambda node: node in self.durable.enrolled,
            silence=self.settings.silence,
            boot=f"standby-{self.name}",
            instead=self._not_leader,
        )
        self.log("up")
        self._network.listen(self.site.agents, self.site.host, self._accept)
        self.keeper = LeaseKeeper(
            self,
            self._store,
            host=self.site.host,
            wall=self.site.wall,
            holder=lease.Holder(self.site.host, {"agents": self.site.agents, "routers": self.site.host}),
            times=self._times,
            alone=self.alone,
            told=self._decided,
        )
        self.keeper.stand_by()

    def end(self) -> None:
        """The process is no more: everything that is not durable is lost."""
        if not self.alive:
            return
        self.kill()
        self._network.unlisten(self.site.agents)
        for listener in self._listeners():
            listener.cut()
        if self.term is not None:
            self.term.end()
        self.on_death()

    def died(self) -> None:
        """Killed between two effects."""
        self.log("killed between two effects")
        self.end()

    def shut_down(self) -> None:
        """SIGTERM: let the agents go, give the lease up, then end."""
        self._stopping = True
        self._network.unlisten(self.site.agents)
        if self.term is not None:
            self.term.goodbye()
            self.term.end()
        if self.keeper is not None:
            self.keeper.release()
        self.later(FAREWELL, self.end)

    def _listeners(self) -> list[SimAgentListener]:
        both = (self._standby, self.term.listener if self.term is not None else None)
        return [listener for listener in both if listener is not None]

    def _accept(self, end: End) -> None:
        if self.term is not None:
            self.term.listener.accept(end)
        elif self._standby is not None:
            self._standby.accept(end)

    # ------------------------------------------------------------ leadership

    @property
    def leading(self) -> bool:
        """Whether a term runs: it may be in doubt."""
        return self.alive and self.term is not None

    @property
    def sure(self) -> bool:
        """Whether it believes that it leads beyond doubt."""
        return self.alive and self.keeper is not None and self.keeper.sure()

    @property
    def believes(self) -> bool:
        """Whether its machine says that it leads, sure or not."""
        return self.alive and self.keeper is not None and self.keeper.lease.leading

    @property
    def owner(self) -> str:
        """The random id of its candidacy."""
        return self.keeper.lease.owner if self.keeper is not None else ""

    @property
    def epoch(self) -> int:
        """Its machine's."""
        return self.keeper.lease.epoch if self.keeper is not None else 0

    @property
    def claimed_until(self) -> float:
        """When its claim truly ends, less its margin."""
        return self.keeper.claimed_until if self.keeper is not None else -math.inf

    def want_epoch(self, seen: int) -> None:
        """Somebody obeyed epoch ``seen``."""
        if self.keeper is not None:
            self.keeper.want_epoch(seen)

    def superseded(self, epoch: int, name: str) -> bool:
        """Another says that it took the lease. Whether this one leads nevertheless."""
        before = self.believes
        leads = self.keeper is not None and self.keeper.superseded(epoch, name)
        self.world.occasions["superseded"] += before and not leads
        return leads

    @property
    def replaced(self) -> str:
        """The host of whom it took the lease from, if that one may not know."""
        before = self.keeper.lease.replaced if self.keeper is not None else None
        return before.name if before is not None and before.name != self.site.host else ""

    def _decided(self, decided: Decided) -> None:
        match decided:
            case lease.Won(epoch, until):
                self.log(f"leads with epoch {epoch}")
                self.world.leaders += 1
                self.monitor.leads(self)
                self._epoch = epoch
                self._read_store(until)
            case lease.Extended(epoch, until):
                self.monitor.leads(self)
                self._extended(epoch, until)
            case lease.Lost(why):
                self.log(f"leads no more: {why}")
                self._number += 1
                term, self.term = self.term, None
                if term is not None:
                    term.goodbye()
                    term.end()
                self.later(0.0, self._stand_by)

    def _stand_by(self) -> None:
        if self.keeper is not None and not self._stopping:
            self.keeper.stand_by()

    def _extended(self, epoch: int, until: float) -> None:
        granted = epoch != self._epoch
        self._epoch = epoch
        if self.term is not None:
            self.term.put(events.LeaseExtended(until))
            if granted:
                self.log(f"was granted epoch {epoch}")
                self.term.put(events.EpochGranted(epoch))

    def _read_store(self, until: float) -> None:
        """What people decided must be read before anything can be done."""
        self._number += 1
        number = self._number

        def answered(answer: lease.Row | str | None) -> None:
            if number != self._number or self._stopping:
                return
            self._number += 1
            if isinstance(answer, str):
                self.later(AGAIN, self._read_again, self._number)
            else:
                self._begin_term(self.keeper.lease.until if self.keeper is not None else until)

        self.later(TIMEOUT, answered, "the store did not answer in time")
        self._store.ask(self.site.host, self._store.read, lambda answer: self.run(answered, answer))

    def _read_again(self, number: int) -> None:
        if number == self._number:
            self._read_store(0.0)

    def _begin_term(self, until: float) -> None:
        self.term = Term(
            self,
            self.durable,
            self.settings,
            wall=self.site.wall,
            epoch=self._epoch,
            leader=self.owner,
            until=until,
        )
        self.log(f"begins its term with epoch {self._epoch}")
        if before := self.replaced:
            Telling(self.term, self._network, lambda: self._controls()[before])

    def _leader(self) -> lease.Holder | None:
        """Who leads, as far as the store has told: never ourselves, as with ``Standby``."""
        row = self.keeper.lease.row if self.keeper is not None else None
        return row.holder if row is not None and row.owner and row.holder.name != self.site.host else None

    def _not_leader(self) -> Refuse:
        holder = self._leader()
        message = f"this control plane stands by; {holder.name if holder else 'nobody'} leads"
        leader = holder.addresses.get("agents", "") if holder else ""
        takes_at = self.keeper.lease.takes_at if self.keeper is not None else None
        return Refuse(
            code="not_leader",
            message=message,
            leader=leader,
            retry_seconds=1.0,
            takeover_seconds=None if takes_at is None else max(0.0, takes_at - self.site.wall.monotonic()),
        )

    # ------------------------------------------------------------ people, files and routers

    def put(self, event: events.Event) -> None:
        """Something for the writer, from people or files."""
        if self.leading and self.term is not None:
            self.term.put(event)

    def enrolment_changed(self) -> None:
        """People enrolled a node, or removed one."""
        if self.leading and self.term is not None:
            self.term.enrolment_changed()

    def report(self, asking: Asking, body: bytes) -> None:
        """A router's report arrived."""
        if self.leading and self.term is not None:
            self.term.report(asking, body)

    def noticed(self, control: str, body: bytes, reply: Reply) -> None:
        """Another control plane says that it leads."""
        if self.term is not None and not self._stopping:
            reply(*self.term.notice(control, body))
        elif self._standby is not None and not self._stopping and not self.believes:
            reply(503, msgspec.json.encode({"code": "not_leader"}))

    def wait_table(self, asking: Asking, generation: str, wait: float, reply: Reply) -> None:
        """A router asks for the table."""
        if self._standby is None or self._stopping:
            reply(0, b"")
        elif self.term is None:
            holder = self._leader()
            leader = holder.addresses.get("routers", "") if holder else ""
            body = {"code": "not_leader", "message": "this control plane stands by", "leader": leader}
            reply(503, msgspec.json.encode(body))
        else:
            self.term.wait_table(asking, generation, wait, reply)
