"""The engines' secret is rotated without downtime (SEC-08, ENG-03)."""

import msgspec

from controlplane.events import DropEngineKeys, EngineKeysChanged, RestartRequested
from controlplane.fleet.generations import kept, users
from controlplane.fleet.keys import EngineKeys, engine_key
from llmgw.wire.messages import ShardChanged, ShardStatus
from tests.unit.controlplane.core.harness import GENERATION, SECRET, Harness, spec

NEWER = "2-11223344"
BOTH = EngineKeys({GENERATION: SECRET, NEWER: b"newer-secret"})


def keys(h: Harness) -> set[str]:
    """The keys that routers present."""
    return {endpoint.key for endpoint in h.table["tiny"].endpoints}


def rotated() -> Harness:
    """A model that serves with the first generation, and then comes the second."""
    h = Harness(drain_grace=2.0)
    h.advance(5)
    h.feed(EngineKeysChanged(BOTH, "ada"))
    h.advance(3)
    return h


def test_what_runs_keeps_its_key_and_is_told_to_need_a_restart():
    """SEC-08: nothing is restarted by itself, and the routes go on with the old key."""
    h = rotated()
    replica = h.only("tiny", "ready")
    assert replica.stale is True and not replica.restarting
    assert keys(h) == {engine_key(SECRET, replica.id)}
    (told,) = h.kinds("engine-secret")
    assert "ada" in told.reason and NEWER in told.reason
    assert users(h.view) == {GENERATION: 1}
    assert "llmgw ctl restart --stale" in kept(h.view, GENERATION, users(h.view))
    assert not h.dropped


def test_a_restart_moves_it_to_the_new_key_and_the_old_secret_is_dropped():
    """SEC-08: each replica serves until its replacement is ready; then nothing needs the old one."""
    h = rotated()
    old = h.only("tiny", "ready")
    h.feed(RestartRequested((old.id,), "ada", "rotation"))
    h.advance(1)
    assert engine_key(SECRET, old.id) in keys(h)
    h.advance(20)
    new = h.only("tiny", "ready")
    assert new.id != old.id and new.stale is False
    assert keys(h) == {engine_key(b"newer-secret", new.id)}
    start = h.starts()[-1].spec
    assert (start.key_generation, start.engine_key) == (NEWER, engine_key(b"newer-secret", new.id))
    assert h.dropped == [(GENERATION,)], "asked for once"
    h.feed(EngineKeysChanged(EngineKeys({NEWER: b"newer-secret"})))
    h.advance(5)
    assert h.dropped == [(GENERATION,)] and keys(h) == {engine_key(b"newer-secret", new.id)}
    assert b"newer-secret" not in repr(h.loop._fleet).encode(), "SEC-03"


def test_an_old_secret_stays_while_a_node_has_not_told_what_it_runs():
    """SEC-08: an engine with the old key may run on a node that was not heard since the start."""
    h = Harness(nodes=("n1", "n2"), connect=False, drain_grace=2.0)
    h.connect("n1")
    h.advance(100)
    h.feed(EngineKeysChanged(BOTH, "ada"))
    old = h.only("tiny", "ready")
    h.feed(RestartRequested((old.id,), "ada", "rotation"))
    h.advance(20)
    assert h.only("tiny", "ready").id != old.id
    assert not h.dropped
    assert "n2" in kept(h.view, GENERATION, users(h.view))
    h.connect("n2")
    h.advance(15)
    assert h.dropped == [(GENERATION,)]


def test_a_new_control_plane_adopts_with_the_key_each_engine_has():
    """ENG-03, SEC-08: after a restart the generation comes from the agent."""
    h = rotated()
    replica_id = h.only().id
    h.restart(keys=BOTH)
    h.connect("n1")
    h.advance(10)
    assert h.only("tiny", "ready").id == replica_id
    assert h.only().stale is True
    assert keys(h) == {engine_key(SECRET, replica_id)}


def test_an_engine_whose_secret_the_store_has_not_is_replaced():
    """SEC-08, HA-01: after a restore of an older store nobody can ask such an engine."""
    h = rotated()
    replica_id = h.only().id
    h.restart(keys=EngineKeys({"2-99999999": b"another"}), drain_grace=2.0)
    h.connect("n1")
    h.advance(30)
    new = h.only("tiny", "ready")
    assert new.id != replica_id
    assert keys(h) == {engine_key(b"another", new.id)}
    assert any(GENERATION in decision.reason for decision in h.kinds("adopt"))


def test_a_keyless_engine_runs_on_and_is_told_to_need_a_restart():
    """ENG-03: engines started keyless keep running until their next start."""
    h = Harness(secret=None, drain_grace=2.0)
    h.advance(5)
    h.feed(EngineKeysChanged(BOTH, "ada"))
    h.advance(3)
    assert keys(h) == {""}
    assert h.only("tiny", "ready").stale is True
    h.feed(RestartRequested((h.only().id,), "ada", ""))
    h.advance(20)
    assert keys(h) == {engine_key(b"newer-secret", h.only("tiny", "ready").id)}


def test_an_agent_cannot_move_a_replica_to_another_key():
    """SEC-08: what an agent tells of a known shard's key must be what it was given."""
    h = Harness()
    h.advance(5)
    replica = h.only("tiny", "ready")
    told = msgspec.structs.replace(replica.shards[0].spec, key_generation="9-feedbeef")
    h.up("n1", [ShardChanged(status=ShardStatus(spec=told, state="ready", pid=4))])
    assert replica.surplus and "key_generation" in replica.surplus


def test_a_generation_that_nobody_names_is_not_believed():
    """SEC-08: a keyed shard without its generation cannot be asked."""
    h = Harness("models: {}\n")
    h.up("n1", [ShardChanged(status=ShardStatus(spec=spec(key_generation=""), state="ready", pid=4))])
    (replica,) = h.view.replicas.values()
    assert replica.surplus and "does not tell" in replica.surplus


def test_the_effect_names_generations_alone():
    """SEC-03: what goes to the store holds no secret."""
    assert repr(DropEngineKeys((GENERATION,))) == f"DropEngineKeys(generations=('{GENERATION}',))"
