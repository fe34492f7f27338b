"""What happened: the audit, changes under an Idempotency-Key, events."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, select, true

from controlplane.store.queries.scan import Condition, Pages, Way, equal
from controlplane.store.queries.sql import Sql, cut, whole
from controlplane.store.tables import audit, events, idempotency
from controlplane.store.values import AuditEntry, EventEntry, IdempotencyRecord, Page

_AUDIT = Pages(audit, (audit.c.id,))
_EVENTS = Pages(events, (events.c.at, events.c.id))


def _all(_columns: Any) -> ColumnElement[bool]:
    return true()


def _named(**values: str | None) -> list[Condition]:
    return [equal(name, value) for name, value in values.items() if value is not None]


class AuditQueries:
    """See ``port.Audit``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

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

    def newest(self) -> float | None:
        """See the port."""
        return self._sql.greatest(audit.c.at)

    def drop_before(self, moment: float, limit: int) -> int:
        """See the port."""
        return self._sql.drop_before(audit, audit.c.at, moment, limit)


def _audit_values(entry: AuditEntry) -> dict[str, Any]:
    values = {
        "at": entry.at,
        "actor": entry.actor,
        "user_name": entry.user,
        "token": entry.token,
        "operation": entry.operation,
        "kind": entry.kind,
        "target": entry.target,
        "request_id": entry.request_id,
    }
    return cut(audit, values) | {"before": entry.before, "after": entry.after}


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(
        at=row.at,
        actor=row.actor,
        user=row.user_name,
        token=row.token,
        operation=row.operation,
        kind=row.kind,
        target=row.target,
        before=row.before,
        after=row.after,
        request_id=row.request_id,
        id=row.id,
    )


class IdempotencyQueries:
    """See ``port.Idempotency``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def find(self, user: str, key: str) -> IdempotencyRecord | None:
        """See the port."""
        row = self._sql.row(select(idempotency).where(idempotency.c.user_name == user, idempotency.c.key == key))
        return None if row is None else IdempotencyRecord(row.key, row.user_name, row.digest, row.target, row.at)

    def add(self, record: IdempotencyRecord) -> None:
        """See the port."""
        values = {
            "user_name": record.user,
            "key": record.key,
            "digest": record.digest,
            "target": record.target,
            "at": record.at,
        }
        self._sql.add(idempotency, whole(idempotency, values), f"a change under the Idempotency-Key {record.key!r}")

    def newest(self) -> float | None:
        """See the port."""
        return self._sql.greatest(idempotency.c.at)

    def drop_before(self, moment: float, limit: int) -> int:
        """See the port."""
        return self._sql.drop_before(idempotency, idempotency.c.at, moment, limit)


class EventQueries:
    """See ``port.Events``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def add(self, entries: Sequence[EventEntry]) -> None:
        """See the port."""
        if not entries:
            return
        rows = [cut(events, _event_values(entry)) | {"figures": dict(entry.figures) or None} for entry in entries]
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

    def newest(self) -> float | None:
        """See the port."""
        return self._sql.greatest(events.c.at)

    def drop_before(self, moment: float, limit: int) -> int:
        """See the port."""
        return self._sql.drop_before(events, events.c.at, moment, limit)


def _event_values(entry: EventEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": entry.at,
        "kind": entry.kind,
        "reason": entry.reason,
        "epoch": entry.epoch,
        "model": entry.model,
        "replica": entry.replica,
        "node": entry.node,
    }


def _event(row: Row[Any]) -> EventEntry:
    return EventEntry(
        id=row.id,
        at=row.at,
        kind=row.kind,
        reason=row.reason,
        epoch=row.epoch,
        model=row.model,
        replica=row.replica,
        node=row.node,
        figures=row.figures or {},
    )
