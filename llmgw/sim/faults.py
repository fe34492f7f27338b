"""Faults, each with a weight and a name that the summary counts.

One is drawn at a time, at exponential intervals. ``Storm.stop`` ends the injection;
``Cluster.calm`` mends what is broken.
"""

from collections.abc import Callable

from llmgw.sim.cluster import Cluster
from llmgw.sim.host import Temper
from llmgw.sim.leaders import Leaders
from llmgw.sim.network import Connection, End
from llmgw.sim.people import People
from llmgw.sim.store import STORE

KINDS: dict[str, tuple[float, bool]] = {
    "reset": (4, True),
    "half-open": (3, True),
    "stall": (3, True),
    "answer-lost": (3, True),
    "refuse": (1, True),
    "partition": (3, True),
    "router-partition": (1, False),
    "engine-partition": (1, False),
    "agent-crash": (4, True),
    "agent-crash-between-effects": (4, True),
    "agent-stop": (1, True),
    "agent-pause": (3, True),
    "host-reboot": (1.5, False),
    "engine-crash": (4, False),
    "temper": (3, False),
    "stranger": (2, False),
    "pid-reused": (2, False),
    "disk": (1, True),
    "device": (1, False),
    "control-crash": (3, True),
    "control-crash-between-effects": (3, True),
    "control-stop": (2, True),
    "control-pause": (3, True),
    "control-blackout": (0.7, True),
    "control-isolated": (1.5, True),
    "host-clock": (1, True),
    "store-partition": (2, True),
    "store-away": (1.5, True),
    "store-frozen": (1, True),
    "store-slow": (1, True),
    "store-clock": (1, True),
    "store-restored": (0.7, True),
    "late-claim": (2, True),
    "cut-at-takeover": (1, True),
    "slow-journal": (1, True),
    "leader-doubt": (1, False),
    "mass-silence": (0.8, False),
    "accept-loss": (0.4, False),
    "router-restart": (1, False),
    "scale": (4, False),
    "add-or-remove-model": (2, False),
    "change-profile": (1.5, False),
    "cordon": (2, False),
    "unenrol": (1, False),
    "label": (2, True),
    "hold": (2, True),
    "serving": (0.7, False),
    "restart": (4, True),
    "provider": (2, False),
}
"""Every kind of fault: its usual weight, and whether it leaves alone what serves. A kind
is the method of ``Storm`` of that name."""

CONTEST = (
    "agent-crash",
    "control-isolated",
    "control-pause",
    "disk",
    "engine-crash",
    "leader-doubt",
    "mass-silence",
    "partition",
    "scale",
    "slow-journal",
    "store-away",
    "store-partition",
    "store-restored",
)
"""Kinds that together have leaders doubt while their fleet needs them, and serve beside those
who came after them. Rare in a storm of everything."""


class Storm(Leaders, People):
    """Injects faults into a cluster until told to stop; ``only`` these kinds if given."""

    def __init__(self, cluster: Cluster, only: tuple[str, ...] = ()) -> None:
        super().__init__(cluster)
        # Each seed has a mood of its own: some kinds often, some never; at times only a few, or
        # those of ``CONTEST``.
        moods = [self.rng.choice((0.0, 0.3, 1.0, 1.0, 3.0)) for _ in KINDS]
        drawn = self.rng.random()
        if not only and drawn < 0.3:
            only = tuple(self.rng.sample(list(KINDS), self.rng.randint(2, 6)))
        elif not only and drawn < 0.5:
            only = CONTEST
        self._weights = [
            weight * mood if not only else float(kind in only)
            for (kind, (weight, gentle)), mood in zip(KINDS.items(), moods, strict=True)
            if gentle or not cluster.scenario.gentle
        ]
        self._kinds: list[Callable[[], None]] = [
            getattr(self, kind.replace("-", "_"))
            for kind, (_, gentle) in KINDS.items()
            if gentle or not cluster.scenario.gentle
        ]

    def start(self) -> None:
        """Begin, after the fleet had some time to come up."""
        self.cluster.world.after(self.rng.uniform(0.0, 60.0), self._strike)

    def stop(self) -> None:
        """No more faults."""
        self.on = False

    def _strike(self) -> None:
        if not self.on:
            return
        if not any(self._weights):
            return
        (kind,) = self.rng.choices(self._kinds, self._weights)
        kind()
        pause = self.cluster.scenario.pause
        # Trouble comes in crowds: now and then at once.
        delay = self.rng.uniform(0.0, 0.5) if self.rng.random() < 0.2 else self.rng.expovariate(1 / pause)
        self.cluster.world.after(delay, self._strike)

    # ------------------------------------------------------------ network

    def reset(self) -> None:
        """A connection is reset; what was under way is lost."""
        for connection in self._one_connection():
            self._tell("connection-reset", connection.client.host)
            connection.break_off()

    def half_open(self) -> None:
        """One side, or none, notices that the connection is dead."""
        for connection in self._one_connection():
            told = self.rng.choice((connection.client, connection.server, None))
            self._tell("half-open", connection.client.host, f"told: {told.host if told else 'nobody'}")
            connection.drop(told)

    def stall(self) -> None:
        """Nothing gets through for a while."""
        for connection in self._one_connection():
            seconds = self.rng.uniform(0.5, 45.0)
            ends = self.rng.choice(((connection.client,), (connection.server,), (connection.client, connection.server)))
            self._tell("stall", connection.client.host, f"from {[end.host for end in ends]} for {seconds:.1f} s")
            for end in ends:
                end.held_until = self.cluster.world.now + seconds

    def _one_connection(self) -> list[Connection]:
        live = [each for each in self.cluster.network.live() if each.server.host in self.cluster.sites]
        return [self.rng.choice(live)] if live else []

    def answer_lost(self) -> None:
        """The answer to the next command is held up, or dies with its connection."""
        node = self._node()
        seconds = self.rng.uniform(1.0, 45.0)
        breaks = self.rng.random() < 0.3

        def trap(end: End) -> None:
            self._tell("answer-lost", node, "reset" if breaks else f"for {seconds:.1f} s")
            if breaks:
                end.connection.break_off()
            else:
                end.held_until = self.cluster.world.now + seconds

        self.cluster.agents[node].link.trap = trap

    def refuse(self) -> None:
        """A control plane's port turns connections away."""
        seconds = self.rng.uniform(1.0, 60.0)
        site = self.cluster.sites[self._control_host()]
        self._tell("connect-refused", site.host, f"for {seconds:.1f} s")
        self.cluster.network.refuse(site.agents, seconds)

    def partition(self) -> None:
        """A node cannot reach a control plane, or any; sometimes long enough to be lost."""
        node = self._node()
        long = self.rng.random() < 0.5 and not self.cluster.scenario.gentle
        seconds = self.rng.uniform(40.0, 400.0) if long else self.rng.uniform(1.0, 40.0)
        hosts = list(self.cluster.sites) if self.rng.random() < 0.6 else [self._control_host()]
        self._tell("partition", node, f"from {', '.join(hosts)} for {seconds:.1f} s")
        self._cut([node], hosts, seconds)

    def router_partition(self) -> None:
        """A router cannot reach a control plane, or any."""
        router = self.rng.choice(list(self.cluster.routers))
        seconds = self.rng.uniform(1.0, 120.0)
        hosts = list(self.cluster.sites) if self.rng.random() < 0.5 else [self._control_host()]
        self._tell("router-partition", router, f"from {', '.join(hosts)} for {seconds:.1f} s")
        self._cut([router], hosts, seconds)

    def engine_partition(self) -> None:
        """A router cannot reach the engines of a node, or of any."""
        router = self.rng.choice(list(self.cluster.routers))
        seconds = self.rng.uniform(1.0, 300.0)
        nodes = list(self.cluster.hosts) if self.rng.random() < 0.3 else [self._node()]
        self._tell("engine-partition", router, f"from {', '.join(nodes)} for {seconds:.1f} s")
        self._cut([router], nodes, seconds)

    # ------------------------------------------------------------ engines while nobody is sure

    def leader_doubt(self) -> None:
        """The leader cannot reach the store until it has long been in doubt, and engines end
        meanwhile."""
        leader, ttl = self.cluster.leader, self.cluster.scenario.times.ttl
        if leader is None:
            return
        seconds = ttl * self.rng.uniform(1.2, 4.0)
        self._tell("leader-doubt", leader.site.host, f"for {seconds:.1f} s")
        self._cut([leader.site.host], [STORE], seconds)
        for _ in range(self.rng.randint(1, 4)):
            self._while(self.rng.uniform(0.7 * ttl, seconds), lambda: self.engine_crash() if self.on else None)

    # ------------------------------------------------------------ agents and hosts

    def agent_crash(self) -> None:
        """SIGKILL to an agent."""
        node = self._node()
        if self.cluster.agents[node].alive:
            delay = self.rng.choice((self.rng.uniform(0.1, 3.0), self.rng.uniform(3.0, 90.0)))
            self._tell("agent-crash", node, f"back in {delay:.1f} s")
            self.cluster.crash_agent(node, delay, graceful=False)

    def agent_crash_between_effects(self) -> None:
        """An agent will die between two effects, soon."""
        node = self._node()
        self.cluster.agents[node].fuse = self.rng.randint(0, 25)
        self._tell("agent-crash-between-effects", node, f"after {self.cluster.agents[node].fuse} effects")

    def agent_stop(self) -> None:
        """The agent is stopped, as for an upgrade, and started again."""
        node = self._node()
        if self.cluster.agents[node].alive:
            self._tell("agent-stop", node)
            self.cluster.crash_agent(node, self.rng.uniform(0.5, 20.0), graceful=True)

    def agent_pause(self) -> None:
        """SIGSTOP, then SIGCONT."""
        self._pause("agent-pause", self.cluster.agents[self._node()])

    def host_reboot(self) -> None:
        """Power loss: every process is gone, the disk stays."""
        node = self._node()
        if node not in self.cluster.down:
            seconds = self.rng.choice((self.rng.uniform(10.0, 60.0), self.rng.uniform(60.0, 400.0)))
            self._tell("host-reboot", node, f"for {seconds:.1f} s")
            self.cluster.reboot(node, seconds)

    def engine_crash(self) -> None:
        """An engine ends by itself."""
        host = self.cluster.hosts[self._node()]
        engines = host.engines()
        if engines:
            proc = self.rng.choice(engines)
            self._tell("engine-crash", host.name, str(proc))
            host.crash(proc, self.rng.choice((0, 1, -6, -9, -11)))

    def temper(self) -> None:
        """Engines that start from now on behave in another way."""
        host = self.cluster.hosts[self._node()]
        kind = self.rng.choice(("crash", "slow-start", "hang-on-term", "slow-exit", "linger", "launch-fails", "good"))
        self._tell(f"engines-{kind}", host.name)
        host.temper = {
            "crash": Temper(crash=0.7, crash_after=self.rng.choice((1.0, 30.0, 120.0))),
            "slow-start": Temper(slow_load=0.7),
            "hang-on-term": Temper(ignore_first_term=0.5, ignore_terms=0.4),
            "slow-exit": Temper(slow_exit=0.8),
            "linger": Temper(ignore_terms=0.6, linger=0.6, helper=0.5),
            "launch-fails": Temper(launch_fails=0.5),
            "good": Temper(),
        }[kind]

    def stranger(self) -> None:
        """Somebody else's process takes a port of the range."""
        name = self._node()
        span = self.cluster.plans[name].ports
        port = self.rng.randint(span.first, min(span.last, span.first + 3))
        self._tell("stray-port", name, f"port {port}")
        self.cluster.hosts[name].stranger(port, self.rng.uniform(5.0, 200.0))

    def pid_reused(self) -> None:
        """While the agent is away an engine ends and a stranger gets its pid."""
        name = self._node()
        host, agent = self.cluster.hosts[name], self.cluster.agents[name]
        engines = [proc for proc in host.engines() if proc.pid == min(host.procs)]
        if not engines or not agent.alive:
            return
        self._tell("pid-reused", name, str(engines[0]))
        self.cluster.crash_agent(name, self.rng.uniform(1.0, 20.0), graceful=False)
        host.crash(engines[0], 0)
        host.stranger(None, self.rng.uniform(20.0, 200.0))

    def disk(self) -> None:
        """The agent's disk is full or slow for a while."""
        disk = self.cluster.hosts[self._node()].disk
        if self.rng.random() < 0.5:
            self._tell("disk-full", "disk")
            disk.failing = True
        else:
            self._tell("disk-slow", "disk")
            disk.slow = self.rng.uniform(0.1, 5.0)

        def mend() -> None:
            disk.failing, disk.slow = False, 0.0

        self._while(self.rng.uniform(1.0, 60.0), mend)

    def device(self) -> None:
        """A GPU becomes unusable, or well again."""
        name = self._node()
        host, excluded = self.cluster.hosts[name], self.cluster.excluded[name]
        if not host.devices:
            return
        uuid = self.rng.choice(host.devices)
        if excluded.pop(uuid, None) is None:
            excluded[uuid] = "uncorrectable ECC errors"
        self._tell("device-health", name, f"{uuid} {excluded.get(uuid, 'well')}")
        agent = self.cluster.agents[name]
        if agent.alive and agent.agent.machine.booted:
            agent.run(agent.read_inventory)

    # ------------------------------------------------------------ routers

    def router_restart(self) -> None:
        """A router process ends and is replaced."""
        router = self.rng.choice(list(self.cluster.routers))
        if self.cluster.routers[router].alive:
            self._tell("router-restart", router)
            self.cluster.restart_router(router, self.rng.uniform(0.5, 20.0))
