"""One router process: it polls the route table, merges it by the router's own rule,
sends requests to endpoints and reports what is in flight.

Requests are judged by the truth: which engine really listens at the endpoint's
address, and whether it takes the endpoint's key.
"""

import random
from collections import Counter
from collections.abc import Callable

from llmgw.sim.control_process import HOST as CONTROL
from llmgw.sim.control_process import ControlProcess
from llmgw.sim.host import Host
from llmgw.sim.network import Network
from llmgw.sim.node_watch import address_of
from llmgw.sim.world import Process, World
from llmgw.wire.routing import (
    Endpoint,
    RouteTable,
    decode_table,
    encode,
)
from router import report
from router.table import Live, build, settle

WAIT = 25.0
TIMEOUT = 35.0
REPORT = 1.0
PAUSE = 1.0
HEARD = 1.5


class RouterProcess(Process):
    """See the module. ``table`` is what it routes by; ``saved`` is its copy on disk,
    which the next process begins with."""

    def __init__(
        self,
        world: World,
        network: Network,
        *,
        name: str,
        token: str,
        control: Callable[[], ControlProcess],
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
        self._token = token
        self._control = control
        self._hosts = {address_of(host.name): host for host in hosts.values()}
        self._boot = f"{name}-{generation}"
        self._sequence = 0
        self._generation = ""
        self.on_failure: Callable[[str, str, str], None] | None = None
        """Told of requests that were not answered, of models served before: router, model, why."""
        self._served: set[str] = set()
        self._poll_number = 0
        self._heard = 0.0

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

    def _reachable(self) -> bool:
        return not self._network.blocked(self.host, CONTROL)

    def _poll(self) -> None:
        self._poll_number += 1
        number = self._poll_number
        self.later(TIMEOUT, self._polled, number, 0, b"")
        if self._reachable():
            self.world.after(self._network.delay(), self._ask, number)

    def _ask(self, number: int) -> None:
        control = self._control()
        if not control.up:
            self.world.after(self._network.delay(), self.run, self._polled, number, 0, b"")
            return

        def reply(status: int, body: bytes) -> None:
            if self._reachable():
                self.world.after(self._network.delay(), self.run, self._polled, number, status, body)

        control.run(control.wait_table, self.host, self._token, self._generation, WAIT, reply)

    def _polled(self, number: int, status: int, body: bytes) -> None:
        if number != self._poll_number:
            return
        if status == 200:
            fresh = decode_table(body)
            self.routes = build(settle(self.table, fresh), self.routes)
            self._generation = fresh.generation
            self._poll()
            return
        self._poll_number += 1
        self.later(0.05 if status == 304 else PAUSE * self._rng.uniform(0.5, 1.5), self._poll)

    def _report(self) -> None:
        self.later(REPORT, self._report)
        if self.routes is None:
            return
        self._sequence += 1
        body = encode(report.build(self.routes, self._boot, self._sequence, self.world.now))
        control = self._control()
        if control.up and self._reachable():
            self._heard = self.world.now
            self.world.after(self._network.delay(), control.run, control.report, self.host, self._token, body)

    # ------------------------------------------------------------ with clients

    def _request(self) -> None:
        self.later(self._rng.expovariate(0.7), self._request)
        if self.table is None or self.routes is None or not self.table.models:
            return
        model = self._rng.choice(self.table.models).name
        lives = self.routes.models[model].endpoints
        live = self._rng.choice(lives) if lives else None
        outcome = "no endpoint" if live is None else self.try_endpoint(live.endpoint)
        self.answered[outcome] += 1
        if live is not None and outcome == "ok":
            self._served.add(model)
            live.inflight += 1
            self.later(self._rng.expovariate(0.2), self._answered, live)
        elif self.on_failure is not None and model in self._served:
            where = "" if live is None else f" at {live.endpoint}"
            self.on_failure(self.name, model, outcome + where)

    @staticmethod
    def _answered(live: Live) -> None:
        live.inflight -= 1

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
