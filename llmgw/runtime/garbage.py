"""Short pauses of Python's collector in a process that holds much for long.

A full collection looks through every object that may be part of a cycle, and holds the
process meanwhile: 100 ms and more where a fleet of thousands of nodes is kept. What has
lived for a while is therefore frozen, a part at a time: it is not looked through again, and
is still freed as soon as nothing refers to it. Only cycles that form among frozen objects
wait, for one whole collection a day.
"""

import gc

import gevent

from llmgw.runtime.clock import Clock

EVERY = 1.0
"""Seconds between two looks."""

GROWN = 15_000
"""Objects that have lived for a while and are not frozen: some 10 ms of a collection."""

WHOLE_EVERY = 86_400.0
"""Seconds between two collections of everything, which take tenths of a second."""


class Garbage:
    """The policy. ``start`` it once all is made that a process starts with."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._whole_at = clock.monotonic()
        self._greenlet: gevent.Greenlet[..., None] | None = None

    def start(self) -> "Garbage":
        """Collect and freeze everything there is, and go on from there."""
        self.whole()
        self._greenlet = gevent.spawn(self._run)
        return self

    def stop(self) -> None:
        """Leave it to Python again."""
        if self._greenlet is not None:
            self._greenlet.kill()
        gc.unfreeze()

    def look(self) -> None:
        """Freeze what has grown old since the last time, if it is enough to matter."""
        if self._clock.monotonic() - self._whole_at >= WHOLE_EVERY:
            self.whole()
        elif len(gc.get_objects(generation=2)) >= GROWN:
            gc.collect()
            gc.freeze()

    def whole(self) -> None:
        """Collect everything, frozen or not."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._whole_at = self._clock.monotonic()

    def _run(self) -> None:
        while True:
            gevent.sleep(EVERY)
            self.look()
