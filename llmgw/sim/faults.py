"""Faults, each with a weight and a name that the summary counts.

One is drawn at a time, at exponential intervals. ``Storm.stop`` ends the injection;
``Cluster.calm`` mends what is broken.
"""

from collections.abc import Callable

from llmgw.sim.cluster import Cluster
from llmgw.sim.control_process import AGENTS, HOST
from llmgw.sim.host import Temper
from llmgw.sim.network import Connection, End
from llmgw.sim.people import People
from llmgw.sim.world import Process

LONGEST_PAUSE = 60.0

KINDS: dict[str, tuple[float, bool]] = {
    "reset": (4, True),
    "half-open": (3, True),
    "stall": (3, True),
    "answer-lost": (3, True),
    "refuse": (1, True),
    "partition": (3, True),
    "router-partition": (1, False),
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
    "control-stop": (1, True),
    "control-pause": (2, True),
    "store-restored": (1, True),
    "slow-journal": (1, True),
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


class Storm(People):
    """Injects faults into a cluster until told to stop; ``only`` these kinds if given."""

    def __init__(self, cluster: Cluster, only: tuple[str, ...] = ()) -> None:
        super().__init__(cluster)
        # Each seed has a mood of its own: some kinds often, some never; at times only a few.
        moods = [self.rng.choice((0.0, 0.3, 1.0, 1.0, 3.0)) for _ in KINDS]
        if not only and self.rng.random() < 0.3:
            only = tuple(self.rng.sample(list(KINDS), self.rng.randint(2, 6)))
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
        live = self.cluster.network.live(HOST)
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
        """The control plane's port turns connections away."""
        seconds = self.rng.uniform(1.0, 60.0)
        self._tell("connect-refused", HOST, f"for {seconds:.1f} s")
        self.cluster.network.refuse(AGENTS, seconds)

    def partition(self) -> None:
        """A node cannot reach the control plane; sometimes long enough to be lost."""
        node = self._node()
        long = self.rng.random() < 0.5 and not self.cluster.scenario.gentle
        seconds = self.rng.uniform(40.0, 400.0) if long else self.rng.uniform(1.0, 40.0)
        self._tell("partition", node, f"for {seconds:.1f} s")
        self.cluster.network.block(node, HOST)
        self._while(seconds, lambda: self.cluster.network.unblock(node, HOST))

    def router_partition(self) -> None:
        """A router cannot reach the control plane."""
        router = self.rng.choice(list(self.cluster.routers))
        seconds = self.rng.uniform(1.0, 120.0)
        self._tell("router-partition", router, f"for {seconds:.1f} s")
        self.cluster.network.block(router, HOST)
        self._while(seconds, lambda: self.cluster.network.unblock(router, HOST))

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

    def _pause(self, kind: str, process: Process) -> None:
        if not process.alive or process.paused:
            return
        seconds = self.rng.uniform(0.5, LONGEST_PAUSE)
        self._tell(kind, process.name, f"for {seconds:.1f} s")
        process.pause()
        self._while(seconds, lambda: process.resume() if process.paused else None)

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

    # ------------------------------------------------------------ control plane and routers

    def _delay(self) -> float:
        return self.rng.choice((self.rng.uniform(0.2, 5.0), self.rng.uniform(5.0, 120.0)))

    def control_crash(self) -> None:
        """SIGKILL to the control plane."""
        if self.cluster.control.alive:
            delay = self._delay()
            self._tell("control-crash", HOST, f"back in {delay:.1f} s")
            self.cluster.crash_control(delay, graceful=False)

    def control_crash_between_effects(self) -> None:
        """The control plane will die between two effects, soon."""
        self.cluster.control.fuse = self.rng.randint(0, 25)
        self._tell("control-crash-between-effects", HOST, f"after {self.cluster.control.fuse} effects")

    def control_stop(self) -> None:
        """The control plane is stopped with a goodbye and started again."""
        if self.cluster.control.up:
            self._tell("control-stop", HOST)
            self.cluster.crash_control(self._delay(), graceful=True)

    def control_pause(self) -> None:
        """SIGSTOP, then SIGCONT."""
        self._pause("control-pause", self.cluster.control)

    def store_restored(self) -> None:
        """The control plane comes back with an old store: a lower epoch."""
        if self.cluster.control.alive:
            durable = self.cluster.durable
            old = max(0, durable.epoch - self.rng.randint(1, 4))
            self._tell("store-restored", HOST, f"epoch {durable.epoch} -> {old}")
            self.cluster.crash_control(self._delay(), graceful=False)
            durable.epoch = old

    def slow_journal(self) -> None:
        """Commits take their time."""
        durable = self.cluster.durable
        durable.journal_delay = self.rng.uniform(0.2, 20.0)
        self._tell("slow-journal", HOST, f"up to {durable.journal_delay:.1f} s")

        def mend() -> None:
            durable.journal_delay = 0.0

        self._while(self.rng.uniform(5.0, 90.0), mend)

    def router_restart(self) -> None:
        """A router process ends and is replaced."""
        router = self.rng.choice(list(self.cluster.routers))
        if self.cluster.routers[router].alive:
            self._tell("router-restart", router)
            self.cluster.restart_router(router, self.rng.uniform(0.5, 20.0))
