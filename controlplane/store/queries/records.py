"""What happened: the audit, changes under an Idempotency-Key, events."""

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Row, Table, select, true

from controlplane.store.queries.scan import Condition, Pages, Way, equal
from controlplane.store.queries.sql import Sql, cut, values_of, whole
from controlplane.store.tables import audit, events, idempotency
from controlplane.store.values import AuditEntry, EventEntry, IdempotencyRecord, Page

_AUDIT = Pages(audit, (audit.c.id,))
_EVENTS = Pages(events, (events.c.at, events.c.id))


def _all(_columns: Any) -> ColumnElement[bool]:
    return true()


def _named(**values: str | None) -> list[Condition]:
    return [equal(name, value) for name, value in values.items() if value is not None]


class DatedQueries:
    """See ``port.Dated``: rows of ``_table``, by its column ``at``."""

    _table: ClassVar[Table]

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def newest(self) -> float | None:
        """See the port."""
        return self._sql.greatest(self._table.c.at)

    def drop_before(self, moment: float, limit: int) -> int:
        """See the port."""
        return self._sql.drop_before(self._table, self._table.c.at, moment, limit)


class AuditQueries(DatedQueries):
    """See ``port.Audit``."""

    _table = audit

    def add(self, *entries: AuditEntry) -> None:
        """See the port."""
        if entries:
            self._sql.connection.execute(audit.insert(), [_audit_values(entry) for entry in entries])

    def page(
        self,
        limit: int,
        cursor: str | None = None,
        *,
        user: str | None = None,
        kind: str | None = None,
        target: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Page[AuditEntry]:
        """See the port."""
        rest = _named(user_name=user, kind=kind, target=target)
        if since is not None:
            rest.append(lambda columns: columns["at"] >= since)
        if until is not None:
            rest.append(lambda columns: columns["at"] < until)
        return _AUDIT.read(self._sql, [Way((_all,), rest)], _entry, limit=limit, cursor=cursor)


def _audit_values(entry: AuditEntry) -> dict[str, Any]:
    values = values_of(entry, "id", "user", "before", "after") | {"user_name": entry.user}
    return cut(audit, values) | {"before": entry.before, "after": entry.after}


def _entry(row: Row[Any]) -> AuditEntry:
    values = row._asdict()
    return AuditEntry(user=values.pop("user_name"), **values)


class IdempotencyQueries(DatedQueries):
    """See ``port.Idempotency``."""

    _table = idempotency

    def find(self, user: str, key: str) -> IdempotencyRecord | None:
        """See the port."""
        row = self._sql.row(select(idempotency).where(idempotency.c.user_name == user, idempotency.c.key == key))
        return None if row is None else IdempotencyRecord(row.key, row.user_name, row.digest, row.target, row.at)

    def add(self, record: IdempotencyRecord) -> None:
        """See the port."""
        values = values_of(record, "user") | {"user_name": record.user}
        self._sql.add(idempotency, whole(idempotency, values), f"a change under the Idempotency-Key {record.key!r}")


class EventQueries(DatedQueries):
    """See ``port.Events``."""

    _table = events

    def add(self, entries: Sequence[EventEntry]) -> None:
        """See the port."""
        if not entries:
            return
        rows = [
            cut(events, values_of(entry, "figures")) | {"figures": dict(entry.figures) or None} for entry in entries
        ]
        self._sql.connection.execute(self._sql.insert(events).on_conflict_do_nothing(), rows)

    def page(
        self,
        limit: int,
        cursor: str | None = None,
        *,
        model: str | None = None,
        node: str | None = None,
        kind: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Page[EventEntry]:
        """See the port."""
        bounds: list[ColumnElement[bool]] = []
        if since is not None:
            bounds.append(events.c.at >= since)
        if until is not None:
            bounds.append(events.c.at < until)
        way = Way((_all,), _named(model=model, node=node, kind=kind))
        return _EVENTS.read(self._sql, [way], _event, limit=limit, cursor=cursor, bounds=bounds)


def _event(row: Row[Any]) -> EventEntry:
    return EventEntry(**row._asdict() | {"figures": row.figures or {}})
