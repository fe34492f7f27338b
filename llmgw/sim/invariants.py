"""What must hold after every step, by the truth of the process tables.

Nobody's view is asked: neither the control plane's nor an agent's.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from controlplane.events import Decision
from llmgw.sim.allegiance import Allegiance
from llmgw.sim.durable import Durable
from llmgw.sim.host import Host, Proc
from llmgw.sim.store import SimStore
from llmgw.sim.world import Violation, World
from llmgw.wire.messages import ShardKey

if TYPE_CHECKING:
    from llmgw.sim.agent_process import AgentProcess
    from llmgw.sim.term import Term

DECIDED = frozenset({"stop"})
"""Kinds of decisions that say that a replica ends."""

GHOST = 5.0
"""Seconds an agent may take to notice that a process is gone, helpers included."""

REPLACEMENTS = 15
"""More replacements of one replica than failures, lost nodes and restarts of the control plane explain."""

TOLERANCE = 6.0
"""Seconds an agent may take to notice that an engine became ready."""


class Monitor(Allegiance):
    """Watches hosts, signals and decisions."""

    def __init__(self, world: World, durable: Durable, store: SimStore, hosts: dict[str, Host]) -> None:
        super().__init__(world, store, hosts)
        self._durable = durable
        self.serving = False
        """Every request must be answered: see ``Scenario.gentle``."""
        self._ghosts: dict[ShardKey, float] = {}
        self.in_flight: Callable[[Term, str], Iterable[tuple[str, int]]] = lambda *_: ()
        """Routers that know the present table and have requests on an endpoint."""
        self.held: Callable[[Term, str], Iterable[str]] = lambda *_: ()
        """Domains of a node that the control plane was told to hold."""
        self._tries: Counter[str] = Counter()
        """Replacements that each replica got."""
        self._outages: set[str] = set()
        """Models of which a replica was restarted in its place: the one case with an outage."""
        for host in hosts.values():
            host.on_signal = self._signalled

    def after_step(self) -> None:
        """Check what the step may have broken."""
        changed = False
        for host in self._hosts.values():
            if host.dirty:
                host.dirty = False
                changed = True
                self._check_host(host)
        if changed:
            self._check_fleet()
        self.check_leaders()

    def look_for_ghosts(self, agents: Iterable["AgentProcess"]) -> None:
        """An agent that runs notices soon that a process it answers for is gone, even
        if its pid lives on. Called now and then."""
        seen: dict[ShardKey, float] = {}
        for agent in agents:
            if not agent.alive or agent.paused or agent.busy:
                continue
            for key, shard in agent.agent.machine.shards.items():
                if shard.process is None or shard.ending is not None:
                    continue
                if agent.host.find_exactly(shard.process) is None:
                    since = seen[key] = self._ghosts.get(key, self._world.now)
                    if self._world.now - since > GHOST:
                        raise Violation("ghost", f"{agent.name} takes {shard.process} of {key} for running; it is gone")
        self._ghosts = seen

    def request_failed(self, router: str, model: str, outcome: str) -> None:
        """A router could not have a request answered, for a model that it served before."""
        if self.serving and model not in self._outages:
            raise Violation("serving", f"a request of {router} for {model} met: {outcome}; no fault touched an engine")

    def decided(self, term: "Term", decision: Decision) -> None:
        """A control plane decided or noted something."""
        if decision.kind == "node-lost":
            self.lost(term, decision)
        if decision.kind == "failed":
            self.failed(term, decision)
        if decision.kind == "lease-in-doubt":
            self.doubts(term)
        if decision.kind in ("vouched", "epoch-unproven"):
            self._world.occasions[decision.kind] += 1
        if decision.kind in ("quarantine", "invariant"):
            raise Violation("own-check", f"the control plane found a fault of its own: {decision.reason}")
        if decision.figures.get("restart") == "in place" and decision.model is not None:
            self._outages.add(decision.model)
        if decision.figures.get("restart") == "replaced":
            self._replaced(decision)
        if decision.figures.get("replaces") is not None:
            self._tries[decision.figures["replaces"]] += 1
            if self._tries[decision.figures["replaces"]] > REPLACEMENTS:
                raise Violation("restart", f"{decision.figures['replaces']} is replaced again and again")
        if decision.kind == "place" and decision.node is not None:
            for domain in self.held(term, decision.node):
                raise Violation("held", f"{decision.replica} is placed on {decision.node}, and {domain} is held")
        if decision.kind == "stop" and decision.replica is not None and "no request left" in decision.reason:
            for name, count in self.in_flight(term, decision.replica):
                raise Violation("drain", f"{decision.replica} is stopped with {count} requests of router {name} left")

    def _replaced(self, decision: Decision) -> None:
        """A replaced replica goes only once its successor came up (REC-30): an engine of
        that id was ready at some time."""
        new = next(
            (
                entry.decision.replica
                for entry in reversed(self._durable.journal)
                if entry.decision.kind == "place" and entry.decision.figures.get("replaces") == decision.replica
            ),
            None,
        )
        if not any(new in host.came_up for host in self._hosts.values()):
            raise Violation("restart", f"{decision.replica} goes as replaced by {new}, which never was ready")

    # ------------------------------------------------------------ processes

    def _check_host(self, host: Host) -> None:
        engines = host.engines()
        owners: dict[object, Proc] = {}
        memory, cores = 0, 0.0
        for proc in engines:
            spec = proc.spec
            if spec is None:
                continue
            memory += spec.memory_bytes or 0
            cores += spec.cpu_cores or 0.0
            for thing in (spec.port, *spec.devices):
                owner = owners.setdefault(thing, proc)
                if owner is not proc:
                    kind = "port" if isinstance(thing, int) else "device"
                    raise Violation(f"one-owner-{kind}", f"{kind} {thing} of {host.name}: {owner} and {proc} live")
        if memory > host.memory:
            raise Violation("claims", f"live engines of {host.name} claim {memory} of {host.memory} bytes")
        if cores > host.cores:
            raise Violation("claims", f"live engines of {host.name} claim {cores:g} of {host.cores} cores")

    def _check_fleet(self) -> None:
        shards = Counter(
            (proc.key.replica_id, proc.key.rank)
            for host in self._hosts.values()
            for proc in host.engines()
            if proc.key is not None
        )
        for (replica, rank), count in shards.items():
            if count > 1:
                raise Violation("one-process", f"{count} engines live for rank {rank} of replica {replica}")

    # ------------------------------------------------------------ endings

    def _signalled(self, host: Host, proc: Proc, signal: str, why: str) -> None:
        """No engine ends without a decision: of the control plane, in the journal
        before the signal; or of its agent, because it was not ready in time."""
        if proc.key is None:
            raise Violation("stranger", f"{proc} on {host.name} was sent SIG{signal} ({why})")
        main = next((other for other in host.of(proc.key) if other.main), None)
        if main is None or main.dying or main.signalled or main.spec is None:
            return
        if self._decided(proc.key.replica_id):
            return
        ready = main.ready_since
        too_late = host.age(main) >= main.spec.startup_timeout - 1.0
        if too_late and (ready is None or self._world.now - ready < TOLERANCE):
            return
        state = "starting" if ready is None else f"ready for {self._world.now - ready:.1f} s"
        raise Violation(
            "no-decision", f"{proc} on {host.name} ({state}) was sent SIG{signal} ({why}) and no decision says so"
        )

    def _decided(self, replica: str) -> bool:
        """Whether the journal holds a decision, with a reason, that ends the replica."""
        ids = [replica, *(f"{replica}@{node}" for node in self._hosts)]
        return any(
            entry.decision.kind in DECIDED and entry.decision.reason
            for name in ids
            for entry in self._durable.decided.get(name, ())
        )
