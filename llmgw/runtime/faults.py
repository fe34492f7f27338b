"""What a person got wrong: every fault at once, each with its place and the remedy."""

import difflib
import heapq
import re
from collections.abc import Iterable
from dataclasses import dataclass

_STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Fault:
    """One thing wrong: where, what, and what to do about it."""

    path: str
    message: str

    def __str__(self) -> str:
        """One line, fit for a terminal: names and texts come out of files of many hands."""
        text = f"{self.path}: {self.message}" if self.path else self.message
        return _STEERS.sub(lambda match: ascii(match[0])[1:-1], text)


class SettingsError(Exception):
    """All faults of a settings source together."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        self.source = source
        self.faults = faults
        lines = "\n".join(f"  {fault}" for fault in faults)
        super().__init__(f"{source}: {len(faults)} fault{'s' if len(faults) != 1 else ''}\n{lines}")


MANY = 200
"""So many known names are compared closely, those that begin and end most like the name:
to compare thousands takes a tenth of a second and more."""

LONGEST = 200
"""Longer names are nobody's slip of the pen."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` for the nearest known name, else nothing."""
    if len(name) > LONGEST:
        return ""
    names = list(known)
    if len(names) > MANY:
        names = heapq.nlargest(MANY, names, key=lambda other: _shared(name, other))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _shared(name: str, other: str) -> int:
    """How many characters at both ends are the same."""
    count = 0
    for one, two in zip(name, other, strict=False):
        if one != two:
            break
        count += 1
    for one, two in zip(reversed(name), reversed(other), strict=False):
        if one != two:
            break
        count += 1
    return count
