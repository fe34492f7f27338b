"""Answers written as JSON a slice at a time: thousands of entries take seconds of
processor time, which heartbeats must not wait for (STO-03, AGT-02)."""

from collections.abc import Iterable, Iterator
from typing import Any

import gevent
import marshmallow as ma
import msgspec

from llmgw.runtime.clock import SystemClock

SLICE = 0.005
"""Seconds of work after which others may run."""

PAUSE = 0.001
"""More than zero, or sockets get no turn."""

_clock = SystemClock()  # measures our own work: no time of the product's


def render(schema: ma.Schema, value: Any) -> bytes:
    """The JSON of ``value`` as ``schema`` dumps it."""
    return b"".join(_parts(schema, value)) + b"\n"


def _parts(schema: ma.Schema, value: Any) -> Iterator[bytes]:
    """Lists of nested entries one by one, the rest as a whole."""
    inners = {name: _inner(schema, name) for name in schema.dump_fields if value.get(name) is not None}
    long = {name: inner for name, inner in inners.items() if inner is not None}
    rest = schema.dump({name: item for name, item in value.items() if name not in long})
    opened = b"{"
    for name, inner in long.items():
        yield opened + _json(name) + b":["
        yield from _entries(inner, value[name])
        yield b"]"
        opened = b","
    for name, item in rest.items():
        yield opened + _json(name) + b":" + _json(item)
        opened = b","
    yield b"{}" if opened == b"{" else b"}"


def _entries(schema: ma.Schema, entries: Iterable[Any]) -> Iterator[bytes]:
    began = _clock.monotonic()
    between = b""
    for entry in entries:
        yield between + _json(schema.dump(entry))
        between = b","
        if _clock.monotonic() - began > SLICE:
            gevent.sleep(PAUSE)
            began = _clock.monotonic()


def _inner(schema: ma.Schema, name: str) -> ma.Schema | None:
    """The schema of a list's entries, if the field is a list of entries with one."""
    field = schema.dump_fields[name]
    if isinstance(field, ma.fields.List) and isinstance(field.inner, ma.fields.Nested):
        return field.inner.schema
    return None


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
