"""What marshmallow found, as faults in our words: each with its path, and where a field
of another level stands, the level it belongs to."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from marshmallow import Schema, ValidationError

from controlplane.catalog.schema import (
    NESTED,
    AdapterSchema,
    ExternalSchema,
    ModelSchema,
    ProfileSchema,
    ScalingSchema,
    WindowSchema,
    known_fields,
)
from llmgw.runtime.faults import Fault, did_you_mean

_WORDS = {
    "Field may not be null.": "has no value: give one or leave the line out",
    "Not a valid list.": "must be a list: begin each entry with '- '",
    "Unknown field.": "is not a field here",
}
_HOMES: tuple[tuple[type[Schema], str], ...] = (
    (ModelSchema, "the model itself, beside profiles"),
    (ProfileSchema, "an entry of profiles"),
    (ScalingSchema, "scaling"),
    (WindowSchema, "an entry of scaling.schedule"),
    (ExternalSchema, "external"),
    (AdapterSchema, "adapter"),
)
_WRONG = {
    "api_key": "a catalog holds no secret: write the key to a file and give its path as external.api_key_file",
    "key": "a catalog holds no secret: write the key to a file and give its path as external.api_key_file",
    "token": "a catalog holds no secret",
    "weights": "give each model its weight: models: {NAME: WEIGHT}",
    "replicas": "write scaling: {min: N, max: N}",
    "count": "write scaling: {min: N, max: N}",
    "memory": "write min_memory_gb, a number of GB",
    "memory_gb": "write min_memory_gb, a number of GB",
    "tensor_parallel_size": "write tp",
    "pipeline_parallel_size": "write pp",
    "data_parallel_size": "write dp",
    "max_model_len": "write context",
    "quantization": "give it among args, such as [--quantization, fp8]",
    "port": "llmgw chooses it",
    "host": "llmgw chooses it",
    "alias": "write aliases, a list",
    "fallback": "write fallbacks, a list",
    "profile": "write profiles, a list",
}


@cache
def _made(schema: type[Schema]) -> Schema:
    """To make one costs more than to use it."""
    return schema()


def read(schema: type[Schema], value: Any) -> tuple[dict[str, Any], Any]:
    """What of ``value`` could be read, and the messages about the rest."""
    try:
        return cast(dict[str, Any], _made(schema).load(value)), None
    except ValidationError as error:
        return error.valid_data if isinstance(error.valid_data, dict) else {}, error.messages


def flatten(messages: Any, place: str, schema: type[Schema] | None) -> Iterator[Fault]:
    """Faults of marshmallow's nested messages, each with its path."""
    if isinstance(messages, Mapping):
        for key, inner in sorted(messages.items(), key=lambda item: _order(item[0], schema)):
            if key == "_schema":
                yield from flatten(inner, place, schema)
            elif isinstance(key, int):
                yield from flatten(inner, f"{place}[{key}]", schema)
            elif schema is None:
                yield from flatten(inner, f"{place}.{key}", None)
            elif inner == ["Unknown field."]:
                yield Fault(f"{place}.{key}", _unknown(str(key), schema))
            elif inner == ["Missing data for required field."]:
                yield Fault(f"{place}.{key}", _required(str(key), schema))
            else:
                yield from flatten(inner, f"{place}.{key}", NESTED.get(str(key)))
        return
    for message in messages if isinstance(messages, list) else [messages]:
        if message == "Invalid input type." and schema is not None:
            yield Fault(place, f"must be a mapping with {_content(schema)}")
        else:
            yield Fault(place, _WORDS.get(str(message), str(message)))


def _order(key: Any, schema: type[Schema] | None) -> tuple[int, int, str]:
    """Declared fields in their order, then the others by name."""
    names = [field.data_key or name for name, field in schema._declared_fields.items()] if schema else []
    position = names.index(key) if key in names else len(names)
    return (position, key if isinstance(key, int) else -1, str(key))


def _content(schema: type[Schema]) -> str:
    """The fields that a mapping must have, or else can have."""
    declared = schema._declared_fields
    needed = [field.data_key or name for name, field in declared.items() if field.required]
    return " and ".join(needed or (["profiles"] if schema is ModelSchema else known_fields(schema)))


def _required(name: str, schema: type[Schema]) -> str:
    """What a field that is missing is for."""
    field = next(field for key, field in schema._declared_fields.items() if name == (field.data_key or key))
    about = str(field.metadata["description"]).rstrip(".")
    return f"is required: {about[:1].lower()}{about[1:]}"


def _unknown(name: str, schema: type[Schema]) -> str:
    """What to do about a field that is not one of ``schema``."""
    words = _WORDS["Unknown field."]
    for home, where in _HOMES:
        if home is not schema and name in known_fields(home):
            return f"{words}: it belongs to {where}"
    if name in _WRONG:
        return f"{words}: {_WRONG[name]}"
    known = known_fields(schema)
    near = did_you_mean(name, known)
    return words + (near or (f" (known: {', '.join(known)})" if len(known) <= _LISTED else ""))


_LISTED = 12
"""Most fields that a message lists."""
