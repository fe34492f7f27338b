"""Many greenlets that wake up at once, one after the other."""

import time

import gevent
from gevent.lock import BoundedSemaphore

SLICE = 0.005
"""Seconds of work after which the hub gets to its other work."""

PAUSE = 0.001
"""More than zero, or only those who wait for their turn get theirs."""


class Turns:
    """A hub runs all that are ready before it looks at anything else: when the connections of a
    whole fleet break, or it has stood still for a while, that is thousands. Who takes a turn
    before it works leaves the hub a pause in between."""

    def __init__(self) -> None:
        self._queue = BoundedSemaphore(1)
        self._since = float("-inf")

    def take(self) -> None:
        """Return when it is one's turn: as a rule at once."""
        if not self._queue.locked() and time.monotonic() - self._since < SLICE:
            return
        with self._queue:
            if time.monotonic() - self._since >= SLICE:
                gevent.sleep(PAUSE)
                self._since = time.monotonic()
