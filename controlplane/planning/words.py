"""Figures in words, the same wherever a person reads them."""

from collections.abc import Iterable

GIB = 1024**3

IN_DOUBT = (
    "the store has not renewed this control plane's lease: until it does, nothing is placed, scaled or stopped; what "
    "failed starts again where it was"
)
"""What a lease in doubt means, as people are told it (HA-01)."""


def gb(size: float) -> str:
    """Bytes as GB of 2**30, with one decimal: ``15.0``."""
    return f"{size / GIB:.1f}"


def cores(count: float) -> str:
    """A number of cores: ``4`` or ``0.5``."""
    return f"{count:g}"


def seconds(duration: float) -> str:
    """A duration: ``45 s``, ``5 min`` or ``2.5 h``."""
    if duration < 120:
        return f"{duration:.0f} s"
    if duration < 7200:
        return f"{duration / 60:.0f} min"
    return f"{duration / 3600:.1f} h"


def plural(count: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listing(items: Iterable[str], limit: int = 3) -> str:
    """``a, b, c and 4 more``."""
    names = list(items)
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
