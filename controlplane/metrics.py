"""Prometheus metrics of the control plane, read from its state at scrape time (OBS-01).

An unknown figure has no series. A large fleet's are rendered in slices, so that a scrape
holds nobody up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import gevent
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.background import Background
from controlplane.driver import Driver
from controlplane.exposition import Family, Sample
from controlplane.identities import Credentials
from controlplane.inbox import Inbox
from controlplane.journal import Journal
from controlplane.leadership.driver import Leadership
from controlplane.leadership.figures import families
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.routers import RouterSeen
from controlplane.nodemetrics import FAMILIES, NodeMetrics
from controlplane.offhub import off_hub
from controlplane.planning.view import ModelHealth
from controlplane.planning.wanted import wanted
from controlplane.services.fleet import Fleet
from controlplane.services.identities import Identities
from controlplane.services.pauses import PAUSE, in_slices
from controlplane.services.status import Identity
from controlplane.store.access import StoreThreads
from llmgw.runtime.clock import Clock
from llmgw.runtime.stall import StallDetector

Maker = Callable[[], Iterable[Metric]]


_MODELS = tuple(
    Family(name, text, ("model",))
    for name, text in (
        ("llmgw_model_desired_replicas", "Replicas a model should have now."),
        ("llmgw_model_ready_replicas", "Replicas that are ready."),
        ("llmgw_model_consecutive_failures", "Failed starts in a row."),
        ("llmgw_model_parked", "1 if the model failed too often and is not tried."),
        ("llmgw_model_unplaceable", "1 if no node can take the model."),
    )
)

KEEP_EVERY = 1.0
"""Seconds between two looks for what changed."""

CERTIFICATES = Family(
    "llmgw_certificate_expires_timestamp_seconds",
    "When a certificate ends, in Unix time: of the server, its issuer and authority, and of nodes and routers.",
    ("certificate", "name"),
)


@dataclass(frozen=True)
class Sources:
    """What the figures are read from."""

    identity: Identity
    fleet: Fleet
    driver: Driver
    inbox: Inbox
    agents: AgentListener
    credentials: Credentials
    leadership: Leadership
    identities: Identities
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
    """All that ``/metrics`` tells. Few figures come from the client library's registry; those of
    which there are thousands are written by ``exposition``."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._nodes = NodeMetrics()
        self._ends: dict[tuple[str, str, float], bytes] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_One(self._process))
        self._registry.register(_One(lambda: families(sources.leadership)))

    def start(self) -> "Metrics":
        """Write lines as heartbeats come, until the inbox is closed: a scrape finds few to write."""
        self.keeper = gevent.spawn(self._keep)
        return self

    def render(self) -> tuple[int, Iterator[bytes]]:
        """The text format: its length, and its parts, which are put together while they are
        sent. All figures are of now. Whatever takes long is done in slices."""
        length, nodes = self._look()
        gevent.sleep(PAUSE)
        few = [generate_latest(self._registry), *self._models(), *self._certificates()]
        return sum(map(len, few)) + length, in_slices(chain(few, nodes), self._sources.clock)

    def _look(self) -> tuple[int, Iterator[bytes]]:
        sources = self._sources
        view, now = sources.fleet.view, sources.clock.monotonic()
        nodes = in_slices(list(view.nodes.values()), sources.clock)
        return self._nodes.look(nodes, lambda node: sources.fleet.measurements(node, now), view.replicas)

    def _keep(self) -> None:
        while not self._sources.inbox.closed:
            self._look()
            gevent.sleep(KEEP_EVERY)

    def described(self) -> list[tuple[str, str, tuple[str, ...], str]]:
        """Name, type, labels and meaning of every metric, by name."""
        own = [(row.name, row.kind, row.labels, row.help) for row in (*FAMILIES, *_MODELS, CERTIFICATES)]
        for family in self._registry.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            own.append((name, family.type, tuple(getattr(family, "_labelnames", ())), family.documentation))
        return sorted(own)

    def _models(self) -> Iterator[bytes]:
        fleet = self._sources.fleet
        view = fleet.view
        rows: list[tuple[tuple[str], tuple[float, ...]]] = []
        for name in in_slices(sorted(view.catalog.models), self._sources.clock):
            health = view.health.get(name) or ModelHealth()
            ready = sum(replica.state == "ready" for replica in view.replicas.of_model(name))
            unplaceable = fleet.state(name) == "unplaceable"
            figures = (wanted(view, name).lower, ready, health.failures, health.parked, unplaceable)
            rows.append(((name,), figures))
        for place, family in enumerate(_MODELS):
            yield family.text((labels, figures[place]) for labels, figures in rows)

    def _certificates(self) -> Iterator[bytes]:
        """Ours as they are on disk now, whoever put them there; others' as they showed them."""
        yield CERTIFICATES.text(
            ((each.what, ""), each.expires_at) for each in off_hub(self._sources.credentials.expiries)
        )
        kept: dict[tuple[str, str, float], bytes] = {}
        for row in in_slices(self._sources.identities.all(), self._sources.clock):
            if row.removed_at is None and row.expires_at is not None:
                key = (row.kind, row.name, row.expires_at)
                kept[key] = self._ends.get(key) or CERTIFICATES.line(key[:2], row.expires_at)
        self._ends = kept
        yield b"".join(kept.values())

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
            "llmgw_mass_loss_nodes": (
                "Nodes that went silent together and are not back: nothing is declared lost while there are any.",
                len(loss.nodes) if (loss := sources.fleet.view.mass_loss) else 0,
            ),
            "llmgw_nodes_lost_waiting": (
                "Silent nodes that would be lost if the limit on losses allowed.",
                len(sources.fleet.view.late_losses),
            ),
            "llmgw_agent_sessions": ("Agents in session.", sources.agents.sessions),
            "llmgw_agent_connections_pending": ("Connections in TLS or before hello.", sources.agents.pending),
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
            "llmgw_nodes_lost": ("Nodes declared lost, since this control plane leads.", sources.fleet.view.nodes_lost),
            "llmgw_loop_commands_late": (
                "Commands that were not sent because the lease came in doubt.",
                sources.driver.late,
            ),
            "llmgw_loop_faults": ("Unexpected errors in the loop.", sources.driver.faults),
            "llmgw_inbox_refused": ("Events turned away for want of room.", sources.inbox.refused),
            "llmgw_heartbeats_coalesced": ("Heartbeats replaced by a newer one.", sources.inbox.coalesced),
            "llmgw_agent_connections_refused": (
                "Connections turned away in TLS or before hello.",
                sources.agents.refused,
            ),
            "llmgw_agent_bad_frames": ("Sessions ended by a frame.", sources.agents.bad_frames),
            "llmgw_agent_unknown_messages": ("Messages of unknown kind, ignored.", sources.agents.unknown_messages),
            "llmgw_store_errors": ("Calls the store did not answer.", sources.store.failures),
            "llmgw_records_set_aside": (
                "Records of usage or events that were damaged, or that the store refuses.",
                sources.background.set_aside,
            ),
            "llmgw_usage_batches_given_up": (
                "Batches of usage that routers skipped, and that are not counted if they come.",
                sources.background.given_up,
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
