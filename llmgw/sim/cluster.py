"""The simulated site: hosts with agents, control planes, routers, a store, a network.

Holds what exists and offers the verbs that faults and people use. After a crash it
starts the process again, as a service manager does.
"""

import random

from controlplane import events
from controlplane.catalog.model import Catalog, Model
from controlplane.publish.providers import KeyFile
from llmgw.runtime.settings import Address
from llmgw.sim.agent_process import AgentProcess
from llmgw.sim.control_process import AGENTS_PORT, ControlProcess, ControlSite
from llmgw.sim.durable import Durable
from llmgw.sim.host import Host, Temper
from llmgw.sim.invariants import Monitor
from llmgw.sim.network import Network
from llmgw.sim.router_process import RouterProcess
from llmgw.sim.scenario import NodePlan, Scenario, catalog_of
from llmgw.sim.store import SimStore
from llmgw.sim.term import Term
from llmgw.sim.wall import Wall
from llmgw.sim.world import HostClock, World

LOOK = 1.0
"""Seconds between two looks for what agents should have noticed."""


class Cluster:
    """See the module."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.network = Network(world)
        self.rng: random.Random = world.rng("cluster")
        self.settings = scenario.settings
        self.spare = list(scenario.spare)
        self.plans: dict[str, NodePlan] = {plan.name: plan for plan in scenario.nodes}
        self.hosts = {
            plan.name: Host(world, plan.name, plan.memory, plan.cores, plan.devices) for plan in scenario.nodes
        }
        self.store = SimStore(world, self.network)
        self.durable = Durable(scenario.catalog, set(self.hosts))
        self._keys = 0
        for model in scenario.catalog.models.values():
            if model.external is not None:
                self.write_key(model.name)
        self.monitor = Monitor(world, self.durable, self.store, self.hosts)
        self.sites = {f"cp{number}": self._site(f"cp{number}") for number in range(1, scenario.controls + 1)}
        self.excluded: dict[str, dict[str, str]] = {name: {} for name in self.hosts}
        self.controls: dict[str, ControlProcess] = {}
        self.agents: dict[str, AgentProcess] = {}
        self.routers: dict[str, RouterProcess] = {}
        self.down: set[str] = set()
        """Hosts that are off."""
        self._cut: list[str] = []
        self._generation = 0
        self.monitor.serving = scenario.gentle
        self.monitor.controls = self.controls
        self.monitor.in_flight = self._in_flight
        self.monitor.held = self._told_held
        self.monitor.vouched = self._vouched
        for host in self.sites:
            self.start_control(host)
        for name in self.hosts:
            self.start_agent(name)
        for name in scenario.routers:
            self.start_router(name)
        world.after_step = self.monitor.after_step
        world.after(LOOK, self._look)

    # ------------------------------------------------------------ control planes

    def _site(self, host: str) -> ControlSite:
        clock = HostClock(self.world, self.rng.uniform(10.0, 1e6), self.rng.uniform(0.99, 1.01))
        return ControlSite(host, clock, Wall(self.world, clock))

    @property
    def leader(self) -> ControlProcess | None:
        """Who leads beyond doubt; if nobody, who leads for all it knows."""
        terms = [control for control in self.controls.values() if control.leading]
        return next((control for control in terms if control.sure), terms[0] if terms else None)

    @property
    def term(self) -> Term | None:
        """The leader's term."""
        return self.leader.term if self.leader is not None else None

    def start_control(self, host: str) -> None:
        """Start a control plane, if none runs there."""
        if host in self.controls and self.controls[host].alive:
            return
        control = ControlProcess(
            self.world,
            self.network,
            self.sites[host],
            durable=self.durable,
            store=self.store,
            settings=self.settings,
            times=self.scenario.times,
            monitor=self.monitor,
            alone=self.scenario.alone,
            controls=lambda: self.controls,
        )
        control.on_death = lambda: self.control_ended(host, 1.0)
        self.controls[host] = control
        control.start()

    def control_ended(self, host: str, delay: float) -> None:
        """It is gone; the service manager starts it again."""
        self.world.after(delay, self.start_control, host)

    def crash_control(self, control: ControlProcess, delay: float, *, graceful: bool) -> None:
        """End a control plane; it comes back ``delay`` seconds after its end."""
        control.on_death = lambda: self.control_ended(control.site.host, delay)
        if graceful:
            control.run(control.shut_down)
        else:
            control.end()

    def tell(self, event: events.Event) -> None:
        """A person or a file tells whoever leads, for all it knows."""
        for control in self.controls.values():
            control.run(control.put, event)

    def set_catalog(self, catalog: Catalog) -> None:
        """The catalog file changed, and was read."""
        self.durable.catalog = catalog
        self.tell(events.CatalogChanged(catalog))

    def change_model(self, name: str, model: Model | None) -> None:
        """Replace one model, or take it out (``None``)."""
        models = dict(self.durable.catalog.models)
        if model is None:
            del models[name]
        else:
            models[name] = model
        self.set_catalog(catalog_of(list(models.values())))

    def set_cordon(self, node: str, cordon: events.Cordon | None) -> None:
        """A person cordons or uncordons: first in the store, then told."""
        if cordon is None:
            self.durable.cordons.pop(node, None)
        else:
            self.durable.cordons[node] = cordon
        self.tell(events.CordonSet(node, cordon))

    def set_labels(self, node: str, labels: dict[str, str]) -> None:
        """A person labels a node: these and no others."""
        self.durable.labels[node] = labels
        self.tell(events.LabelsSet(node, labels))

    def set_holds(self, holds: dict[str, events.Cordon]) -> None:
        """The domains that people hold from now on."""
        self.durable.holds = holds
        self.tell(events.HoldsSet(dict(holds)))

    def set_serving(self, *, stopped: bool) -> None:
        """``llmgw stop`` and ``llmgw start``."""
        self.durable.serving = events.ServingSet(stopped, "ops")
        self.tell(self.durable.serving)

    def labels(self, node: str) -> dict[str, str]:
        """A node's labels: the agent's, and over them people's."""
        return {**self.plans[node].labels, **self.durable.labels.get(node, {})}

    def held(self, node: str) -> bool:
        """Whether people want nothing new on a node, or in a domain it is in."""
        domains = {f"{label}={value}" for label, value in self.labels(node).items()}
        return node in self.durable.cordons or bool(domains & self.durable.holds.keys())

    def write_key(self, name: str) -> None:
        """A person writes an external model's key file, with a new key."""
        self._keys += 1
        self.durable.key_files[f"/keys/{name}"] = KeyFile(key=f"key-{self._keys}-of-{name}")

    def enrol(self, node: str, *, enrolled: bool) -> None:
        """A person removes a node, or lets it join anew."""
        if enrolled:
            self.durable.enrolled.add(node)
        else:
            self.durable.enrolled.discard(node)
            self.monitor.removed(node)
        for control in self.controls.values():
            control.run(control.enrolment_changed)

    @property
    def silenced(self) -> bool:
        """Whether nodes are cut off together now."""
        return bool(self._cut)

    def cut_off(self, nodes: list[str]) -> None:
        """These nodes reach no control plane from now on, and all others do again. Those
        that were in session with the leader went silent together."""
        for node in self._cut:
            for host in self.sites:
                self.network.unblock(node, host)
        self._cut = nodes
        for node in nodes:
            for host in self.sites:
                self.network.block(node, host)
        leader = self.leader
        heard = {node for node in nodes if leader is not None and self._in_session(node, leader)}
        self.monitor.silenced(heard)

    def _in_session(self, node: str, leader: ControlProcess) -> bool:
        agent = self.agents[node]
        welcome = agent.agent.session.welcome
        known = leader.term.loop.view.nodes.get(node) if leader.term is not None else None
        return (
            agent.alive
            and not agent.paused
            and welcome is not None
            and welcome.leader == leader.owner
            and known is not None
            and known.registered
        )

    def accept_loss(self, actor: str) -> None:
        """A person says that the nodes that are silent are lost (REC-11)."""
        self.monitor.accepted_at = self.world.now
        loss = self.term.loop.view.mass_loss if self.term is not None else None
        if loss is not None:
            self.tell(events.LossAccepted(loss.nodes, actor))

    # ------------------------------------------------------------ agents

    def start_agent(self, name: str) -> None:
        """Start a node's agent, if its host is on and none runs."""
        current = self.agents.get(name)
        if name in self.down or (current is not None and current.alive):
            return
        self._generation += 1
        agent = AgentProcess(
            self.hosts[name],
            self.network,
            addresses=self._addresses(name),
            ports=self.plans[name].ports,
            generation=self._generation,
        )
        agent.node.excluded = self.excluded[name]
        agent.node.labels = self.plans[name].labels
        agent.watch = self.monitor
        agent.on_death = lambda: self._agent_ended(name, 1.0)
        self.agents[name] = agent
        agent.start()

    def _addresses(self, node: str) -> tuple[Address, ...]:
        """Where an agent reaches the control planes, in an order of its own."""
        hosts = list(self.sites)
        first = int(node.removeprefix("n")) % len(hosts)
        return tuple(Address(host, AGENTS_PORT) for host in (*hosts[first:], *hosts[:first]))

    def _agent_ended(self, name: str, delay: float) -> None:
        self.world.after(delay, self.start_agent, name)

    def crash_agent(self, name: str, delay: float, *, graceful: bool) -> None:
        """End an agent; it comes back ``delay`` seconds after its end."""
        agent = self.agents[name]
        agent.on_death = lambda: self._agent_ended(name, delay)
        if graceful:
            agent.run(agent.shut_down)
        else:
            agent.end(graceful=False)

    def reboot(self, name: str, seconds: float) -> None:
        """A host goes down without a word and is back later."""
        self.down.add(name)
        for connection in self.network.live(name):
            connection.drop(None)
        agent = self.agents[name]
        agent.power_off()
        self.hosts[name].reboot()
        self.world.after(seconds, self._booted, name)

    def _booted(self, name: str) -> None:
        self.down.discard(name)
        self.start_agent(name)

    # ------------------------------------------------------------ routers

    def start_router(self, name: str) -> None:
        """Start a router process, with the table of the one before."""
        self._generation += 1
        before = self.routers.get(name)
        self.routers[name] = RouterProcess(
            self.world,
            self.network,
            name=name,
            controls=lambda: self.controls,
            hosts=self.hosts,
            generation=self._generation,
            saved=before.table if before is not None else None,
        )
        self.routers[name].on_failure = self.monitor.request_failed
        self.routers[name].on_table = self.monitor.took_table
        self.routers[name].start()

    def restart_router(self, name: str, delay: float) -> None:
        """End a router; it comes back later."""
        self.routers[name].kill()
        self.world.after(delay, self.start_router, name)

    def _look(self) -> None:
        self.monitor.look_for_ghosts(self.agents.values())
        self.monitor.look_for_unaware(lambda one, other: not self.network.blocked(one, other))
        self.world.after(LOOK, self._look)

    def _in_flight(self, term: Term, endpoint: str) -> list[tuple[str, int]]:
        return [
            (name, count)
            for name, router in self.routers.items()
            if (count := router.certain_load(term.publisher.generation, endpoint))
        ]

    def _vouched(self, term: Term, endpoint: str) -> list[tuple[str, float]]:
        found = ((name, router.vouches(term, endpoint)) for name, router in self.routers.items())
        return [(name, ago) for name, ago in found if ago is not None]

    def _told_held(self, term: Term, node: str) -> list[str]:
        view = term.loop.view
        if node not in view.nodes:
            return []
        labels = {**self.plans[node].labels, **view.nodes[node].own_labels}
        return [f"{label}={value}" for label, value in labels.items() if f"{label}={value}" in view.holds]

    # ------------------------------------------------------------ peace

    def calm(self) -> None:
        """Faults stop: what is broken is mended, what is paused goes on, what is down
        comes back. People look at what is parked and ask for another try."""
        self.cut_off([])
        self.network.heal()
        self.store.mend()
        self.durable.journal_delay = 0.0
        if self.durable.serving.stopped:
            self.set_serving(stopped=False)
        for model in self.durable.catalog.models.values():
            if model.external is not None and model.external.api_key_file not in self.durable.key_files:
                self.write_key(model.name)
        for name, host in self.hosts.items():
            host.calm = True
            host.temper = Temper(ignore_first_term=0.0)
            host.disk.failing = False
            host.disk.slow = 0.0
            self.excluded[name].clear()
            if name not in self.durable.enrolled:
                self.enrol(name, enrolled=True)
        for process in (*self.controls.values(), *self.agents.values(), *self.routers.values()):
            process.fuse = None
            if process.paused:
                process.resume()
        for agent in self.agents.values():
            agent.link.trap = None
            if agent.alive and agent.agent.machine.booted:
                agent.run(agent.read_inventory)
