"""The same change asked for twice at once, and changes that the store could not record
(API-04, API-05)."""

from typing import Any

import pytest

from controlplane.services import recovery
from controlplane.services.changes import Changed, Changes, Replayed
from controlplane.store.values import AuditEntry
from tests.unit.controlplane.services.harness import World, ask, until


def audit(world: World) -> list[AuditEntry]:
    return list(world.store.read(lambda tx: tx.audit.page(100)).items)


def test_twins_of_an_act_are_one_in_the_audit(world: World) -> None:
    """An act outside the store may run twice under one Idempotency-Key; the second is told
    that it is a repeat, not that somebody is in its way."""
    order = ask("retry", idempotency_key="k", digest="d")

    def act() -> Changed[str]:
        if not audit(world):  # the twin comes between the look for the key and the record
            world.changes.carry_out(order, lambda: Changed("first", "retry", "m"))
        return Changed("second", "retry", "m")

    with pytest.raises(Replayed) as replayed:
        world.changes.carry_out(order, act)
    assert replayed.value.target == "m"
    assert [entry.operation for entry in audit(world)] == ["retry"]


def test_an_act_while_the_store_is_away_is_recorded_later(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """API-05: who did it, when it was done, exactly once; the log says so meanwhile."""
    monkeypatch.setattr(recovery, "PAUSE", 0.005)
    world.store.away = True
    at = world.clock.now().timestamp()
    assert world.changes.carry_out(ask("log-level.set"), lambda: Changed("done", "setting", "log.level")) == "done"
    assert "a change is not in the audit yet" in caplog.text
    world.clock.advance(60)
    world.store.away = False
    until(lambda: len(audit(world)) == 1)
    (entry,) = audit(world)
    assert (entry.operation, entry.user, entry.at) == ("log-level.set", "ada", at)


def test_what_may_have_been_recorded_is_not_recorded_twice(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The commit was made, its answer lost: one entry, and the log."""
    world.store.lose = True
    assert world.changes.carry_out(ask("x"), lambda: Changed("done", "setting", "x")) == "done"
    assert "a change is not in the audit" in caplog.text and "yet" not in caplog.text
    world.changes.carry_out(ask("y"), lambda: Changed("done", "setting", "y"))
    assert [entry.operation for entry in audit(world)] == ["y", "x"]


def test_waiting_records_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A store that stays away for days takes no memory without end."""
    monkeypatch.setattr("controlplane.services.changes.MAX_WAITING", 1)
    monkeypatch.setattr(recovery, "PAUSE", 0.005)
    changes = Changes(world.store, world.clock)
    world.store.away = True
    for name in ("first", "second"):
        changes.carry_out(ask(name), lambda: Changed(None, "x", "x"))
    world.store.away = False
    until(lambda: len(audit(world)) == 1)
    assert [entry.operation for entry in audit(world)] == ["first"]
