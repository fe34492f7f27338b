"""What ``/metrics`` tells of a fleet, read back by the parser of the client library (OBS-01)."""

import math
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import gevent
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from controlplane.events import Cordon
from controlplane.exposition import Family
from controlplane.metrics import Metrics, Sources
from controlplane.nodemetrics import FAMILIES
from controlplane.store.values import Enrolled
from llmgw.wire.messages import DeviceUse, Measurements, ShardUse
from tests.unit.controlplane.services.watched import GIB, Watched

PROFILE = {"engine": "sim", "source": "sim:", "min_memory_gb": 1}
MODELS = {"tiny": {"scaling": {"min": 1, "max": 1}, "profiles": [PROFILE]}}


class Scraped:
    """A fleet and its metrics. ``enrolled`` are the rows of identities."""

    def __init__(self) -> None:
        self.world = Watched(MODELS)
        self.enrolled: list[Enrolled] = []
        self.inbox = Emptied()
        figures: dict[str, Any] = {
            "identity": SimpleNamespace(version="1", boot="b", epoch=lambda: 3),
            "fleet": self.world.fleet,
            "driver": SimpleNamespace(passes=1, pass_seconds=0.5, pass_seconds_total=2.5, late=0, faults=0),
            "inbox": self.inbox,
            "agents": SimpleNamespace(sessions=2, pending=0, refused=0, bad_frames=0, unknown_messages=0),
            "credentials": SimpleNamespace(expiries=lambda: [SimpleNamespace(what="server", expires_at=1.5e9)]),
            "leadership": SimpleNamespace(
                leading=True, sure=True, until=math.inf, unable="", asked=1, unanswered=0, unrenewed=None
            ),
            "identities": SimpleNamespace(all=lambda: tuple(self.enrolled)),
            "journal": SimpleNamespace(failures=0),
            "store": SimpleNamespace(waiting=0, failing_for=None, failures=0),
            "background": SimpleNamespace(
                waiting_bytes=0, set_aside=0, given_up=0, failing={"spool": ""}, forgotten={"events": 4}
            ),
            "stall": SimpleNamespace(longest=0.0, total=0.0, count=0),
            "clock": self.world.clock,
            "routers": tuple,
        }
        self.metrics = Metrics(Sources(**cast(Any, figures)))

    def text(self) -> str:
        """A scrape."""
        length, parts = self.metrics.render()
        told = b"".join(parts)
        assert len(told) == length
        return told.decode()

    def read(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every sample, by name and labels. None comes twice."""
        found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in found, "a sample came twice, or a family in two places"
                found[key] = sample.value
        return found

    def of(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of one metric, by the values of their labels in the order of their names."""
        return {tuple(value for _, value in key[1]): figure for key, figure in self.read().items() if key[0] == name}


class Emptied:
    """An inbox with nothing in it."""

    refused = 0
    coalesced = 0
    closed = False

    def __len__(self) -> int:
        return 0


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    made = Scraped()
    yield made
    made.inbox.closed = True  # or its lines would be kept up to date for ever


def use(number: int, **figures: Any) -> DeviceUse:
    return DeviceUse(uuid=f"n1-{number}", **figures)


def test_nodes_and_devices_are_told_as_they_are(scraped):
    """A figure that is not known has no sample; it is never 0."""
    measured = Measurements(cpu_percent=12.5, memory_used_bytes=3 * GIB, devices=(use(0, power_watts=300.25), use(1)))
    scraped.world.node("n1", devices=2, measurements=measured, cordon=Cordon("why", "ann", "now"))
    scraped.world.node("n2", inventory=None, registered=False, measurements=None)
    assert scraped.of("llmgw_node_up") == {("n1",): 1, ("n2",): 0}
    assert scraped.of("llmgw_node_cordoned") == {("n1",): 1, ("n2",): 0}
    assert scraped.of("llmgw_node_cpus") == {("n1",): 64}
    assert scraped.of("llmgw_node_cpu_utilization_percent") == {("n1",): 12.5}
    assert scraped.of("llmgw_node_load") == {}
    assert scraped.of("llmgw_node_memory_used_bytes") == {("n1",): 3 * GIB}
    assert scraped.of("llmgw_node_memory_total_bytes") == {("n1",): 512 * GIB}
    labels = ("h100-80g", "n1-0", "n1"), ("h100-80g", "n1-1", "n1")
    assert scraped.of("llmgw_device_excluded") == dict.fromkeys(labels, 0)
    assert scraped.of("llmgw_device_memory_total_bytes") == dict.fromkeys(labels, 80 * GIB)
    assert scraped.of("llmgw_device_power_watts") == {labels[0]: 300.25}
    assert scraped.of("llmgw_device_temperature_celsius") == {}


def test_what_changed_since_the_last_scrape_is_told_anew(scraped):
    """Lines are kept only while they hold: measurements, inventory, session, cordon, age (AGT-02)."""
    node = scraped.world.node("n1", devices=1, measurements=Measurements(load1=1.0, devices=(use(0, power_watts=1.0),)))
    assert scraped.of("llmgw_node_load") == {("n1",): 1.0}
    node.measurements = Measurements(load1=2.0, devices=(use(0, power_watts=2.0),))
    assert scraped.of("llmgw_node_load") == {("n1",): 2.0}
    assert scraped.of("llmgw_device_power_watts") == {("h100-80g", "n1-0", "n1"): 2.0}
    inventory = node.inventory
    assert inventory is not None
    device = msgspec.structs.replace(inventory.devices[0], excluded="ECC", device_class="h200")
    node.inventory = msgspec.structs.replace(inventory, devices=(device,))
    assert scraped.of("llmgw_device_excluded") == {("h200", "n1-0", "n1"): 1}
    assert scraped.of("llmgw_device_power_watts") == {("h200", "n1-0", "n1"): 2.0}
    node.registered = False
    assert scraped.of("llmgw_node_up") == {("n1",): 0}
    scraped.world.clock.advance(61)
    assert scraped.of("llmgw_node_load") == scraped.of("llmgw_device_power_watts") == {}
    del scraped.world.view.nodes["n1"]
    assert scraped.of("llmgw_node_up") == scraped.of("llmgw_device_excluded") == {}


def test_shards_are_told_while_their_replica_is_known(scraped):
    """A shard that nobody knew when it was measured belongs to no model, and has no sample."""
    shards = (ShardUse("tiny-1", 0, 1.5, GIB), ShardUse("tiny-2", 1, None, 2 * GIB))
    node = scraped.world.node("n1", measurements=Measurements(shards=shards))
    assert scraped.of("llmgw_shard_cpu_cores") == {}
    scraped.world.replica("tiny", "n1", 1)
    scraped.world.replica("tiny", "n1", 2)
    node.measurements = Measurements(shards=shards)
    assert scraped.of("llmgw_shard_cpu_cores") == {("tiny", "n1", "0", "tiny-1"): 1.5}
    memory = {("tiny", "n1", "0", "tiny-1"): GIB, ("tiny", "n1", "1", "tiny-2"): 2 * GIB}
    assert scraped.of("llmgw_shard_memory_bytes") == memory
    scraped.world.view.replicas.pop("tiny-1")
    node.measurements = Measurements(shards=shards)
    assert scraped.of("llmgw_shard_cpu_cores") == {}
    assert scraped.of("llmgw_model_ready_replicas") == {("tiny",): 1}


def test_every_metric_is_described_and_every_described_one_is_told(scraped):
    """The reference is made of the descriptions: names, types and meanings are those of a scrape."""
    text = scraped.text()
    told = {(name, text) for name, text in (line.split(" ", 3)[2:] for line in text.splitlines() if "# HELP" in line)}
    kinds = {tuple(line.split(" ")[2:]) for line in text.splitlines() if "# TYPE" in line}
    described = scraped.metrics.described()
    assert told == {(name, words) for name, _, _, words in described}
    assert kinds == {(name, kind) for name, kind, _, _ in described}


def test_certificates_of_those_who_left_are_not_told(scraped):
    """Nodes and routers as they showed them; ours as they are on disk."""
    scraped.enrolled = [
        Enrolled("node", "n1", 1.0, "certificate", expires_at=2e9),
        Enrolled("router", "r1", 1.0, "ann", expires_at=None),
        Enrolled("node", "n2", 1.0, "certificate", expires_at=2e9, removed_at=5.0),
    ]
    told = scraped.of("llmgw_certificate_expires_timestamp_seconds")
    assert told == {("server", ""): 1.5e9, ("node", "n1"): 2e9}


@pytest.mark.parametrize("value", ['a"b', "back\\slash", "line\nbreak", "ünïcode", ""])
def test_labels_of_any_text_come_back_as_they_were(value):
    """What an agent calls its devices is its own business."""
    told = Family("llmgw_x", "Words.", ("one", "two")).text([((value, "2"), 0.1)]).decode()
    (family,) = text_string_to_metric_families(told)
    (sample,) = family.samples
    assert (sample.labels, sample.value) == ({"one": value, "two": "2"}, 0.1)
    assert (family.documentation, family.type) == ("Words.", "gauge")


def test_lines_are_written_as_heartbeats_come(scraped: Scraped, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape, also the first, finds few to write; nobody looks any more once the term is over."""
    monkeypatch.setattr("controlplane.metrics.KEEP_EVERY", 0.005)
    node = scraped.world.node("n1", measurements=Measurements(load1=1.0))
    scraped.metrics.start()

    def wait_for(line: bytes) -> None:
        with gevent.Timeout(20):
            while "n1" not in scraped.metrics._nodes._nodes or line not in scraped.metrics._nodes._nodes["n1"].texts:
                gevent.sleep(0.005)

    wait_for(b'llmgw_node_load{node="n1"} 1.0\n')
    node.measurements = Measurements(load1=2.0)
    wait_for(b'llmgw_node_load{node="n1"} 2.0\n')
    scraped.inbox.closed = True
    with gevent.Timeout(20):
        scraped.metrics.keeper.join()


class Library(Collector):
    """What the client library would tell of the nodes: the plain way."""

    def __init__(self, scraped: Scraped) -> None:
        self.world = scraped.world

    def collect(self) -> Iterator[Metric]:
        told = {row.name: GaugeMetricFamily(row.name, row.help, labels=row.labels) for row in FAMILIES}

        def add(name: str, labels: tuple[str, ...], figure: float | None) -> None:
            if figure is not None:
                told[f"llmgw_{name}"].add_metric(labels, figure)

        for node in self.world.view.nodes.values():
            measured = self.world.fleet.measurements(node, self.world.clock.monotonic())
            mine = (node.id,)
            add("node_up", mine, node.registered)
            add("node_cordoned", mine, node.cordon is not None)
            add("node_cpu_utilization_percent", mine, measured.cpu_percent)
            add("node_load", mine, measured.load1)
            add("node_memory_used_bytes", mine, measured.memory_used_bytes)
            add("node_memory_available_bytes", mine, measured.memory_available_bytes)
            if node.inventory is not None:
                add("node_cpus", mine, node.inventory.cpu.count)
                add("node_memory_total_bytes", mine, node.inventory.memory_bytes)
            for device in node.inventory.devices if node.inventory else ():
                labels = (node.id, device.uuid, device.device_class)
                add("device_excluded", labels, device.excluded is not None)
                add("device_memory_total_bytes", labels, device.memory_bytes)
                for use in measured.devices:
                    if use.uuid == device.uuid:
                        add("device_memory_used_bytes", labels, use.memory_used_bytes)
                        add("device_utilization_percent", labels, use.utilization_percent)
                        add("device_temperature_celsius", labels, use.temperature_celsius)
                        add("device_power_watts", labels, use.power_watts)
            for shard in measured.shards:
                if shard.replica_id in self.world.view.replicas:
                    model = self.world.view.replicas[shard.replica_id].model
                    labels = (node.id, model, shard.replica_id, str(shard.rank))
                    add("shard_cpu_cores", labels, shard.cpu_cores)
                    add("shard_memory_bytes", labels, shard.memory_bytes)
        yield from told.values()


def families(text: str) -> dict[str, Metric]:
    """The families by name, each with its samples in order."""
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for family in found.values():
        family.samples.sort(key=lambda sample: sorted(sample.labels.items()))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_fleet_is_told_as_the_client_library_would(scraped: Scraped, seed: int) -> None:
    """Whatever changed between two scrapes, in any order."""
    rng = random.Random(seed)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Library(scraped))
    names = ["n1", "n2", 'n"3', "n\\4", "n\n5"]

    def figure() -> float | None:
        return rng.choice((None, 0, 1, 2**40, 0.1, 1e-7, 1e22, rng.random()))

    def measured(name: str) -> Measurements:
        uses = tuple(
            DeviceUse(f"{name}-{number}", *(cast(Any, figure()) for _ in range(4)))
            for number in rng.sample(range(4), 3)
        )
        shards = tuple(
            ShardUse(f"tiny-{number}", rank, figure(), cast(Any, figure())) for number in (1, 2) for rank in (0, 1)
        )
        own = {field: cast(Any, figure()) for field in ("cpu_percent", "load1", "memory_used_bytes")}
        return Measurements(**own, devices=uses, shards=shards)

    for _ in range(40):
        name = rng.choice(names)
        what = rng.random()
        node = scraped.world.view.nodes.get(name)
        if node is None or what < 0.15:
            scraped.world.node(name, devices=rng.randrange(4), measurements=measured(name))
        elif what < 0.25:
            del scraped.world.view.nodes[name]
        elif what < 0.35:
            node.registered = not node.registered
        elif what < 0.45:
            node.cordon = None if node.cordon else Cordon("why", "ann", "now")
        elif what < 0.55:
            node.inventory = None
        elif what < 0.65:
            scraped.world.clock.advance(30)
        elif what < 0.75:
            if scraped.world.view.replicas.pop("tiny-1", None) is None:
                scraped.world.replica("tiny", name, 1)
            for other in scraped.world.view.nodes.values():
                other.measurements = measured(other.id)
        else:
            node.measurements, node.measured_at = measured(name), scraped.world.clock.monotonic()
        expected, told = families(generate_latest(registry).decode()), families(scraped.text())
        for row in FAMILIES:
            assert told[row.name] == expected[row.name]
