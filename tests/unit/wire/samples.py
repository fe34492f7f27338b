"""Builds a value of any message type with every field set to something unlike its default.

Generic over the types, so that a field added tomorrow is covered without a new test.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect


class Builder:
    """Makes values; each number and each text differs from all the others."""

    def __init__(self) -> None:
        self._count = itertools.count(11)

    def struct(self, kind: type[msgspec.Struct]) -> Any:
        """An instance of ``kind`` with every field set."""
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        return kind(**{field.name: self._field(field) for field in info.fields})

    def _field(self, field: inspect.Field) -> Any:
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        return self.value(field.type, field.name, default)

    def value(self, kind: inspect.Type, name: str, default: Any = msgspec.NODEFAULT) -> Any:
        """A value of ``kind`` that is not ``default``."""
        match kind:
            case inspect.UnionType(types=types):
                wanted = [each for each in types if not isinstance(each, inspect.NoneType)]
                return self.value(wanted[0], name, default)
            case inspect.StructType(cls=cls):
                return self.struct(cls)
            case inspect.NamedTupleType(cls=cls, fields=fields):
                return cls(*(self._field(field) for field in fields))
            case inspect.VarTupleType(item_type=item):
                return (self.value(item, name), self.value(item, name))
            case inspect.TupleType(item_types=items):
                return tuple(self.value(item, name) for item in items)
            case inspect.ListType(item_type=item):
                return [self.value(item, name)]
            case inspect.DictType(key_type=key, value_type=value):
                return {self.value(key, name): self.value(value, name)}
            case inspect.LiteralType(values=values):
                return next(value for value in reversed(values) if value != default)
            case inspect.StrType():
                return f"{name}-{next(self._count)}"
            case inspect.IntType():
                return next(self._count)
            case inspect.FloatType():
                return next(self._count) + 0.5
            case inspect.BoolType():
                return not default if isinstance(default, bool) else True
        raise NotImplementedError(f"no sample for {kind} of field {name}: extend tests/unit/wire/samples.py")


def structs(module: Any, base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Every struct of a module that descends from ``base``."""
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and issubclass(value, base)
            and value is not base
            and value.__module__ == module.__name__
        ):
            yield value


def unset_fields(value: msgspec.Struct) -> list[str]:
    """Fields, also of nested structs, that still have their default (there must be none)."""
    found = []
    for field in msgspec.structs.fields(value):
        held = getattr(value, field.name)
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if default is not msgspec.NODEFAULT and held == default:
            found.append(f"{type(value).__name__}.{field.name}")
        for item in held if isinstance(held, tuple) else (held,):
            if isinstance(item, msgspec.Struct):
                found += unset_fields(item)
    return found
