"""Who changed what (API-05)."""

from dataclasses import dataclass
from typing import Any

from controlplane.services.errors import store_unavailable
from controlplane.services.filling import filled
from controlplane.services.moments import shown
from controlplane.services.paging import bad_cursor
from controlplane.store.access import StoreAccess
from controlplane.store.errors import BadCursor, StoreUnavailable
from controlplane.store.values import AuditEntry, Page
from llmgw.runtime.clock import Clock

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which changes. ``since`` and ``until`` are Unix seconds; ``None`` is all."""

    user: str | None = None
    kind: str | None = None
    target: str | None = None
    since: float | None = None
    until: float | None = None


class Audit:
    """Reads the audit. Its entries are written with the changes they tell of, by
    ``Changes``, and forgotten after the cluster setting ``audit.retention``."""

    def __init__(self, store: StoreAccess, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def page(self, which: AuditFilter, limit: int, cursor: str | None = None) -> Page[AuditEntry]:
        """Entries, newest first. Raises ``Refused`` if the store does not answer."""

        def read(wanted: int, place: str | None) -> Page[AuditEntry]:
            return self._store.read(
                lambda tx: tx.audit.page(
                    wanted,
                    place,
                    user=which.user,
                    kind=which.kind,
                    target=which.target,
                    since=which.since,
                    until=which.until,
                )
            )

        try:
            return filled(read, limit, cursor, self._clock)
        except BadCursor:
            raise bad_cursor() from None
        except StoreUnavailable as error:
            raise store_unavailable(error) from error


def plain(entry: AuditEntry) -> Plain:
    """An entry as it is shown."""
    return {
        "id": entry.id,
        "at": shown(entry.at),
        "actor": entry.actor,
        "user": entry.user,
        "token": entry.token or None,
        "operation": entry.operation,
        "kind": entry.kind,
        "target": entry.target,
        "before": entry.before,
        "after": entry.after,
        "request_id": entry.request_id or None,
    }
