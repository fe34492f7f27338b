"""What was used: sums, and the log of single requests (TEN-06, CLI-05)."""

from collections.abc import Callable
from typing import Literal, TypeVar

from controlplane.services.reading import PATIENCE, filled, read
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import Page, RequestEntry, UsageRow
from llmgw.runtime.clock import Clock

T = TypeVar("T")

By = Literal["key", "scope", "model", "day", "hour"]

REPORT_TIMEOUT = 30.0
"""Seconds a report may take."""


class UsageService:
    """Reads usage and the request log. Every method raises ``Refused`` if the store does
    not answer. Who may see which scope is for the caller to know."""

    def __init__(self, store: StoreAccess, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def usage(
        self,
        since: float,
        until: float,
        *,
        by: tuple[By, ...],
        key: str | None = None,
        scope: str | None = None,
        model: str | None = None,
    ) -> tuple[UsageRow, ...]:
        """Sums between two moments, by what ``by`` names."""
        return self._read(lambda tx: tx.usage.rows(since, until, by=by, key=key, scope=scope, model=model))

    def requests(
        self,
        limit: int,
        cursor: str | None = None,
        *,
        key: str | None = None,
        scope: str | None = None,
        model: str | None = None,
        replica: str | None = None,
        failed: bool | None = None,
        since: float | None = None,
        until: float | None = None,
        patience: float = PATIENCE,
    ) -> Page[RequestEntry]:
        """Logged requests, newest first. What no index finds is looked for in ``patience``
        seconds: then the page has what was found, and where to go on."""

        def part(wanted: int, place: str | None) -> Page[RequestEntry]:
            return self._read(
                lambda tx: tx.usage.requests(
                    wanted,
                    place,
                    key=key,
                    scope=scope,
                    model=model,
                    replica=replica,
                    failed=failed,
                    since=since,
                    until=until,
                )
            )

        return filled(part, limit, cursor, self._clock, patience)

    def request(self, request_id: str) -> RequestEntry | None:
        """One logged request."""
        return self._read(lambda tx: tx.usage.request(request_id))

    def _read(self, work: Callable[[Transaction], T]) -> T:
        return read(self._store, work, REPORT_TIMEOUT)
