"""Pages of the store's large tables, whose queries stop early rather than take long."""

from collections.abc import Callable
from typing import TypeVar

from controlplane.store.values import Page
from llmgw.runtime.clock import Clock

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds after which a page is answered with what was found."""


def filled(
    read: Callable[[int, str | None], Page[T]], limit: int, cursor: str | None, clock: Clock, patience: float = PATIENCE
) -> Page[T]:
    """The page that ``read(limit, cursor)`` begins: asked again where it stopped early, in
    queries of their own, so that others get their turn; for ``patience`` seconds."""
    items: list[T] = []
    until = clock.monotonic() + patience
    while True:
        page = read(limit - len(items), cursor)
        items += page.items
        cursor = page.next
        if cursor is None or len(items) >= limit or clock.monotonic() >= until:
            return Page(tuple(items), cursor)
