"""The collector's policy: what lives long is frozen in parts, and no garbage is kept for ever."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from llmgw.runtime.clock import ManualClock
from llmgw.runtime.garbage import GROWN, WHOLE_EVERY, Garbage


class Thing:
    """May be part of a cycle."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def garbage(clock: ManualClock) -> Iterator[Garbage]:
    made = Garbage(clock)
    made.whole()
    yield made
    made.stop()


def _grown(things: list[Thing]) -> None:
    """They live until they are in the oldest generation."""
    things += [Thing() for _ in range(GROWN)]
    gc.collect(1)
    gc.collect(1)


def test_what_lives_long_is_frozen(garbage: Garbage) -> None:
    """Little is left as it is; once it is much, a collection has nothing more to look through."""
    before = gc.get_freeze_count()
    garbage.look()
    assert gc.get_freeze_count() <= before, "nothing more, though what is frozen may be freed at any moment"
    things: list[Thing] = []
    _grown(things)
    garbage.look()
    assert gc.get_freeze_count() >= before + GROWN
    assert len(gc.get_objects()) < GROWN


def test_what_is_frozen_is_freed_as_always(garbage: Garbage) -> None:
    """As soon as nothing refers to it."""
    things: list[Thing] = []
    _grown(things)
    garbage.look()
    seen = weakref.ref(things[0])
    things.clear()
    assert seen() is None


def test_frozen_cycles_go_with_the_whole_collection(garbage: Garbage, clock: ManualClock) -> None:
    """Once a day, and not before."""
    things: list[Thing] = []
    _grown(things)
    things[0].other, things[1].other = things[1], things[0]  # type: ignore[attr-defined]
    garbage.look()
    seen = weakref.ref(things[0])
    things.clear()
    garbage.look()
    assert seen() is not None
    clock.advance(WHOLE_EVERY)
    garbage.look()
    assert seen() is None


def test_it_is_over_when_stopped(garbage: Garbage) -> None:
    """A test process goes on without it."""
    garbage.start()
    assert gc.get_freeze_count() > 0
    garbage.stop()
    assert gc.get_freeze_count() == 0
