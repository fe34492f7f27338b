"""How long work goes on before others may run. Pure: no clock of its own."""

from collections.abc import Callable

LONG = 0.005
"""Seconds of a slice that is measured."""


class Work:
    """Counts units of work, one for a candidate (some 10 to 100 microseconds), so that a
    generator yields about every 5 ms without a clock, and always at the same places."""

    SLICE = 150

    def __init__(self) -> None:
        self.units = 0

    def spent(self, units: int = 1) -> bool:
        """Add work; true when it is time to yield."""
        self.units += units
        if self.units < self.SLICE:
            return False
        self.units = 0
        return True


class Measured(Work):
    """Work that ends a slice by a clock: whoever drives the generator hands one in. How
    much a slice holds follows the machine and what else runs on it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._began: float | None = None

    def spent(self, units: int = 1) -> bool:
        """See ``Work``. Time begins to run with the first call after a yield."""
        self.units += units
        now = self._clock()
        if self._began is None:
            self._began = now
        elif now - self._began >= LONG:
            self._began = None
            return True
        return False
