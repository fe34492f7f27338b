"""Who changed what (API-05)."""

from dataclasses import dataclass
from typing import Any

from controlplane.services.moments import shown
from controlplane.services.reading import filled, read
from controlplane.store.access import StoreAccess
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
        """Entries, newest first. Raises ``Refused``."""

        def part(wanted: int, place: str | None) -> Page[AuditEntry]:
            return read(
                self._store,
                lambda tx: tx.audit.page(
                    wanted,
                    place,
                    user=which.user,
                    kind=which.kind,
                    target=which.target,
                    since=which.since,
                    until=which.until,
                ),
            )

        return filled(part, limit, cursor, self._clock)


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
