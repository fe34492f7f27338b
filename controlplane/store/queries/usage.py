"""Use by the hour, and the log of requests (TEN-06)."""

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import BigInteger, ColumnElement, Row, Select, cast, func, not_, select

from controlplane.store.port import Page, RequestEntry, UsageRow
from controlplane.store.queries.sql import Sql, beneath, cut, page
from controlplane.store.tables import FAILED, requests, usage, usage_sources

HOUR = 3600
DAY = 24 * HOUR
COUNTS = ("requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "uncounted")

By = Literal["key", "scope", "model", "day", "hour"]


class UsageQueries:
    """See ``port.Usage``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def add(self, source: str, boot: str, sequence: int, entries: Sequence[RequestEntry], *, log: bool) -> bool:
        """See the port."""
        if not self._is_new(source, boot, sequence, max((entry.at for entry in entries), default=None)):
            return False
        rows = [_request_values(entry) for entry in entries]
        if not rows:
            return True
        upsert = self._sql.insert(usage)
        summed = {name: usage.c[name] + upsert.excluded[name] for name in COUNTS}
        upsert = upsert.on_conflict_do_update(index_elements=list(usage.primary_key), set_=summed)
        self._sql.connection.execute(upsert, _by_hour(rows))
        if log:
            self._sql.connection.execute(requests.insert(), rows)
        return True

    def _is_new(self, source: str, boot: str, sequence: int, at: float | None) -> bool:
        values = cut(usage_sources, {"source": source, "boot": boot, "sequence": sequence, "at": at or 0.0})
        statement = self._sql.insert(usage_sources).values(values)
        statement = statement.on_conflict_do_update(
            index_elements=["source", "boot"],
            set_={"sequence": sequence} if at is None else {"sequence": sequence, "at": at},
            where=usage_sources.c.sequence < sequence,
        )
        return bool(self._sql.rows(statement.returning(usage_sources.c.sequence)))

    def rows(
        self,
        since: float,
        until: float,
        *,
        by: tuple[By, ...],
        key: str | None = None,
        scope: str | None = None,
        model: str | None = None,
    ) -> tuple[UsageRow, ...]:
        """See the port."""
        named: dict[str, ColumnElement[Any]] = {}
        if "hour" in by:
            named["start"] = usage.c.start
        elif "day" in by:
            named["start"] = usage.c.start - usage.c.start % DAY
        named |= {
            name: usage.c[column]
            for name, column in (("key", "key_id"), ("scope", "scope"), ("model", "model"))
            if name in by
        }
        sums = [cast(func.sum(usage.c[name]), BigInteger).label(name) for name in COUNTS]
        groups = [column.label(f"by_{name}") for name, column in named.items()]
        statement = select(*groups, *sums).where(usage.c.start >= _hour(since), usage.c.start < until)
        if key is not None:
            statement = statement.where(usage.c.key_id == key)
        if scope is not None:
            statement = statement.where(beneath(usage.c.scope, scope))
        if model is not None:
            statement = statement.where(usage.c.model == model)
        if groups:
            statement = statement.group_by(*named.values())
        found = [_usage(row, tuple(named)) for row in self._sql.rows(statement) if row.requests is not None]
        return tuple(sorted(found, key=lambda row: (row.start, row.key, row.scope, row.model)))

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
    ) -> Page[RequestEntry]:
        """See the port."""
        statement: Select[Any] = select(requests)
        equal = ((requests.c.key_id, key), (requests.c.model, model), (requests.c.replica, replica))
        for column, value in equal:
            if value is not None:
                statement = statement.where(column == value)
        if scope is not None:
            statement = statement.where(beneath(requests.c.scope, scope))
        if failed is not None:
            statement = statement.where(FAILED if failed else not_(FAILED))
        if since is not None:
            statement = statement.where(requests.c.at >= since)
        if until is not None:
            statement = statement.where(requests.c.at < until)
        return page(
            self._sql, statement, order=(requests.c.at, requests.c.number), limit=limit, cursor=cursor, make=_request
        )

    def request(self, request_id: str) -> RequestEntry | None:
        """See the port."""
        newest = select(requests).where(requests.c.id == request_id).order_by(requests.c.number.desc()).limit(1)
        row = self._sql.row(newest)
        return None if row is None else _request(row)

    def drop_requests(self, before: float, limit: int) -> int:
        """See the port."""
        return self._sql.drop_before(requests, requests.c.at, before, limit)

    def drop_usage(self, before: float, limit: int) -> int:
        """See the port."""
        # Routers that reported nothing for as long will not repeat a batch.
        self._sql.drop_before(usage_sources, usage_sources.c.at, before - HOUR, limit)
        return self._sql.drop_before(usage, usage.c.start, before - HOUR + 1, limit)


def _hour(moment: float) -> int:
    return int(moment // HOUR) * HOUR


def _failed(values: dict[str, Any]) -> bool:
    return bool(values["status"] >= 400 or values["code"] != "")


def _by_hour(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows summed by hour, key, scope and model: one row of ``usage`` each."""
    sums: dict[tuple[int, str, str, str], dict[str, int]] = {}
    for row in rows:
        group = (_hour(row["at"]), row["key_id"], row["scope"], row["model"])
        total = sums.setdefault(group, dict.fromkeys(COUNTS, 0))
        total["requests"] += 1
        total["failed"] += _failed(row)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            total[name] += row[name] or 0
        total["uncounted"] += row["prompt_tokens"] is None and row["completion_tokens"] is None
    return [
        {"start": start, "key_id": key, "scope": scope, "model": model, **total}
        for (start, key, scope, model), total in sums.items()
    ]


def _usage(row: Row[Any], named: tuple[str, ...]) -> UsageRow:
    group = {name: getattr(row, f"by_{name}") for name in named}
    return UsageRow(
        start=float(group.get("start", 0)),
        key=group.get("key", ""),
        scope=group.get("scope", ""),
        model=group.get("model", ""),
        **{name: getattr(row, name) for name in COUNTS},
    )


def _request_values(entry: RequestEntry) -> dict[str, Any]:
    values = {
        "at": entry.at,
        "id": entry.id,
        "key_id": entry.key,
        "scope": entry.scope,
        "model": entry.model,
        "asked": entry.asked,
        "status": entry.status,
        "code": entry.code,
        "router": entry.router,
        "replica": entry.replica,
        "stream": entry.stream,
        "first_byte": entry.first_byte,
        "duration": entry.duration,
        "prompt_tokens": entry.prompt_tokens,
        "completion_tokens": entry.completion_tokens,
        "cached_tokens": entry.cached_tokens,
    }
    return cut(requests, values) | {"retried": list(entry.retried) or None}


def _request(row: Row[Any]) -> RequestEntry:
    return RequestEntry(
        at=row.at,
        id=row.id,
        key=row.key_id,
        scope=row.scope,
        model=row.model,
        status=row.status,
        router=row.router,
        asked=row.asked,
        replica=row.replica,
        code=row.code,
        stream=row.stream,
        first_byte=row.first_byte,
        duration=row.duration,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cached_tokens=row.cached_tokens,
        retried=tuple(row.retried or ()),
    )
