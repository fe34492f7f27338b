"""Long work of a request in slices, so that it does not hold the hub."""

from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

import gevent

from llmgw.runtime.clock import Clock

T = TypeVar("T")

SLICE = 0.005
"""Seconds of work after which others may run."""

PAUSE = 0.001
"""More than zero, or sockets get no turn."""


def in_slices(entries: Iterable[T], clock: Clock) -> Iterator[T]:
    """``entries``, with a pause whenever whoever takes them worked for a slice."""
    began = clock.monotonic()
    for entry in entries:
        yield entry
        if clock.monotonic() - began > SLICE:
            gevent.sleep(PAUSE)
            began = clock.monotonic()


def finish(work: Generator[None, None, T]) -> T:
    """Run work that yields between slices to its end, with a pause at each."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        gevent.sleep(PAUSE)
