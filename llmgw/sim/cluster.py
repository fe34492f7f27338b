"""The simulated site: hosts with agents, a control plane, routers, a network.

Holds what exists and offers the verbs that faults and people use. After a crash it
starts the process again, as a service manager does.
"""

import random

from controlplane import events
from controlplane.catalog.model import Catalog, Model
from controlplane.listeners.tokens import FleetTokens
from controlplane.publish.providers import KeyFile
from llmgw.runtime.settings import Address
from llmgw.sim.agent_process import AgentProcess
from llmgw.sim.control_process import AGENTS, ControlProcess, Durable
from llmgw.sim.host import Host, Temper
from llmgw.sim.invariants import Monitor
from llmgw.sim.network import Network
from llmgw.sim.router_process import RouterProcess
from llmgw.sim.scenario import NodePlan, Scenario, catalog_of
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
        tokens = FleetTokens(
            {name: self.token(name) for name in self.hosts},
            {name: f"token-of-router-{name}" for name in scenario.routers},
        )
        self.durable = Durable(scenario.catalog, tokens)
        self._keys = 0
        for model in scenario.catalog.models.values():
            if model.external is not None:
                self.write_key(model.name)
        self.monitor = Monitor(world, self.durable, self.hosts)
        self.clock = HostClock(world, self.rng.uniform(10.0, 1e6), self.rng.uniform(0.99, 1.01))
        self.excluded: dict[str, dict[str, str]] = {name: {} for name in self.hosts}
        self.agents: dict[str, AgentProcess] = {}
        self.routers: dict[str, RouterProcess] = {}
        self.down: set[str] = set()
        """Hosts that are off."""
        self._generation = 0
        self.monitor.serving = scenario.gentle
        self.monitor.in_flight = self._in_flight
        self.monitor.held = self._told_held
        self.control = self._new_control()
        for name in self.hosts:
            self.start_agent(name)
        for name in scenario.routers:
            self.start_router(name)
        world.after_step = self.monitor.after_step
        world.after(LOOK, self._look)

    # ------------------------------------------------------------ control plane

    def _new_control(self) -> ControlProcess:
        control = ControlProcess(self.world, self.network, self.clock, self.durable, self.settings)
        control.on_death = lambda: self.control_ended(1.0)
        control.start()
        return control

    def control_ended(self, delay: float) -> None:
        """It is gone; the service manager starts it again."""
        self.world.after(delay, self._control_again)

    def _control_again(self) -> None:
        if not self.control.alive:
            self.control = self._new_control()

    def crash_control(self, delay: float, *, graceful: bool) -> None:
        """End the control plane; it comes back ``delay`` seconds after its end."""
        control = self.control
        control.on_death = lambda: self.control_ended(delay)
        if graceful and control.up:
            control.run(control.shut_down)
        else:
            control.end()

    def tell(self, event: events.Event) -> None:
        """A person or a file tells the control plane that runs now."""
        self.control.run(self.control.put, event)

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
        """A person takes a node's token away, or gives it back."""
        nodes = {name: self.token(name) for name in self.hosts if name in self.durable.tokens.nodes}
        nodes.pop(node, None)
        if enrolled:
            nodes[node] = self.token(node)
        self.durable.tokens = FleetTokens(nodes, self.durable.tokens.routers)
        self.control.run(self.control.tokens_changed)

    @staticmethod
    def token(node: str) -> str:
        """The token on a node's disk."""
        return f"token-of-node-{node}"

    # ------------------------------------------------------------ agents

    def start_agent(self, name: str) -> None:
        """Start a node's agent, if its host is on and none runs."""
        current = self.agents.get(name)
        if name in self.down or (current is not None and current.alive):
            return
        self._generation += 1
        host, _, port = AGENTS.rpartition(":")
        agent = AgentProcess(
            self.hosts[name],
            self.network,
            addresses=(Address(host, int(port)),),
            token=self.token(name),
            ports=self.plans[name].ports,
            generation=self._generation,
        )
        agent.node.excluded = self.excluded[name]
        agent.node.labels = self.plans[name].labels
        agent.on_accepted = self.monitor.accepted
        agent.on_death = lambda: self._agent_ended(name, 1.0)
        self.agents[name] = agent
        agent.start()

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
            token=self.durable.tokens.routers[name],
            control=lambda: self.control,
            hosts=self.hosts,
            generation=self._generation,
            saved=before.table if before is not None else None,
        )
        self.routers[name].on_failure = self.monitor.request_failed
        self.routers[name].start()

    def restart_router(self, name: str, delay: float) -> None:
        """End a router; it comes back later."""
        self.routers[name].kill()
        self.world.after(delay, self.start_router, name)

    def _look(self) -> None:
        self.monitor.look_for_ghosts(self.agents.values())
        self.world.after(LOOK, self._look)

    def _in_flight(self, endpoint: str) -> list[tuple[str, int]]:
        publisher = self.control.publisher
        return [
            (name, count)
            for name, router in self.routers.items()
            if publisher is not None and (count := router.certain_load(publisher.generation, endpoint))
        ]

    def _told_held(self, node: str) -> list[str]:
        loop = self.control.loop
        if loop is None or node not in loop.view.nodes:
            return []
        labels = {**self.plans[node].labels, **loop.view.nodes[node].own_labels}
        return [f"{label}={value}" for label, value in labels.items() if f"{label}={value}" in loop.view.holds]

    # ------------------------------------------------------------ peace

    def calm(self) -> None:
        """Faults stop: what is broken is mended, what is paused goes on, what is down
        comes back. People look at what is parked and ask for another try."""
        self.network.heal()
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
            if name not in self.durable.tokens.nodes:
                self.enrol(name, enrolled=True)
        for process in (self.control, *self.agents.values(), *self.routers.values()):
            process.fuse = None
            if process.paused:
                process.resume()
        for agent in self.agents.values():
            agent.link.trap = None
            if agent.alive and agent.agent.machine.booted:
                agent.run(agent.read_inventory)
