"""What ``/metrics`` tells of a fleet, read back by the parser of the client library (OBS-01)."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import gevent
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.events import Cordon
from controlplane.exposition import Family
from controlplane.metrics import KEEP_FOR, Metrics, Sources
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
            "leadership": SimpleNamespace(leading=True, sure=True, until=math.inf, asked=1, unanswered=0),
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

    def read(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every sample, by name and labels. None comes twice."""
        found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in text_string_to_metric_families(b"".join(self.metrics.render()).decode()):
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
    """A shard that nobody knows belongs to no model, and has no sample."""
    shards = (ShardUse("tiny-1", 0, 1.5, GIB), ShardUse("tiny-2", 1, None, 2 * GIB))
    scraped.world.node("n1", measurements=Measurements(shards=shards))
    assert scraped.of("llmgw_shard_cpu_cores") == {}
    scraped.world.replica("tiny", "n1", 1)
    scraped.world.replica("tiny", "n1", 2)
    assert scraped.of("llmgw_shard_cpu_cores") == {("tiny", "n1", "0", "tiny-1"): 1.5}
    memory = {("tiny", "n1", "0", "tiny-1"): GIB, ("tiny", "n1", "1", "tiny-2"): 2 * GIB}
    assert scraped.of("llmgw_shard_memory_bytes") == memory
    scraped.world.view.replicas.pop("tiny-1")
    assert scraped.of("llmgw_shard_cpu_cores") == {}
    assert scraped.of("llmgw_model_ready_replicas") == {("tiny",): 1}


def test_every_metric_is_described_and_every_described_one_is_told(scraped):
    """The reference is made of the descriptions: names, types and meanings are those of a scrape."""
    text = b"".join(scraped.metrics.render()).decode()
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


def test_lines_are_written_as_heartbeats_come_while_somebody_scrapes(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape finds few to write; who scrapes no more takes up no memory."""
    monkeypatch.setattr("controlplane.metrics.KEEP_EVERY", 0.005)
    node = scraped.world.node("n1", measurements=Measurements(load1=1.0))
    scraped.metrics.render()
    node.measurements = Measurements(load1=2.0)
    with gevent.Timeout(20):
        while "2.0" not in scraped.metrics._nodes._nodes["n1"].texts["llmgw_node_load"]:
            gevent.sleep(0.005)
        scraped.world.clock.advance(KEEP_FOR)
        while scraped.metrics._nodes._nodes:
            gevent.sleep(0.005)
    node.measured_at = scraped.world.clock.monotonic()
    assert scraped.of("llmgw_node_load") == {("n1",): 2.0}
    scraped.inbox.closed = True
    with gevent.Timeout(20):
        while scraped.metrics._keeper is not None:
            gevent.sleep(0.005)
