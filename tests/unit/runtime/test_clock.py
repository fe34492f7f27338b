"""Time as a value (AGT-11)."""

import time
from datetime import UTC, timedelta

import pytest

from llmgw.runtime.clock import ManualClock, SystemClock


def test_the_manual_clock_moves_when_told() -> None:
    """Both readings move together."""
    clock = ManualClock()
    monotonic, moment = clock.monotonic(), clock.now()
    clock.advance(12.5)
    assert clock.monotonic() - monotonic == 12.5
    assert clock.now() - moment == timedelta(seconds=12.5)


def test_a_step_of_the_wall_clock_is_no_duration() -> None:
    """AGT-11: an administrator who sets the date makes nothing time out."""
    clock = ManualClock()
    monotonic, moment = clock.monotonic(), clock.now()
    clock.step_wall(-3600)
    assert clock.monotonic() == monotonic
    assert clock.now() - moment == timedelta(hours=-1)


def test_monotonic_time_does_not_go_back() -> None:
    """A test that tries has a mistake."""
    with pytest.raises(ValueError, match="go back"):
        ManualClock().advance(-1)


def test_the_system_clock_is_aware_and_monotonic() -> None:
    """UTC for people, a clock that never steps for durations: time of suspension is time too."""
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= clock.monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)
