"""What the driver does about time: commands that are late, and passes that stood still (HA-01)."""

from collections.abc import Callable, Generator
from typing import Any

import gevent
import pytest

from controlplane.driver import LONGEST_REST, REST, Driver
from controlplane.events import Committed, Effect, Send
from controlplane.inbox import Inbox
from llmgw.runtime.clock import ManualClock
from llmgw.wire.messages import HeartbeatAck, Stop


class Loop:
    """Answers events with what it was given; keeps the times that its pass was sent."""

    def __init__(self, clock: ManualClock, effects: list[Effect]) -> None:
        self.clock = clock
        self.effects = effects
        self.dirty = False
        self.next_wake = 1e12
        self.works = 7.0
        self.told: list[float | None] = []

    def handle(self, *_: Any, **__: Any) -> list[Effect]:
        return self.effects

    def run_pass(self, now: float) -> Generator[None, float | None, list[Effect]]:
        self.dirty = False
        for _ in range(2):
            self.clock.advance(self.works)
            self.told.append((yield))
        return self.effects


@pytest.fixture
def drive() -> Generator[Callable[..., tuple[Driver, Inbox, list[Effect]]], None, None]:
    drivers: list[Driver] = []

    def start(loop: Loop) -> tuple[Driver, Inbox, list[Effect]]:
        carried: list[Effect] = []
        inbox = Inbox()
        driver = Driver(loop, inbox, loop.clock, {Send: carried.append})  # type: ignore[arg-type]
        drivers.append(driver.start())
        return driver, inbox, carried

    yield start
    for driver in drivers:
        driver.stop()


def settle(condition: Callable[[], bool]) -> None:
    with gevent.Timeout(20, AssertionError("it did not come true")):
        while not condition():
            gevent.sleep(0.002)


def sends(before: float) -> list[Effect]:
    stop = Stop(command_id="c", epoch=1, replica_id="r", rank=0, incarnation=1, reason="", grace_seconds=1)
    return [Send("s", stop, before), Send("s", HeartbeatAck(sequence=1))]


def test_a_command_that_is_late_is_not_sent(drive: Callable[..., Any]) -> None:
    """HA-01: the process slept between deciding and sending; what is no command goes out."""
    clock = ManualClock()
    effects = sends(clock.monotonic())
    driver, inbox, carried = drive(Loop(clock, effects))
    inbox.force(Committed(1))
    settle(lambda: len(carried) == 1)
    assert carried == effects[1:] and driver.late == 1 and driver.faults == 0


def test_a_command_in_time_is_sent(drive: Callable[..., Any]) -> None:
    """HA-01: up to the moment."""
    clock = ManualClock()
    effects = sends(clock.monotonic() + 0.001)
    driver, inbox, carried = drive(Loop(clock, effects))
    inbox.force(Committed(1))
    settle(lambda: len(carried) == 2)
    assert carried == effects and driver.late == 0


def test_a_pass_is_told_the_time_between_its_slices(drive: Callable[..., Any]) -> None:
    """HA-01: so that one that stood still knows it."""
    clock = ManualClock()
    loop = Loop(clock, [])
    loop.dirty = True
    began = clock.monotonic()
    driver, inbox, _ = drive(loop)
    settle(lambda: driver.passes == 1)
    assert loop.told == [began + 7.0, began + 14.0]
    loop.dirty = True
    clock.advance(LONGEST_REST)
    inbox.force(Committed(1))
    settle(lambda: driver.passes == 2)
    assert len(loop.told) == 4 and driver.faults == 0


def test_after_a_pass_others_have_the_processor(drive: Callable[..., Any]) -> None:
    """AGT-03: while thousands of nodes register something has always changed, and heartbeats must be read."""
    clock = ManualClock()
    loop = Loop(clock, [])
    loop.works = 0.01
    loop.dirty = True
    driver, inbox, _ = drive(loop)
    settle(lambda: driver.passes == 1)
    loop.dirty = True
    for _ in range(5):
        clock.advance(REST * 2 * loop.works / 6)
        inbox.force(Committed(1))
        settle(lambda: len(inbox) == 0)
        gevent.sleep(0.01)
        assert driver.passes == 1
    clock.advance(REST * 2 * loop.works / 6)
    inbox.force(Committed(1))
    settle(lambda: driver.passes == 2)
