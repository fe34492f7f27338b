"""Which batches of one router process were counted. Pure (STO-03).

A process numbers its batches from 1 and sends them in order, yet they need not reach the
store in order: those that lie on the disk of a control plane that led before come after
those that its successor took.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_GAPS = 64
"""Gaps that are remembered of one process. A change of leader makes one, and so does a router
that drops its oldest batches for want of room."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """All numbers up to ``highest`` but those in ``gaps``: first and last number of each,
    ascending. With more gaps than ``MOST_GAPS`` the lowest is **given up**: its batches
    will not be counted if they come after all, since nobody could tell any more that they
    were not counted before.
    """

    highest: int = 0
    gaps: tuple[tuple[int, int], ...] = ()

    def take(self, number: int) -> "Taken | None":
        """Count the batch of that number; ``None`` if it was counted or given up before."""
        if number > self.highest:
            skipped = () if number == self.highest + 1 else ((self.highest + 1, number - 1),)
            return _bounded(number, (*self.gaps, *skipped))
        for place, (first, last) in enumerate(self.gaps):
            if first <= number <= last:
                left = [gap for gap in ((first, number - 1), (number + 1, last)) if gap[0] <= gap[1]]
                return _bounded(self.highest, (*self.gaps[:place], *left, *self.gaps[place + 1 :]))
        return None


@dataclass(frozen=True, slots=True)
class Taken:
    """What is so once a batch was counted, and how many numbers were given up for it."""

    sequences: Sequences
    given_up: int


def flat(sequences: Sequences) -> list[int] | None:
    """The gaps as they are stored; ``None`` if there are none."""
    return [number for gap in sequences.gaps for number in gap] or None


def read(highest: int, gaps: Sequence[int] | None) -> Sequences:
    """The other way round."""
    numbers = gaps or ()
    return Sequences(highest, tuple(zip(numbers[::2], numbers[1::2], strict=True)))


def _bounded(highest: int, gaps: tuple[tuple[int, int], ...]) -> Taken:
    excess = max(0, len(gaps) - MOST_GAPS)
    given_up = sum(last - first + 1 for first, last in gaps[:excess])
    return Taken(Sequences(highest, gaps[excess:]), given_up)
