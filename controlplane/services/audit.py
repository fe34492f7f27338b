"""Who changed what (API-05)."""

from dataclasses import dataclass
from typing import Any

from controlplane.services.errors import store_unavailable
from controlplane.services.moments import shown
from controlplane.services.paging import bad_cursor
from controlplane.store.access import StoreAccess
from controlplane.store.port import AuditEntry, BadCursor, Page, StoreUnavailable

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

    def __init__(self, store: StoreAccess) -> None:
        self._store = store

    def page(self, which: AuditFilter, limit: int, cursor: str | None = None) -> Page[AuditEntry]:
        """Entries, newest first. Raises ``Refused`` if the store does not answer."""
        try:
            return self._store.read(
                lambda tx: tx.audit.page(
                    limit,
                    cursor,
                    user=which.user,
                    kind=which.kind,
                    target=which.target,
                    since=which.since,
                    until=which.until,
                )
            )
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
