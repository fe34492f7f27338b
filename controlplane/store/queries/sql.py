"""What every group of queries stands on."""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    ColumnElement,
    Connection,
    Row,
    String,
    Table,
    Text,
    cast,
    func,
    literal,
    or_,
    select,
    tuple_,
)

from controlplane.store.errors import BadCursor, Duplicate

Values = dict[str, Any]
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""What a text in a database cannot hold: NUL, and halves of surrogate pairs."""


class Sql:
    """A connection inside a transaction. ``insert`` is the database's own INSERT, which
    knows ON CONFLICT."""

    def __init__(self, connection: Connection, insert: Callable[[Table], Any]) -> None:
        self.connection = connection
        self.insert = insert

    def rows(self, statement: Any) -> Sequence[Row[Any]]:
        """All rows of a query."""
        return self.connection.execute(statement).all()

    def row(self, statement: Any) -> Row[Any] | None:
        """The only row of a query, ``None`` if there is none."""
        return self.connection.execute(statement).one_or_none()

    def put(self, table: Table, *rows: Values) -> None:
        """Add rows, all with the same columns, or replace those of the same primary key."""
        keys = [column.name for column in table.primary_key]
        rest = [name for name in rows[0] if name not in keys]

        def replacing(insert: Any) -> Any:
            return insert.on_conflict_do_update(
                index_elements=keys, set_={name: insert.excluded[name] for name in rest}
            )

        if len(rows) == 1:
            self.connection.execute(replacing(self.insert(table).values(rows[0])))
        else:
            self.add_many(table, rows, replacing)

    def add(self, table: Table, values: Values, what: str) -> None:
        """Add a row. Raises ``Duplicate`` if its primary key or another unique value is
        taken; the transaction can go on then."""
        statement = self.insert(table).values(values).on_conflict_do_nothing()
        if not self.rows(statement.returning(*table.primary_key)):
            raise Duplicate(what)

    def add_many(
        self, table: Table, rows: Sequence[Values], finish: Callable[[Any], Any] = lambda insert: insert
    ) -> None:
        """Add many rows with the same columns; ``finish`` adds an ON CONFLICT to the
        statement. PostgreSQL is handed a column at a time, which it takes several times as
        fast as rows."""
        if self.connection.dialect.name != "postgresql":
            self.connection.execute(finish(self.insert(table)), rows)
            return
        names = list(rows[0])
        kinds = {name: _array_item(table.c[name]) for name in names}
        arrays = [
            cast(
                literal([kinds[name].plain(row[name]) for row in rows], ARRAY(kinds[name].kind)),
                ARRAY(kinds[name].kind),
            )
            for name in names
        ]
        source = func.unnest(*arrays).table_valued(*names, name="given").render_derived()
        chosen = select(*(kinds[name].back(source.c[name]) for name in names))
        self.connection.execute(finish(self.insert(table).from_select(names, chosen)))

    def greatest(self, column: Column[Any]) -> float | None:
        """The greatest value of a column of numbers; ``None`` if there is no row."""
        found: float | None = self.connection.scalar(select(func.max(column)))
        return found

    def drop_before(self, table: Table, column: Column[Any], moment: float, limit: int) -> int:
        """Delete at most ``limit`` rows whose ``column`` is less, lowest first."""
        keys = tuple(table.primary_key)
        chosen = select(*keys).where(column < moment).order_by(column).limit(limit)
        key = keys[0] if len(keys) == 1 else tuple_(*keys)
        return self.connection.execute(table.delete().where(key.in_(chosen))).rowcount


def values_of(record: Any, *without: str) -> Values:
    """The fields of a record (a dataclass) by the columns of the same names."""
    return {field.name: getattr(record, field.name) for field in fields(record) if field.name not in without}


class _Item(NamedTuple):
    """How a column's values travel in an array."""

    kind: Any
    plain: Callable[[Any], Any] = lambda value: value
    back: Callable[[Any], Any] = lambda column: column


def _array_item(column: Column[Any]) -> _Item:
    if isinstance(column.type, JSON):
        return _Item(Text(), lambda value: None if value is None else to_json(value), lambda given: cast(given, JSON))
    return _Item(Text() if isinstance(column.type, String) else column.type)


def beneath(column: ColumnElement[str], path: str) -> ColumnElement[bool]:
    """Whether a scope is ``path`` or lies in it. Not LIKE: SQLite's knows no case."""
    prefix = f"{path}/"
    return or_(column == path, func.substr(column, 1, len(prefix)) == prefix)


# ---------------------------------------------------------------- pages


def after(order: tuple[Column[Any], ...], cursor: str | None) -> list[ColumnElement[bool]]:
    """What holds of the rows beyond a cursor, greatest first by ``order`` (one or two
    columns, unique together). Rows that come in between neither repeat nor hide others.
    Raises ``BadCursor``."""
    if cursor is None:
        return []
    place = _read_cursor(cursor, order)
    first = order[0]
    if len(order) == 1:
        return [first < place[0]]
    return [first <= place[0], or_(first < place[0], order[1] < place[1])]


def cursor_of(place: list[Any]) -> str:
    """The cursor of a row: the values that the order is by."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _read_cursor(cursor: str, order: tuple[Column[Any], ...]) -> list[Any]:
    try:
        place = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise BadCursor from None
    if not isinstance(place, list) or len(place) != len(order):
        raise BadCursor
    for value, column in zip(place, order, strict=True):
        if not _fits(value, column):
            raise BadCursor
    return place


def _fits(value: Any, column: Column[Any]) -> bool:
    wanted = column.type.python_type
    if wanted is str:
        return isinstance(value, str) and _clean(value) == value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) and abs(value) < 2**63 if wanted is int else math.isfinite(value)


# ---------------------------------------------------------------- text


def cut(table: Table, values: Values) -> Values:
    """Values of a record, its texts cleaned and cut to what the columns take: what happened
    is told as far as it goes rather than not at all."""
    limits = limits_of(table)
    return {
        name: shortened(value, limits.get(name)) if isinstance(value, str) else value for name, value in values.items()
    }


@cache
def limits_of(table: Table) -> Mapping[str, int]:
    """How many characters each of its columns of text takes."""
    return {column.name: length for column in table.c if (length := _length(table, column.name)) is not None}


def shortened(text: str, limit: int | None) -> str:
    """A text as a column of ``limit`` characters takes it."""
    fits = text if text.isascii() and "\0" not in text else _clean(text)
    return fits if limit is None or len(fits) <= limit else f"{fits[: limit - 1]}…"


def whole(table: Table, values: Values) -> Values:
    """Values of something people decided. Raises ``ValueError`` naming the text that no
    column takes: half a name would be another name."""
    for name, value in values.items():
        if not isinstance(value, str):
            continue
        limit = _length(table, name)
        if limit is not None and len(value) > limit:
            raise ValueError(f"{table.name}.{name} has {len(value)} characters, the store takes {limit}")
        if _clean(value) != value:
            raise ValueError(
                f"{table.name}.{name} holds a character that no database takes (NUL or half a surrogate pair)"
            )
    return values


def _length(table: Table, name: str) -> int | None:
    kind = table.c[name].type
    return kind.length if isinstance(kind, String) else None


def _clean(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text)


def to_json(value: Any) -> str:
    """JSON that every database takes: NaN and infinities, which JSON has not, are null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
