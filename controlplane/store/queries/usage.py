"""Use by the hour, and the log of requests (TEN-06)."""

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import BigInteger, ColumnElement, Row, cast, func, not_, or_, select, true, tuple_

from controlplane.store.queries.scan import Condition, Pages, Way, equal
from controlplane.store.queries.sequences import Sequences, flat, read
from controlplane.store.queries.sql import Sql, beneath, limits_of, shortened
from controlplane.store.tables import FAILED, requests, usage, usage_sources
from controlplane.store.values import Counted, Page, RequestEntry, UsageOf, UsageRow

HOUR = 3600
DAY = 24 * HOUR
COUNTS = ("requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "uncounted")
FAULT = 400
"""Status from which on a request failed."""

MOST_SCOPES = 256
"""Scopes whose requests are merged one by one."""

_LIMITS = limits_of(requests)
_KEY, _SCOPE, _MODEL = (_LIMITS[name] for name in ("key_id", "scope", "model"))
_SOURCE, _BOOT = (limits_of(usage_sources)[name] for name in ("source", "boot"))
_USAGE = ("start", "key_id", "scope", "model", *COUNTS)
_REQUESTS = Pages(requests, (requests.c.at, requests.c.number))

By = Literal["key", "scope", "model", "day", "hour"]


class UsageQueries:
    """See ``port.Usage``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def add(self, batches: Sequence[UsageOf], *, log: bool) -> Counted:
        """See the port."""
        senders = [(shortened(batch.source, _SOURCE), shortened(batch.boot, _BOOT)) for batch in batches]
        known = self._known(senders)
        fresh: list[UsageOf] = []
        changed: dict[tuple[str, str], tuple[Sequences, float]] = {}
        given_up = 0
        for sender, batch in zip(senders, batches, strict=True):
            sequences, at = known.get(sender, (Sequences(), 0.0))
            taken = sequences.take(batch.sequence)
            if taken is None:
                continue
            given_up += taken.given_up
            newest = max(at, *(entry.at for entry in batch.entries), 0.0)
            known[sender] = changed[sender] = (taken.sequences, newest)
            fresh.append(batch)
        if changed:
            self._sql.add_many(usage_sources, [_source(*each) for each in sorted(changed.items())], _replacing)
        entries = [entry for batch in fresh for entry in batch.entries]
        if entries:
            self._sql.add_many(usage, _by_hour(entries), _adding)
            if log:
                self._sql.add_many(requests, [_request_values(entry) for entry in entries])
        return Counted(len(fresh), given_up)

    def _known(self, senders: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[Sequences, float]]:
        """Of each router process that is known: what was counted, and the moment of its newest request."""
        named = tuple_(usage_sources.c.source, usage_sources.c.boot).in_(sorted(set(senders)))
        rows = self._sql.rows(select(usage_sources).where(named))
        return {(row.source, row.boot): (read(row.sequence, row.gaps), row.at) for row in rows}

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
        bounds: list[ColumnElement[bool]] = []
        if since is not None:
            bounds.append(requests.c.at >= since)
        if until is not None:
            bounds.append(requests.c.at < until)
        # In the order of how few rows they are likely to leave.
        ways: list[tuple[Sequence[Condition], Condition]] = []
        if key is not None:
            ways.append(((equal("key_id", key),), equal("key_id", key)))
        if failed:
            ways.append(((_has_failed,), _has_failed))
        if scope is not None:
            ways.append((self._scopes_of(scope), lambda columns: beneath(columns["scope"], scope)))
        if model is not None:
            ways.append(((equal("model", model),), equal("model", model)))
        rest: list[Condition] = []
        if replica is not None:
            rest.append(equal("replica", replica))
        if failed is False:
            rest.append(lambda columns: not_(_has_failed(columns)))
        each = [Way(s, [*(other for _, other in ways[:i] + ways[i + 1 :]), *rest]) for i, (s, _) in enumerate(ways)]
        return _REQUESTS.read(
            self._sql, each or [Way((_all,), rest)], _request, limit=limit, cursor=cursor, bounds=bounds
        )

    def _scopes_of(self, scope: str) -> Sequence[Condition]:
        """A stream for each scope of the log that is ``scope`` or lies in it; found by
        stepping through the index from one to the next."""
        found = select(func.min(requests.c.scope).label("scope")).cte("found", recursive=True)
        following = select(func.min(requests.c.scope)).where(requests.c.scope > found.c.scope)
        found = found.union_all(select(following.correlate(found).scalar_subquery()).where(found.c.scope.is_not(None)))
        rows = self._sql.rows(select(found.c.scope).where(beneath(found.c.scope, scope)).limit(MOST_SCOPES + 1))
        if len(rows) > MOST_SCOPES:  # so many that the rows of all are the quicker way
            return (lambda columns: beneath(columns["scope"], scope),)
        return [equal("scope", row.scope) for row in rows]

    def request(self, request_id: str) -> RequestEntry | None:
        """See the port."""
        newest = select(requests).where(requests.c.id == request_id).order_by(requests.c.number.desc()).limit(1)
        row = self._sql.row(newest)
        return None if row is None else _request(row)

    def newest_request(self) -> float | None:
        """See the port."""
        return self._sql.greatest(requests.c.at)

    def newest(self) -> float | None:
        """See the port."""
        start = self._sql.greatest(usage.c.start)
        return None if start is None else start + HOUR

    def drop_requests(self, before: float, limit: int) -> int:
        """See the port."""
        return self._sql.drop_before(requests, requests.c.at, before, limit)

    def drop_usage(self, before: float, limit: int) -> int:
        """See the port."""
        # Routers that reported nothing for as long will not repeat a batch.
        self._sql.drop_before(usage_sources, usage_sources.c.at, before - HOUR, limit)
        return self._sql.drop_before(usage, usage.c.start, before - HOUR + 1, limit)


def _source(sender: tuple[str, str], told: tuple[Sequences, float]) -> dict[str, Any]:
    """The row of a router process."""
    sequences, at = told
    return {"source": sender[0], "boot": sender[1], "sequence": sequences.highest, "at": at, "gaps": flat(sequences)}


def _replacing(insert: Any) -> Any:
    """Put in the place of what is there."""
    replaced = {name: insert.excluded[name] for name in ("sequence", "at", "gaps")}
    return insert.on_conflict_do_update(index_elements=list(usage_sources.primary_key), set_=replaced)


def _hour(moment: float) -> int:
    return int(moment // HOUR) * HOUR


def _adding(insert: Any) -> Any:
    """Add to the sums that are there."""
    summed = {name: usage.c[name] + insert.excluded[name] for name in COUNTS}
    return insert.on_conflict_do_update(index_elements=list(usage.primary_key), set_=summed)


def _all(_columns: Any) -> ColumnElement[bool]:
    return true()


def _has_failed(columns: Any) -> ColumnElement[bool]:
    """``FAILED`` of the table, which has an index, or of a query's columns."""
    return FAILED if columns is requests.c else or_(columns["status"] >= FAULT, columns["code"] != "")


def _by_hour(entries: Sequence[RequestEntry]) -> list[dict[str, Any]]:
    """Sums by hour, key, scope and model: one row of ``usage`` each."""
    sums: dict[tuple[int, str, str, str], list[int]] = {}
    for entry in entries:
        group = (_hour(entry.at), entry.key, entry.scope, entry.model)
        total = sums.get(group)
        if total is None:
            total = sums[group] = [0] * len(COUNTS)
        prompt, completion = entry.prompt_tokens, entry.completion_tokens
        total[0] += 1
        total[1] += entry.status >= FAULT or entry.code != ""
        total[2] += prompt or 0
        total[3] += completion or 0
        total[4] += entry.cached_tokens or 0
        total[5] += prompt is None and completion is None
    rows: dict[tuple[int, str, str, str], dict[str, Any]] = {}
    for (start, key, scope, model), total in sums.items():
        place = (start, shortened(key, _KEY), shortened(scope, _SCOPE), shortened(model, _MODEL))
        row = rows.get(place)
        if row is None:
            row = rows[place] = dict(zip(_USAGE, (*place, *total), strict=True))
        else:  # two names that are one when cut
            for name, count in zip(COUNTS, total, strict=True):
                row[name] += count
    return list(rows.values())


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
    return {
        "at": entry.at,
        "id": shortened(entry.id, _LIMITS["id"]),
        "key_id": shortened(entry.key, _KEY),
        "scope": shortened(entry.scope, _SCOPE),
        "model": shortened(entry.model, _MODEL),
        "asked": shortened(entry.asked, _LIMITS["asked"]),
        "status": entry.status,
        "code": shortened(entry.code, _LIMITS["code"]),
        "router": shortened(entry.router, _LIMITS["router"]),
        "replica": shortened(entry.replica, _LIMITS["replica"]),
        "stream": entry.stream,
        "first_byte": entry.first_byte,
        "duration": entry.duration,
        "prompt_tokens": entry.prompt_tokens,
        "completion_tokens": entry.completion_tokens,
        "cached_tokens": entry.cached_tokens,
        "retried": list(entry.retried) or None,
    }


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
