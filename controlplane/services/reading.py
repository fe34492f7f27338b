"""Reads of the store for a request: what goes wrong as a refusal, and pages of large tables,
whose queries stop early rather than take long."""

from collections.abc import Callable
from typing import TypeVar

from controlplane.services.errors import store_unavailable
from controlplane.services.paging import bad_cursor
from controlplane.store.access import StoreAccess
from controlplane.store.errors import BadCursor, StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.values import Page
from llmgw.runtime.clock import Clock

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds after which a page is answered with what was found."""


def read(store: StoreAccess, work: Callable[[Transaction], T], timeout: float | None = None) -> T:
    """The result of ``work``. Raises ``Refused`` if the store does not answer, or ``work`` was
    given a cursor that is none of ours."""
    try:
        return store.read(work, timeout)
    except BadCursor:
        raise bad_cursor() from None
    except StoreUnavailable as error:
        raise store_unavailable(error) from error


def filled(
    part: Callable[[int, str | None], Page[T]], limit: int, cursor: str | None, clock: Clock, patience: float = PATIENCE
) -> Page[T]:
    """The page that ``part(limit, cursor)`` begins: asked again where it stopped early, in
    queries of their own, so that others get their turn; for ``patience`` seconds."""
    items: list[T] = []
    until = clock.monotonic() + patience
    while True:
        page = part(limit - len(items), cursor)
        items += page.items
        cursor = page.next
        if cursor is None or len(items) >= limit or clock.monotonic() >= until:
            return Page(tuple(items), cursor)
