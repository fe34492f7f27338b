"""The short cut on the way out comes to what marshmallow makes of a value."""

import random
from collections.abc import Iterator
from typing import Any

import marshmallow as ma
import pytest

from controlplane.api import dump
from controlplane.api.app import create_app  # with every resource's schemas
from controlplane.api.base import Schema

assert create_app


def _all(parent: type[Schema]) -> Iterator[type[Schema]]:
    for schema in parent.__subclasses__():
        if schema.__module__.startswith("controlplane."):
            yield schema
        yield from _all(schema)


SCHEMAS = sorted(set(_all(Schema)), key=lambda schema: f"{schema.__module__}.{schema.__name__}")


class Shout(str):
    """Text that is not just text."""

    def __str__(self) -> str:
        return self.upper()


def _value(field: Any, rng: random.Random, depth: int = 0) -> Any:
    """Something a service might answer with for a field: plain as a rule, odd at times."""
    if rng.random() < 0.15:
        return None
    if isinstance(field, ma.fields.Nested):
        return _entry(field.schema, rng, depth + 1)
    if isinstance(field, ma.fields.List):
        return [_value(field.inner, rng, depth + 1) for _ in range(rng.randint(0, 2))]
    if isinstance(field, ma.fields.Dict):
        inner = field.value_field or ma.fields.Raw()
        return {key: _value(inner, rng, depth + 1) for key in ("a", "b", 1) if rng.random() < 0.5}
    if isinstance(field, ma.fields.Float):
        return rng.choice([0.0, 1.23456, -7, True, float("inf"), 2**70])
    if isinstance(field, ma.fields.Integer):
        return rng.choice([0, 5, True, 3.7, "12"])
    if isinstance(field, ma.fields.Boolean):
        return rng.choice([True, False, 0, "yes"])
    if isinstance(field, ma.fields.String):
        return rng.choice(["", "x", "\u00e9", Shout("shout"), b"bytes", 7])
    return rng.choice([1, "x", [1], {"k": 1.5}])


def _entry(schema: ma.Schema, rng: random.Random, depth: int = 0) -> Any:
    fields = schema.dump_fields.items() if depth < 6 else ()
    entry = {field.attribute or name: _value(field, rng, depth) for name, field in fields if rng.random() < 0.8}
    return {**entry, "not_a_field": 1}


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_the_short_cut_is_only_that(schema: type[Schema]) -> None:
    """API-03: of every schema, for plain values and for odd ones."""
    made, rng = schema(), random.Random(schema.__name__)
    assert dump.plan(made, "leave_out_unknown") is not None, "it would be slow"
    for _ in range(60):
        value = _entry(made, rng)
        assert repr(made.dump(value)) == repr(_slow(made, value))


def _slow(schema: ma.Schema, value: Any) -> Any:
    """As marshmallow does it, also within."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Schema, "dump")
        return schema.dump(value)


class _Hooked(Schema):
    name = ma.fields.String()

    @ma.post_dump
    def shout(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {key.upper(): value for key, value in data.items()}


class _Defaulted(Schema):
    name = ma.fields.String(dump_default="nobody")


class _Computed(Schema):
    name = ma.fields.Function(lambda value: value["first"] + value["last"])


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        (_Hooked, {"name": "a"}, {"NAME": "a"}),
        (_Defaulted, {}, {"name": "nobody"}),
        (_Computed, {"first": "a", "last": "b"}, {"name": "ab"}),
    ],
)
def test_the_unusual_is_left_to_marshmallow(schema: type[Schema], value: Any, shown: Any) -> None:
    """Hooks, defaults and computed fields have their say."""
    assert dump.plan(schema(), "leave_out_unknown") is None
    assert schema().dump(value) == shown
    assert schema(many=True).dump([value]) == [shown]
