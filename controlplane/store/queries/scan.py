"""Pages of tables that may hold millions of rows, with work that has a bound.

A query whose filters no index serves would read the whole table for one page, and hold
the reading connection meanwhile. Here it reads at most ``MOST`` rows: a page that is not
full then, or empty, and yet has a ``next`` goes on from where that ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Row, Table, select

from controlplane.store.queries.sql import Sql, after, cursor_of
from controlplane.store.values import Page

T = TypeVar("T")

MOST = 10_000
"""Rows that one query looks at."""

LEAST = 100
"""Rows that one of many streams looks at."""

Condition = Callable[[Any], ColumnElement[bool]]
"""Of the columns of a table, or of a query's with the same names."""


@dataclass(frozen=True)
class Way:
    """A way to the rows: the ``streams`` together hold each row once, in an index that is
    sorted by the page's order; ``rest`` is looked at row by row."""

    streams: Sequence[Condition]
    rest: Sequence[Condition] = ()


@dataclass(frozen=True)
class Pages:
    """Pages of ``table``, greatest first by ``order`` (unique together). ``make`` makes a
    value of a row."""

    table: Table
    order: tuple[Column[Any], ...]

    def read(
        self,
        sql: Sql,
        ways: Sequence[Way],
        make: Callable[[Row[Any]], T],
        *,
        limit: int,
        cursor: str | None,
        bounds: Sequence[ColumnElement[bool]] = (),
    ) -> Page[T]:
        """The next page, the way that gets furthest with ``MOST`` rows. ``bounds`` are
        about the first column of the order."""
        within = [*bounds, *after(self.order, cursor)]
        most = MOST
        way = next((way for way in ways if not way.rest), None)
        floor: tuple[Any, ...] | None = None
        if way is None:
            # A floor of None is the end of the table.
            reached = [(self._floor(sql, way, within, most), way) for way in ways]
            floor, way = min(reached, key=lambda pair: (pair[0] is not None, pair[0]))
        rows = self._merged(sql, way, [*within, *self._down_to(floor)], limit + 1, self._each(way, most))
        following = None
        if len(rows) > limit:
            following = cursor_of(self._place(rows[limit - 1])) if limit else None
        elif floor is not None:
            following = cursor_of(list(floor))
        return Page(tuple(make(row) for row in rows[:limit]), following)

    def _place(self, row: Row[Any]) -> list[Any]:
        return [getattr(row, column.name) for column in self.order]

    def _each(self, way: Way, most: int) -> int:
        return max(most // max(len(way.streams), 1), LEAST)

    def _floor(self, sql: Sql, way: Way, within: Sequence[ColumnElement[bool]], most: int) -> tuple[Any, ...] | None:
        """The place that each of its streams reaches with its part of ``most`` rows; ``None``
        if that is the end of all."""
        newest: tuple[Any, ...] | None = None
        for stream in way.streams:
            last = select(*self.order).where(stream(self.table.c), *within, *self._down_to(newest))
            row = sql.row(last.order_by(*self._descending()).offset(self._each(way, most) - 1).limit(1))
            newest = newest if row is None else tuple(row)
        return newest

    def _merged(
        self, sql: Sql, way: Way, within: Sequence[ColumnElement[bool]], wanted: int, each: int
    ) -> list[Row[Any]]:
        """The greatest rows of all streams, at most ``wanted``."""
        found: list[Row[Any]] = []
        least: tuple[Any, ...] | None = None
        for stream in way.streams:
            statement = select(self.table).where(stream(self.table.c), *within, *self._down_to(least))
            statement = statement.order_by(*self._descending())
            if way.rest:
                # The limit, no more than there is, keeps the database from mixing the two.
                inner = statement.limit(each).subquery()
                columns = [inner.c[column.name] for column in self.order]
                statement = select(inner).where(*(rest(inner.c) for rest in way.rest))
                statement = statement.order_by(*(column.desc() for column in columns))
            found += sql.rows(statement.limit(wanted))
            if len(way.streams) > 1:
                found.sort(key=self._place, reverse=True)
                del found[wanted:]
                least = tuple(self._place(found[-1])) if len(found) == wanted else None
        return found

    def _descending(self) -> list[Any]:
        return [column.desc() for column in self.order]

    def _down_to(self, floor: tuple[Any, ...] | None) -> list[ColumnElement[bool]]:
        """At or above a place."""
        if floor is None:
            return []
        first, *others = self.order
        if not others:
            return [first >= floor[0]]
        return [first >= floor[0], (first > floor[0]) | (others[0] >= floor[1])]


def equal(column: str, value: Any) -> Condition:
    """Rows whose ``column`` is ``value``."""
    return lambda columns: columns[column] == value
