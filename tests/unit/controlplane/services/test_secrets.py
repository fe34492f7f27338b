"""Generations of the engine secret: what memory holds while one is added and others go."""

import gevent

from controlplane.events import EngineKeysChanged
from controlplane.services.secrets import ENGINE, Secrets, fresh
from tests.unit.controlplane.services.harness import World, ask, until
from tests.unit.controlplane.services.watched import Watched


def test_a_rotation_outlives_a_drop_that_ends_meanwhile(world: World) -> None:
    """SEC-08: the drop's answer is older than the rotation, and comes while that waits for the store."""
    old, current = fresh(1, 1.0), fresh(2, 2.0)
    for row in (old, current):
        world.store.write(lambda tx, row=row: tx.secrets.add(row))
    service = Secrets(
        world.store,
        world.changes,
        inbox=world.inbox,
        fleet=Watched().fleet,
        clock=world.clock,
        generations=(old, current),
    )
    rotating = gevent.spawn(service.rotate, ask(), ENGINE)
    world.store.held.append(rotating)
    gevent.sleep(0)
    service.drop([old.generation])
    until(lambda: len(world.store.read(lambda tx: tx.secrets.all(ENGINE))) == 1)
    gevent.sleep(0.05)
    world.store.go_on.set()
    rotated = rotating.get(timeout=20)
    gevent.sleep(0.05)
    kept = world.store.read(lambda tx: tx.secrets.all(ENGINE))
    assert [row.number for row in kept] == [2, 3]
    assert service.one(ENGINE)["generation"] == rotated["generation"] == kept[-1].generation
    assert [row["id"] for row in service.one(ENGINE)["generations"]] == [row.generation for row in reversed(kept)]
    told = [event for event in world.events() if isinstance(event, EngineKeysChanged)]
    assert told[-1].keys.current == kept[-1].generation
