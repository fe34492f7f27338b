"""An agent that lies gets neither prompts nor keys that are not its node's (SEC-03); a router no memory."""

import msgspec
import pytest

from controlplane.events import RouterReported
from controlplane.fleet.changes import MAX_PROCESSES
from llmgw.wire.messages import ShardChanged, ShardStatus
from llmgw.wire.routing import Report
from tests.unit.controlplane.core.harness import Harness, spec

ELSEWHERE = "203.0.113.9"


def served(h: Harness) -> set[tuple[str, int]]:
    return {(endpoint.host, endpoint.port) for endpoint in h.table["tiny"].endpoints}


def ever(h: Harness) -> set[tuple[str, int]]:
    """Where any table ever sent requests."""
    return {(e.host, e.port) for table in h.tables for model in table.models for e in model.endpoints}


@pytest.mark.parametrize(
    "lie", [{"host": ELSEWHERE}, {"port": 22}, {"served_name": "another"}, {"model": "another"}], ids=str
)
def test_where_a_known_shard_listens_cannot_change(lie: dict[str, object]) -> None:
    """SEC-03: a replica whose agent says it moved is not routed, and ended; another replaces it."""
    h = Harness(drain_grace=5.0)
    h.advance(5)
    replica = h.only("tiny", "ready")
    (status, _), *_ = h.agents["n1"].shards.values()
    true = served(h)
    told = msgspec.structs.replace(status, spec=msgspec.structs.replace(status.spec, **lie))
    h.up("n1", [ShardChanged(status=told)])
    assert served(h) == set(), "nothing is sent there any more"
    assert h.view.replicas[replica.id].shards[0].spec == status.spec, "the lie is kept nowhere"
    (note,) = h.kinds("mistrusted")
    assert str(next(iter(lie.values()))) in note.reason and note.node == "n1"
    h.advance(60)
    assert replica.id in {stop.replica_id for stop in h.stops()}
    assert {host for host, _ in ever(h)} == {"127.0.0.1"} and 22 not in {port for _, port in ever(h)}
    assert h.only("tiny", "ready").id != replica.id
    assert {host for host, _ in served(h)} == {host for host, _ in true}


def test_a_node_that_goes_on_lying_parks_the_model() -> None:
    """REC-05: no tight loop of placements on the node that lies."""
    h = Harness(drain_grace=5.0)
    h.agents["n1"].load_time = 0.2

    def lie() -> None:
        for status, _ in list(h.agents["n1"].shards.values()):
            told = msgspec.structs.replace(status, spec=msgspec.structs.replace(status.spec, port=22))
            h.up("n1", [ShardChanged(status=told)])

    for _ in range(600):
        h.advance(0.5)
        lie()
    assert h.view.health["tiny"].parked
    assert len(h.starts()) <= 6


@pytest.mark.parametrize("lie", [{"host": ELSEWHERE}, {"port": 0}, {"port": 70000}], ids=str)
def test_a_shard_elsewhere_is_not_adopted_for_good(lie: dict[str, object]) -> None:
    """REC-20, SEC-03: after a start of the control plane nobody knows better than the node's
    own address."""
    h = Harness(drain_grace=5.0)
    h.advance(5)
    h.agents["n1"].run(spec("tiny-0000bbbb", **lie))
    h.disconnect("n1")
    h.connect("n1")
    routed = {endpoint.id for table in h.tables for model in table.models for endpoint in model.endpoints}
    assert "tiny-0000bbbb" not in routed
    h.advance(30)
    assert "tiny-0000bbbb" in {stop.replica_id for stop in h.stops()}
    assert {host for host, _ in ever(h)} == {"127.0.0.1"}


def test_a_rank_that_a_replica_does_not_have() -> None:
    """REC-21: another node cannot make itself a part of a replica and take it off the routes."""
    h = Harness(nodes=("n1", "n2"))
    h.advance(5)
    replica, before = h.only("tiny", "ready"), served(h)
    liar = next(name for name in h.agents if name != replica.shards[0].node_id)
    h.up(liar, [ShardChanged(status=ShardStatus(spec=spec(replica.id, rank=7), state="starting"))])
    h.advance(2)
    assert h.view.replicas[replica.id].state == "ready"
    assert served(h) == before


def test_an_epoch_no_fleet_reaches() -> None:
    """AGT-04: one node cannot push the epoch to where no frame can hold it."""
    h = Harness(drain_grace=5.0)
    h.advance(5)
    epoch = h.loop.epoch
    h.disconnect("n1")
    agent = h.agents["n1"]
    agent.highest_epoch = 2**63 - 1
    h.connect("n1")
    assert h.loop.epoch == epoch and h.epochs == []
    refuse = h.closed[-1].refuse
    assert refuse is not None and "no fleet gets that far" in refuse.message
    agent.highest_epoch = epoch + 10
    h.connect("n1")
    assert h.loop.epoch == epoch + 11, "a plausible one still raises ours"


def test_a_router_with_ever_new_processes_fills_no_memory():
    """SEC-01, DEM-01: the newest of its processes count; those of other routers are untouched."""
    h = Harness()
    h.feed(RouterReported("router-b", Report(boot="only", sequence=1, version="t")))
    for number in range(2 * MAX_PROCESSES):
        h.clock.advance(0.001)
        h.feed(RouterReported("router-a", Report(boot=f"b{number}", sequence=1, version="t")))
    boots = [boot for router, boot in h.loop._fleet.routers if router == "router-a"]
    assert len(boots) == MAX_PROCESSES and boots[-1] == f"b{2 * MAX_PROCESSES - 1}"
    assert ("router-b", "only") in h.loop._fleet.routers
