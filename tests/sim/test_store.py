"""The simulated store does with the lease what the product's one statement does."""

import random
from pathlib import Path

import pytest

from controlplane.leadership.lease import Claim, Holder, Row, taking
from controlplane.store.database import Database
from controlplane.store.sqlite import Sqlite
from llmgw.sim.network import Network
from llmgw.sim.store import STORE, SimStore
from llmgw.sim.world import World

OWNERS = ("a", "b", "c")
HOLDERS = {owner: Holder(f"cp-{owner}", {"agents": f"{owner}:7001"}) for owner in OWNERS}


def _told(row: Row | None) -> object:
    """What of a row does not hang on the store's clock."""
    return None if row is None else (row.owner, row.renewals, row.epoch, row.ttl, row.holder)


@pytest.mark.parametrize("seed", range(3))
def test_the_simulated_lease_is_the_real_one(tmp_path: Path, seed: int):
    """HA-01, HA-02, AGT-04: claims of what was seen just now or long ago, renewals, releases,
    with and without a floor for the epoch: row for row the same."""
    world = World(seed)
    simulated = SimStore(world, Network(world))
    database = Database(Sqlite(tmp_path / "llmgw.db")).open()
    rng = random.Random(seed)
    seen: list[tuple[Row | None, Row | None]] = [(None, None)]
    changes = 0
    try:
        for step in range(200):
            owner, floor = rng.choice(OWNERS), rng.choice((0, 0, 0, step))
            before = _told(simulated.row)
            if rng.random() < 0.1:
                simulated.release(owner)
                database.transact(lambda tx, owner=owner: tx.leadership.release(owner))
            else:
                ours, real = (
                    Claim(row.owner, row.renewals, floor, row.renewed_at) if row is not None else Claim(floor=floor)
                    for row in rng.choice(seen[-4:])
                )
                simulated.claim(owner, ours, 30.0, HOLDERS[owner])
                database.transact(
                    lambda tx, owner=owner, real=real: tx.leadership.claim(owner, real, ttl=30.0, holder=HOLDERS[owner])
                )
            read = database.transact(lambda tx: tx.leadership.read())
            assert _told(simulated.row) == _told(read), step
            changes += _told(simulated.row) != before
            seen.append((simulated.row, read))
            world.now += 1.0
    finally:
        database.close()
    assert changes > 50


def test_a_question_held_up_is_carried_out_long_after():
    """HA-01: the asker gave up; the store does it all the same, unless it ended meanwhile."""
    world = World(1)
    store = SimStore(world, Network(world))
    store.hold_up["cp1"] = 20.0
    store.ask("cp1", lambda: store.claim("a", taking(None), 30.0, HOLDERS["a"]), lambda _: None)
    world.run_until(world.now + 10.0)
    assert store.row is None
    world.run_until(world.now + 20.0)
    assert store.row is not None and store.row.owner == "a"
    store.hold_up["cp1"] = 20.0
    store.ask("cp1", lambda: store.release("a"), lambda _: None)
    store.stop()
    store.start()
    world.run_until(world.now + 40.0)
    assert store.row.owner == "a"


def test_a_frozen_store_does_everything_when_it_goes_on():
    """HA-01: in the order in which it was asked."""
    world = World(1)
    store = SimStore(world, Network(world))
    store.freeze()
    told: list[object] = []
    store.ask("cp1", lambda: store.claim("a", taking(None), 30.0, HOLDERS["a"]), told.append)
    world.run_until(world.now + 30.0)
    assert store.row is None and not told
    store.thaw()
    world.run_until(world.now + 1.0)
    assert told == [store.row]


def test_a_question_waits_for_the_end_of_a_partition():
    """HA-01: as packets do that are sent again."""
    world = World(1)
    network = Network(world)
    store = SimStore(world, network)
    network.block("cp1", STORE)
    store.ask("cp1", lambda: store.claim("a", taking(None), 30.0, HOLDERS["a"]), lambda _: None)
    world.run_until(world.now + 30.0)
    assert store.row is None
    network.unblock("cp1", STORE)
    world.run_until(world.now + 3.0)
    assert store.row is not None


def test_an_older_copy_takes_the_place_of_the_row():
    """HA-01: what was done since is forgotten."""
    world = World(1)
    store = SimStore(world, Network(world))
    first = store.claim("a", taking(None), 30.0, HOLDERS["a"])
    store.claim("b", taking(first), 30.0, HOLDERS["b"])
    store.restore(1, held=True)
    assert store.row == first


def test_a_restore_by_the_command_leaves_the_lease_to_nobody():
    """HA-01: neither who led nor who comes new takes it before its time, and its epoch is above all."""
    world = World(1)
    store = SimStore(world, Network(world))
    first = store.claim("a", taking(None), 30.0, HOLDERS["a"])
    latest = store.claim("b", taking(first), 60.0, HOLDERS["b"])
    store.restore(1, by_command=True)
    row = store.row
    assert row is not None and latest is not None
    assert row.epoch > latest.epoch and row.ttl == 60.0
    for owner, seen in (("a", first), ("b", latest), ("c", None)):
        assert store.claim(owner, taking(seen), 30.0, HOLDERS[owner]) == row


def test_nobody_is_no_leader_in_turn():
    """HA-01: whoever obeyed none yet may obey the one that let go of the lease meanwhile."""
    world = World(1)
    store = SimStore(world, Network(world))
    store.claim("a", taking(None), 30.0, HOLDERS["a"])
    store.release("a")
    assert store.row is not None and store.row.owner == "" and store.turns == {"a": 1}
