"""One router process: it polls the route table at the control plane that leads, merges it
by the router's own rule, sends requests to endpoints and reports what is in flight.

Requests are judged by the truth: which engine really listens at the endpoint's
address, and whether it takes the endpoint's key.
"""

import random
from collections import Counter
from collections.abc import Callable

import msgspec

from llmgw.sim.control_process import ControlProcess
from llmgw.sim.host import Host
from llmgw.sim.network import Network
from llmgw.sim.node_watch import address_of
from llmgw.sim.term import Asking, Term
from llmgw.sim.world import Process, World
from llmgw.wire import epochs
from llmgw.wire.routing import Endpoint, RouteTable, decode_table, encode
from router import report
from router.table import Live, build, settle

WAIT = 25.0
TIMEOUT = 35.0
REPORT = 1.0
PAUSE = 1.0
HEARD = 1.5
REPORT_TIMEOUT = 5.0
SEVERAL = 3
"""Reports in a row of which a control plane must have got one."""


class RouterProcess(Process):
    """See the module. ``table`` is what it routes by; ``saved`` is its copy on disk,
    which the next process begins with."""

    def __init__(
        self,
        world: World,
        network: Network,
        *,
        name: str,
        controls: Callable[[], dict[str, ControlProcess]],
        hosts: dict[str, Host],
        generation: int,
        saved: RouteTable | None,
    ) -> None:
        super().__init__(world, f"router {name}")
        self.host = name
        self.routes = build(saved) if saved is not None else None
        self.answered: Counter[str] = Counter()
        self._rng: random.Random = world.rng(f"router {name} {generation}")
        self._network = network
        self._controls = controls
        self._at = 0
        """Which control plane it asks."""
        self._hosts = {address_of(host.name): host for host in hosts.values()}
        self._boot = f"{name}-{generation}"
        self._sequence = 0
        self._generation = ""
        self.on_failure: Callable[[str, str, str], None] | None = None
        """Told of requests that were not answered, of models served before: router, model, why."""
        self.on_table: Callable[[str, RouteTable], None] | None = None
        """Told of each table that is taken."""
        self._named: set[str] = set()
        """Who was named as the leader since the last table."""
        self._served: set[str] = set()
        self._poll_number = 0
        self._heard = 0.0
        self._told: RouteTable | None = None
        """The last table, as it was told."""
        self._reports: tuple[ControlProcess | None, int] = (None, 0)
        """Who took the last reports, and how many in a row."""
        self._answers: dict[str, float] = {}
        """When each endpoint last answered."""

    def start(self) -> None:
        """Begin to poll, to report and to serve."""
        self.later(self._rng.uniform(0.0, 1.0), self._poll)
        self.later(self._rng.uniform(0.0, REPORT), self._report)
        self.later(self._rng.uniform(0.0, 2.0), self._request)

    @property
    def table(self) -> RouteTable | None:
        """What it routes by."""
        return self.routes.table if self.routes is not None else None

    # ------------------------------------------------------------ with the control plane

    def _control(self) -> ControlProcess:
        controls = list(self._controls().values())
        return controls[self._at % len(controls)]

    def _reachable(self, control: ControlProcess) -> bool:
        return not self._network.blocked(self.host, control.site.host)

    def _asking(self) -> Asking:
        table = self.table
        return Asking(self.host) if table is None else Asking(self.host, table.epoch, table.leader)

    def _poll(self) -> None:
        self._poll_number += 1
        number = self._poll_number
        self.later(TIMEOUT, self._polled, number, 0, b"")
        control = self._control()
        if self._reachable(control):
            self.world.after(self._network.delay(), self._ask, number, control)

    def _ask(self, number: int, control: ControlProcess) -> None:
        def reply(status: int, body: bytes) -> None:
            if self._reachable(control):
                self.world.after(self._network.delay(), self.run, self._polled, number, status, body)

        if not control.alive:
            reply(0, b"")
        else:
            control.run(control.wait_table, self._asking(), self._generation, WAIT, reply)

    def _polled(self, number: int, status: int, body: bytes) -> None:
        if number != self._poll_number:
            return
        self._poll_number += 1
        if status == 200 and self._take(decode_table(body)):
            self._named.clear()
            self._poll()
            return
        if status == 304:
            self.later(0.05, self._poll)
            return
        self._elsewhere(body if status == 503 else b"")
        self.later(PAUSE * self._rng.uniform(0.5, 1.5), self._poll)

    def _take(self, fresh: RouteTable) -> bool:
        """Use a table, unless it is of a leader that was replaced (HA-01)."""
        known = self.table
        if known is not None and (why := epochs.objection(known.epoch, known.leader, fresh.epoch, fresh.leader)):
            self.log(f"refuses a table of {fresh.leader}: {why}")
            self.world.occasions["router-refuses"] += 1
            return False
        if known is None or (known.epoch, known.leader) != (fresh.epoch, fresh.leader):
            self.log(f"takes tables of epoch {fresh.epoch} of {fresh.leader}")
        self.routes = build(settle(known, fresh), self.routes)
        self._generation = fresh.generation
        self._told = fresh
        if self.on_table is not None:
            self.on_table(self.name, fresh)
        return True

    def _elsewhere(self, body: bytes) -> None:
        """Ask the one that the answer names, once until a table comes, or else the next."""
        self._generation = ""
        leader = msgspec.json.decode(body).get("leader") if body else None
        names = list(self._controls())
        if leader is not None and leader in names and leader not in self._named:
            self._named.add(leader)
            self._at = names.index(leader)
        else:
            self._at += 1

    def _report(self) -> None:
        self.later(REPORT, self._report)
        if self.routes is None:
            return
        self._sequence += 1
        body = encode(report.build(self.routes, self._boot, self._sequence, self.world.now))
        control = self._control()
        if not control.alive or control.paused or not self._reachable(control):
            self._reports = (None, 0)
            self.later(REPORT_TIMEOUT, self._look_elsewhere, control)
        elif control.leading:
            self._heard = self.world.now
            if self._reports[0] is not control:
                self._reports = (control, 0)
            self._reports = (control, self._reports[1] + 1)
            self.world.after(self._network.delay(), control.run, control.report, self._asking(), body)

    def _look_elsewhere(self, silent: ControlProcess) -> None:
        """A report found nobody: whoever takes it is asked for the table too, at once."""
        if silent is not self._control():
            return
        for number, control in enumerate(self._controls().values()):
            if control is not silent and control.leading and not control.paused and self._reachable(control):
                self._at = number
                self._generation = ""
                self._poll()
                return

    # ------------------------------------------------------------ with clients

    def _request(self) -> None:
        self.later(self._rng.expovariate(0.7), self._request)
        if self.table is None or self.routes is None or not self.table.models:
            return
        model = self._rng.choice(self.table.models).name
        lives = self.routes.models[model].endpoints
        live = self._rng.choice(lives) if lives else None
        outcome = "no endpoint" if live is None else self._try(live.endpoint)
        self.answered[outcome] += 1
        if live is not None and outcome == "ok":
            self._served.add(model)
            live.inflight += 1
            self.later(self._rng.expovariate(0.2), self._done, live)
        elif self.on_failure is not None and model in self._served:
            where = "" if live is None else f" at {live.endpoint}"
            self.on_failure(self.name, model, outcome + where)

    def _try(self, endpoint: Endpoint) -> str:
        """What a request of this router meets: ``unreachable``, or see ``try_endpoint``."""
        host = self._hosts.get(endpoint.host)
        cut = host is not None and self._network.blocked(self.host, host.name)
        return "unreachable" if cut else self.try_endpoint(endpoint)

    def _done(self, live: Live) -> None:
        live.inflight -= 1
        if self._try(live.endpoint) != "unreachable":
            live.answered_at = self._answers[live.endpoint.id] = self.world.now

    def vouches(self, term: Term, endpoint: str) -> float | None:
        """How long ago an endpoint answered, if the control plane of ``term`` told this
        router of it and must have heard of the answer."""
        control, reports = self._reports
        known = control is term.process and reports >= SEVERAL
        heard = self.alive and known and self.world.now - self._heard < HEARD
        at = self._answers.get(endpoint)
        if not heard or at is None or at > self._heard or self._told is None or self._told.leader != term.leader:
            return None
        told = any(each.id == endpoint for model in self._told.models for each in model.endpoints)
        return self.world.now - at if told else None

    def certain_load(self, generation: str, endpoint_id: str) -> int:
        """Requests in flight on an endpoint, if this router is up to date and was heard
        just now: then the control plane must know of them."""
        fresh = self.alive and self._generation == generation and self.world.now - self._heard < HEARD
        if not fresh or self.routes is None:
            return 0
        lives = (*self.routes.live.values(), *self.routes.leaving)
        return sum(live.inflight for live in lives if live.endpoint.id == endpoint_id)

    def try_endpoint(self, endpoint: Endpoint) -> str:
        """What a request to it would meet now: ``ok``, ``refused`` (nobody there),
        ``loading`` or ``unauthorised`` (an engine with another key, or a provider without any)."""
        if endpoint.external:
            return "ok" if endpoint.key else "unauthorised"
        host = self._hosts.get(endpoint.host)
        proc = host.port_holder(endpoint.port) if host is not None else None
        if proc is None or proc.spec is None:
            return "refused"
        if proc.spec.engine_key != endpoint.key:
            return "unauthorised"
        return "ok" if proc.ready_since is not None else "loading"
