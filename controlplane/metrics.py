"""Prometheus metrics of the control plane, read from its state at scrape time (OBS-01).

An unknown figure has no series. Each family is collected and rendered between two
looks of the hub at its other work, so that a scrape of a large fleet holds nobody up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import gevent
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.background import Background
from controlplane.driver import Driver
from controlplane.inbox import Inbox
from controlplane.journal import Journal
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.routers import RouterSeen
from controlplane.planning.view import NodeView
from controlplane.services.fleet import Fleet, Plain
from controlplane.services.status import Identity
from controlplane.store.access import StoreThreads
from llmgw.runtime.clock import Clock
from llmgw.runtime.stall import StallDetector
from llmgw.wire.messages import Device, DeviceUse, Measurements

Sample = tuple[tuple[str, ...], float | None]
Maker = Callable[[], Iterable[Metric]]


@dataclass(frozen=True)
class Sources:
    """What the figures are read from."""

    identity: Identity
    fleet: Fleet
    driver: Driver
    inbox: Inbox
    agents: AgentListener
    journal: Journal
    store: StoreThreads
    background: Background
    stall: StallDetector
    clock: Clock
    routers: Callable[[], Iterable[RouterSeen]]


class _One(Collector):
    """A registry's view of the families of one maker."""

    def __init__(self, make: Maker) -> None:
        self._make = make

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        return self._make()

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are only known once there is something to collect."""
        return ()


class Metrics:
    """Registries of our own, one per group of families, rendered one after another."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._registries: list[CollectorRegistry] = []
        makers: list[Maker] = [self._process, *(self._family(row) for row in _NODES)]
        makers += [self._devices(row) for row in _DEVICES]
        makers += [self._shards, self._models]
        for maker in makers:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(_One(maker))
            self._registries.append(registry)

    def render(self) -> bytes:
        """The text format."""
        parts = []
        for registry in self._registries:
            parts.append(generate_latest(registry))
            gevent.sleep(0)
        return b"".join(parts)

    def _family(self, row: "_NodeRow") -> Maker:
        def make() -> Iterator[Metric]:
            now = self._sources.clock.monotonic()
            nodes = self._sources.fleet.view.nodes.values()
            samples = (((node.id,), row.read(node, self._sources.fleet.measurements(node, now))) for node in nodes)
            yield _gauge(row.name, row.help, ("node",), samples)

        return make

    def _devices(self, row: "_DeviceRow") -> Maker:
        def make() -> Iterator[Metric]:
            yield _gauge(row.name, row.help, ("node", "device", "class"), self._device_samples(row))

        return make

    def _device_samples(self, row: "_DeviceRow") -> Iterator[Sample]:
        now = self._sources.clock.monotonic()
        for node in self._sources.fleet.view.nodes.values():
            if node.inventory is None:
                continue
            uses = {use.uuid: use for use in self._sources.fleet.measurements(node, now).devices}
            for device in node.inventory.devices:
                value = row.read(device, uses.get(device.uuid, DeviceUse(uuid=device.uuid)))
                yield (node.id, device.uuid, device.device_class), value

    def _shards(self) -> Iterator[Metric]:
        now = self._sources.clock.monotonic()
        view = self._sources.fleet.view
        labels = ("node", "model", "replica", "rank")
        cores: list[Sample] = []
        memory: list[Sample] = []
        for node in view.nodes.values():
            for use in self._sources.fleet.measurements(node, now).shards:
                replica = view.replicas.get(use.replica_id)
                if replica is not None:
                    key = (node.id, replica.model, replica.id, str(use.rank))
                    cores.append((key, use.cpu_cores))
                    memory.append((key, use.memory_bytes))
        yield _gauge("llmgw_shard_cpu_cores", "Cores a shard's processes use.", labels, cores)
        yield _gauge("llmgw_shard_memory_bytes", "Resident memory of a shard's processes.", labels, memory)

    def _models(self) -> Iterator[Metric]:
        models = list(self._sources.fleet.models())
        rows: tuple[tuple[str, str, Callable[[Plain], float | None]], ...] = (
            ("llmgw_model_desired_replicas", "Replicas a model should have now.", lambda m: m["wanted"]),
            ("llmgw_model_ready_replicas", "Replicas that are ready.", lambda m: m["ready"]),
            ("llmgw_model_consecutive_failures", "Failed starts in a row.", lambda m: m["failures"]),
            ("llmgw_model_parked", "1 if the model failed too often and is not tried.", lambda m: m["parked"]),
            ("llmgw_model_unplaceable", "1 if no node can take the model.", lambda m: m["state"] == "unplaceable"),
        )
        for name, text, read in rows:
            yield _gauge(name, text, ("model",), (((model["name"],), read(model)) for model in models))

    def _process(self) -> Iterator[Metric]:
        sources = self._sources
        info = GaugeMetricFamily("llmgw_controlplane_info", "Version of the control plane.", labels=("version", "boot"))
        info.add_metric((sources.identity.version, sources.identity.boot), 1)
        yield info
        statuses = dict.fromkeys(("connected", "reconnecting", "unreachable", "lost"), 0)
        for node in sources.fleet.view.nodes.values():
            statuses[node.shown] += 1
        yield _gauge(
            "llmgw_nodes", "Nodes by status.", ("status",), (((word,), count) for word, count in statuses.items())
        )
        gauges: Mapping[str, tuple[str, float]] = {
            "llmgw_leadership_epoch": ("Epoch of this control plane's commands.", sources.identity.epoch()),
            "llmgw_settling": ("1 while nothing is placed after a start.", sources.fleet.view.settling.active),
            "llmgw_agent_sessions": ("Agents in session.", sources.agents.sessions),
            "llmgw_agent_connections_pending": ("Connections that have not said hello.", sources.agents.pending),
            "llmgw_routers": ("Router processes that reported of late.", len(list(sources.routers()))),
            "llmgw_inbox_depth": ("Events that wait for the writer.", len(sources.inbox)),
            "llmgw_hub_stall_longest_seconds": ("Longest time the event loop was held.", sources.stall.longest),
            "llmgw_loop_pass_seconds": ("Duration of the last pass.", sources.driver.pass_seconds),
            "llmgw_store_waiting": ("Calls that wait for the store.", sources.store.waiting),
            "llmgw_store_away_seconds": (
                "Time since the store last answered, 0 while it does.",
                sources.store.failing_for or 0.0,
            ),
            "llmgw_usage_waiting_bytes": (
                "Usage on disk that is not in the store yet.",
                sources.background.waiting_bytes,
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value)
        counters: Mapping[str, tuple[str, float]] = {
            "llmgw_hub_stall_seconds": ("Time the event loop was held, in all.", sources.stall.total),
            "llmgw_hub_stalls": ("Times the event loop was held.", sources.stall.count),
            "llmgw_loop_passes": ("Passes of the loop.", sources.driver.passes),
            "llmgw_loop_busy_seconds": ("Time from begin to end of all passes.", sources.driver.pass_seconds_total),
            "llmgw_loop_faults": ("Unexpected errors in the loop.", sources.driver.faults),
            "llmgw_inbox_refused": ("Events turned away for want of room.", sources.inbox.refused),
            "llmgw_heartbeats_coalesced": ("Heartbeats replaced by a newer one.", sources.inbox.coalesced),
            "llmgw_agent_connections_refused": ("Connections turned away before hello.", sources.agents.refused),
            "llmgw_agent_bad_frames": ("Sessions ended by a frame.", sources.agents.bad_frames),
            "llmgw_agent_unknown_messages": ("Messages of unknown kind, ignored.", sources.agents.unknown_messages),
            "llmgw_store_errors": ("Calls the store did not answer.", sources.store.failures),
            "llmgw_records_set_aside": (
                "Records of usage or events that were damaged, or that the store refuses.",
                sources.background.set_aside,
            ),
            "llmgw_journal_errors": ("Failed writes of the decision journal.", sources.journal.failures),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value)
        yield _gauge(
            "llmgw_background_failing",
            "1 if a part of the work between disk and store does not get on.",
            ("part",),
            (((part,), float(bool(why))) for part, why in sources.background.failing.items()),
        )
        forgotten = CounterMetricFamily("llmgw_forgotten_rows", "Rows that were too old, by kind.", labels=("kind",))
        for kind, rows in sources.background.forgotten.items():
            forgotten.add_metric((kind,), rows)
        yield forgotten


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, figure in samples:
        if figure is not None:
            family.add_metric(values, float(figure))
    return family


@dataclass(frozen=True)
class _NodeRow:
    name: str
    help: str
    read: Callable[[NodeView, Measurements], float | None]


@dataclass(frozen=True)
class _DeviceRow:
    name: str
    help: str
    read: Callable[[Device, DeviceUse], float | None]


_NODES = (
    _NodeRow("llmgw_node_up", "1 if the node is in session.", lambda n, _: n.registered),
    _NodeRow("llmgw_node_cordoned", "1 if nothing new is placed on the node.", lambda n, _: n.cordon is not None),
    _NodeRow("llmgw_node_cpus", "Logical CPUs.", lambda n, _: n.inventory.cpu.count if n.inventory else None),
    _NodeRow("llmgw_node_cpu_utilization_percent", "Use of all CPUs.", lambda _, m: m.cpu_percent),
    _NodeRow("llmgw_node_load", "Load average over one minute.", lambda _, m: m.load1),
    _NodeRow(
        "llmgw_node_memory_total_bytes", "Memory.", lambda n, _: n.inventory.memory_bytes if n.inventory else None
    ),
    _NodeRow("llmgw_node_memory_used_bytes", "Memory in use.", lambda _, m: m.memory_used_bytes),
    _NodeRow("llmgw_node_memory_available_bytes", "Memory available.", lambda _, m: m.memory_available_bytes),
)

_DEVICES = (
    _DeviceRow("llmgw_device_excluded", "1 if the device must not be used.", lambda d, _: d.excluded is not None),
    _DeviceRow("llmgw_device_memory_total_bytes", "Memory of the device.", lambda d, _: d.memory_bytes),
    _DeviceRow("llmgw_device_memory_used_bytes", "Memory in use.", lambda _, u: u.memory_used_bytes),
    _DeviceRow("llmgw_device_utilization_percent", "Utilisation.", lambda _, u: u.utilization_percent),
    _DeviceRow("llmgw_device_temperature_celsius", "Temperature.", lambda _, u: u.temperature_celsius),
    _DeviceRow("llmgw_device_power_watts", "Power drawn.", lambda _, u: u.power_watts),
)
