"""Time as a value that is passed in.

Durations come from ``monotonic`` (AGT-11), moments people read from ``now``. Pure
modules receive plain floats; only drivers hold a ``Clock``.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never steps back."""
        ...

    def now(self) -> datetime:
        """The current moment, in UTC, for people to read. May step."""
        ...


def utc(seconds: float) -> str:
    """A moment, Unix time, within a sentence: ``2030-01-31 12:30 UTC``."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


class SystemClock:
    """The host's clocks."""

    def monotonic(self) -> float:
        """``CLOCK_BOOTTIME`` in seconds: it goes on while the machine is suspended, so that
        whoever sleeps longer than a lease knows it when it wakes up (HA-01)."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> datetime:
        """``CLOCK_REALTIME`` as an aware UTC datetime."""
        return datetime.now(UTC)


class ManualClock:
    """A clock that moves when told to, for tests."""

    def __init__(self, start: float = 1000.0, epoch: float = 1_800_000_000.0) -> None:
        self._monotonic = start
        self._offset = epoch - start

    def monotonic(self) -> float:
        """Seconds as set."""
        return self._monotonic

    def now(self) -> datetime:
        """Moment as set."""
        return datetime.fromtimestamp(self._monotonic + self._offset, UTC)

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds`` (not negative)."""
        if seconds < 0:
            raise ValueError("a monotonic clock does not go back")
        self._monotonic += seconds

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock only, as an administrator or NTP would."""
        self._offset += seconds
