"""What keeps the work of one event small in a fleet of thousands (AGT-03)."""

import random

import msgspec
import pytest

from controlplane import loop as loop_module
from controlplane.events import FrameReceived, PublishRoutes
from controlplane.fleet.keys import EngineKeys
from controlplane.planning.view import Replicas, ReplicaView, ShardView
from controlplane.publish.routes import Routing
from llmgw.wire.messages import ShardChanged
from tests.unit.controlplane.core.harness import ONE_MODEL, Harness, spec

MANY = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 3, max: 3}")


def replica(replica_id: str, model: str, *nodes: str) -> ReplicaView:
    shards = {rank: ShardView(spec=spec(replica_id, rank=rank), node_id=node) for rank, node in enumerate(nodes)}
    return ReplicaView(replica_id, model, "p", "f", state="ready", since=0.0, created=0.0, reason="", shards=shards)


def session(h: Harness, node: str) -> str:
    return next(session for session, node_id in h.sessions.items() if node_id == node)


def agree(replicas: Replicas, models: range, nodes: range) -> None:
    """What is found by model and by node is what a look at all of them finds."""
    for model in models:
        found = {row.id for row in replicas.values() if row.model == f"m{model}"}
        assert {row.id for row in replicas.of_model(f"m{model}")} == found
    holding = {shard.node_id for row in replicas.values() for shard in row.shards.values()}
    assert set(replicas.nodes()) == holding
    for node in nodes:
        name = f"n{node}"
        found = {row.id for row in replicas.values() if any(shard.node_id == name for shard in row.shards.values())}
        assert {row.id for row in replicas.on_node(name)} == found
    everywhere = [f"n{node}" for node in nodes]
    assert sorted(row.id for row in replicas.on_nodes(everywhere)) == sorted(
        row.id for row in replicas.values() if row.shards
    )


@pytest.mark.parametrize("seed", range(20))
def test_replicas_are_found_by_model_and_by_node(seed: int) -> None:
    """REC-20: whatever comes, goes, takes another's id or gets another shard."""
    rng = random.Random(seed)
    replicas, models, nodes = Replicas(), range(4), range(6)
    for _ in range(120):
        name = f"r{rng.randrange(12)}"
        what = rng.random()
        if what < 0.5:
            on = [f"n{rng.choice(nodes)}" for _ in range(rng.randint(0, 3))]
            replicas[name] = replica(name, f"m{rng.choice(models)}", *on)
        elif what < 0.7:
            replicas.pop(name, None)
        elif what < 0.8 and name in replicas:
            del replicas[name]
        elif name in replicas:
            rank = len(replicas[name].shards)
            shard = ShardView(spec=spec(name, rank=rank), node_id=f"n{rng.choice(nodes)}")
            replicas.join(replicas[name], shard)
        agree(replicas, models, nodes)
    with pytest.raises(KeyError):
        replicas.pop("nobody")


def test_a_large_table_is_published_with_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """RTR-03: not with each event, of which a restart brings thousands; the pass follows at once."""
    monkeypatch.setattr(loop_module, "SMALL", 0)
    h = Harness(MANY)
    h.agents["n1"].load_time = 1000.0
    h.advance(5)
    key, (status, _) = next(iter(h.agents["n1"].shards.items()))
    ready = ShardChanged(status=msgspec.structs.replace(status, state="ready"))
    effects = h.loop.handle(FrameReceived(session(h, "n1"), ready), h.clock.monotonic())
    assert not [effect for effect in effects if isinstance(effect, PublishRoutes)]
    assert h.loop.dirty
    h.run_pass()
    assert [endpoint.id for endpoint in h.table["tiny"].endpoints] == [key.replica_id]


def test_what_did_not_change_is_taken_over_into_the_next_table() -> None:
    """RTR-03: and what did change is made anew, be it the endpoint, its weight or its key (SEC-08)."""
    h = Harness(MANY, nodes=("n1", "n2"))
    h.advance(5)
    routing, keys = Routing(), EngineKeys({"1-a": b"x" * 32})
    before = routing.at_once(h.view, keys)
    assert routing.at_once(h.view, keys)[0] is before[0]
    first = h.view.replicas[before[0].endpoints[0].id]
    first.state = "draining"
    after = routing.at_once(h.view, keys)
    assert after[0].endpoints == before[0].endpoints[1:]
    assert all(now is then for now, then in zip(after[0].endpoints, before[0].endpoints[1:], strict=True))
    first.state = "ready"
    fresh = Routing().at_once(h.view, other := EngineKeys({"1-a": b"y" * 32}))
    assert routing.at_once(h.view, other) == fresh
    assert routing.at_once(h.view, keys) == before


def test_a_registration_is_compared_with_its_own_nodes_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """REC-23: what the others run is not looked at."""
    h = Harness(MANY, nodes=("n1", "n2", "n3"))
    h.advance(5)
    asked: list[str] = []
    original = Replicas.on_node
    monkeypatch.setattr(Replicas, "on_node", lambda self, node: asked.append(node) or original(self, node))
    monkeypatch.setattr(Replicas, "values", lambda self: pytest.fail("all replicas were looked at"))
    h.loop.handle(FrameReceived(session(h, "n2"), h.agents["n2"].register()), h.clock.monotonic())
    assert asked == ["n2"]
