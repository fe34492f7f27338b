"""What befalls control planes and their store: the kinds of faults that move the lead."""

from collections.abc import Iterable

from llmgw.sim.control_process import ControlProcess
from llmgw.sim.people import People
from llmgw.sim.store import STORE
from llmgw.sim.world import Process

LONGEST_PAUSE = 60.0
"""Seconds: twice the life of a claim."""

FARTHEST_STEP = 100_000.0
"""Seconds by which a wall clock may step."""


class Leaders(People):
    """Each method is a kind of fault. Whoever leads is hit more often than others."""

    def _control_host(self) -> str:
        """A control plane's host: mostly the leader's."""
        leader = self.cluster.leader
        if leader is not None and self.rng.random() < 0.6:
            return leader.site.host
        return self.rng.choice(list(self.cluster.sites))

    def _control(self) -> ControlProcess:
        return self.cluster.controls[self._control_host()]

    @staticmethod
    def _role(control: ControlProcess) -> str:
        return "leader" if control.leading else "standby"

    def _cut(self, ones: Iterable[str], others: Iterable[str], seconds: float) -> None:
        """Nothing passes between any of the one side and any of the other for a while."""
        network = self.cluster.network
        pairs = [(one, other) for one in ones for other in others if one != other]
        for one, other in pairs:
            network.block(one, other)

        def mend() -> None:
            for one, other in pairs:
                network.unblock(one, other)

        self._while(seconds, mend)

    def _pause(self, kind: str, process: Process) -> None:
        if not process.alive or process.paused:
            return
        seconds = self.rng.uniform(0.5, LONGEST_PAUSE)
        self._tell(kind, process.name, f"for {seconds:.1f} s")
        process.pause()
        self._while(seconds, lambda: process.resume() if process.paused else None)

    def _delay(self) -> float:
        return self.rng.choice((self.rng.uniform(0.2, 5.0), self.rng.uniform(5.0, 120.0)))

    # ------------------------------------------------------------ control planes

    def control_crash(self) -> None:
        """SIGKILL to a control plane."""
        control = self._control()
        if control.alive:
            delay = self._delay()
            self._tell(f"{self._role(control)}-crash", control.name, f"back in {delay:.1f} s")
            self.cluster.crash_control(control, delay, graceful=False)

    def control_crash_between_effects(self) -> None:
        """A control plane will die between two effects, soon."""
        control = self._control()
        control.fuse = self.rng.randint(0, 25)
        self._tell(f"{self._role(control)}-crash-between-effects", control.name, f"after {control.fuse} effects")

    def control_stop(self) -> None:
        """A control plane is stopped, with a goodbye, and started again."""
        control = self._control()
        if control.alive:
            self._tell(f"{self._role(control)}-stop", control.name)
            self.cluster.crash_control(control, self._delay(), graceful=True)

    def control_pause(self) -> None:
        """SIGSTOP, then SIGCONT, perhaps long after another one took over."""
        control = self._control()
        self._pause(f"{self._role(control)}-pause", control)

    def control_blackout(self) -> None:
        """No control plane is there for a while."""
        seconds = self.rng.uniform(5.0, 120.0)
        self._tell("control-blackout", "person", f"for {seconds:.1f} s")
        graceful = self.rng.random() < 0.3
        for control in self.cluster.controls.values():
            if control.alive:
                self.cluster.crash_control(control, seconds * self.rng.uniform(0.9, 1.1), graceful=graceful)

    def control_isolated(self) -> None:
        """A control plane reaches nobody, or only some: the others, the store, nodes, routers."""
        host = self._control_host()
        cluster = self.cluster
        long = self.rng.random() < 0.5 and not cluster.scenario.gentle
        seconds = self.rng.uniform(20.0, 200.0) if long else self.rng.uniform(1.0, 40.0)
        # A router that is cut off goes on with endpoints that are stopped meanwhile.
        routers = [] if cluster.scenario.gentle else list(cluster.routers)
        sides = (list(cluster.sites), [STORE], list(cluster.hosts), routers)
        cut = [name for side in sides if self.rng.random() < 0.7 for name in side]
        self._tell("control-isolated", host, f"from {', '.join(cut)} for {seconds:.1f} s")
        self._cut([host], cut, seconds)

    def host_clock(self) -> None:
        """The wall clock of a control plane's host steps."""
        host = self._control_host()
        wall = self.cluster.sites[host].wall
        step = self._step()
        wall.ahead += step
        self._tell("host-clock-steps", host, f"by {step:.0f} s")

    def _step(self) -> float:
        return self.rng.choice((-1, 1)) * self.rng.choice((self.rng.uniform(1.0, 60.0), FARTHEST_STEP))

    # ------------------------------------------------------------ the store

    def store_partition(self) -> None:
        """A control plane cannot reach the store."""
        host = self._control_host()
        seconds = self.rng.uniform(1.0, 120.0)
        self._tell("store-partition", host, f"for {seconds:.1f} s")
        self._cut([host], [STORE], seconds)

    def store_away(self) -> None:
        """The store is stopped for a while."""
        seconds = self._outage()
        self._tell("store-away", STORE, f"for {seconds:.1f} s")
        self.cluster.store.stop()
        self._while(seconds, self.cluster.store.start)

    def _outage(self) -> float:
        return self.rng.choice((self.rng.uniform(0.5, 10.0), self.rng.uniform(10.0, 120.0)))

    def store_frozen(self) -> None:
        """The store stands still, and then does everything that it was asked meanwhile."""
        seconds = self._outage()
        self._tell("store-frozen", STORE, f"for {seconds:.1f} s")
        self.cluster.store.freeze()
        self._while(seconds, self.cluster.store.thaw)

    def store_slow(self) -> None:
        """The store takes its time, and some answers are lost."""
        store = self.cluster.store
        store.slow = self.rng.choice((0.0, 1.0, 6.0))
        store.losing = self.rng.choice((0.0, 0.3, 0.6))
        self._tell("store-slow", STORE, f"up to {store.slow:g} s, {store.losing:.0%} of the answers are lost")

        def mend() -> None:
            store.slow = store.losing = 0.0

        self._while(self.rng.uniform(5.0, 90.0), mend)

    def store_clock(self) -> None:
        """The store's clock steps."""
        step = self._step()
        self.cluster.store.clock_ahead += step
        self._tell("store-clock-steps", STORE, f"by {step:.0f} s")

    def store_restored(self) -> None:
        """An older copy of the store takes its place, by ``llmgw store restore`` or as it is,
        with all control planes stopped, as one should, or while they run. A copy as it is that
        comes while they run says that somebody holds the lease: of one that says that nobody
        does, a process that has just started knows no better."""
        stopped, by_command = self.rng.random() < 0.5, self.rng.random() < 0.5
        back = self.rng.randint(1, 30)
        how = f"{'by the command' if by_command else 'as it is'}, {'with all stopped' if stopped else 'while they run'}"
        self._tell("store-restored", STORE, how)
        self.cluster.store.stop()

        def back_again() -> None:
            if not self.on:
                return  # calm brought it back
            if stopped:
                for control in self.cluster.controls.values():
                    if control.alive:
                        self.cluster.crash_control(control, self._delay(), graceful=False)
            self.cluster.store.restore(back, held=not stopped and not by_command, by_command=by_command)
            self.cluster.store.start()

        self._while(self.rng.uniform(0.5, 20.0), back_again)

    def late_claim(self) -> None:
        """The next question of a control plane gets to the store long after it gave up."""
        host = self._control_host()
        seconds = self.rng.uniform(2.0, 60.0)
        self._tell("late-claim", host, f"by {seconds:.1f} s")
        self.cluster.store.hold_up[host] = seconds

    def cut_at_takeover(self) -> None:
        """Whoever takes the lease next never hears that it has, and cannot ask for about as
        long as its claim lasts."""
        seconds = self.cluster.scenario.times.ttl * self.rng.uniform(0.7, 1.1)

        def trap(host: str) -> None:
            self._tell("cut-at-takeover", host, f"for {seconds:.1f} s")
            self._cut([host], [STORE], seconds)

        self.cluster.store.trap = trap

    def slow_journal(self) -> None:
        """Commits take their time."""
        durable = self.cluster.durable
        durable.journal_delay = self.rng.uniform(0.2, 20.0)
        self._tell("slow-journal", "cp", f"up to {durable.journal_delay:.1f} s")

        def mend() -> None:
            durable.journal_delay = 0.0

        self._while(self.rng.uniform(5.0, 90.0), mend)

    # ------------------------------------------------------------ many nodes at once

    def mass_silence(self) -> None:
        """Most nodes cannot reach any control plane, all at once."""
        cluster = self.cluster
        if cluster.silenced:
            return
        names = list(cluster.hosts)
        most = self.rng.sample(names, self.rng.randint(len(names) // 2 + 1, len(names)))
        seconds = self.rng.uniform(60.0, 900.0)
        self._tell("mass-silence", "network", f"{', '.join(most)} for {seconds:.1f} s")
        cluster.cut_off(most)
        self._while(seconds, lambda: cluster.cut_off([]))

    def accept_loss(self) -> None:
        """A person says that the nodes that went silent are lost."""
        self._tell("accept-loss", "person")
        self.cluster.accept_loss("ops")
