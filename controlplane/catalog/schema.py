"""Schema of one model as people write it: one declaration for files, the REST API
and the JSON Schema that editors complete from (CAT-01, CAT-04, CAT-16)."""

from typing import Any, cast

from marshmallow import RAISE, Schema, fields

from controlplane.catalog.engines import ENGINES, SCHEMES
from controlplane.catalog.fields import Duration, Number, Plain, Table, Text, Words

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ALIAS_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}"
MODEL_NAME_EXPECTED = "must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit"
_ALIAS_EXPECTED = "must be 1 to 128 letters, digits or any of . _ : / @ -, and begin with a letter or digit"
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_WORD_EXPECTED = MODEL_NAME_EXPECTED


def _about(text: str) -> dict[str, str]:
    return {"description": text}


class ProfileSchema(Schema):
    """One way to run a model."""

    class Meta:
        """A field that is not declared is a fault."""

        unknown = RAISE

    name = Text(_WORD, _WORD_EXPECTED, metadata=_about("Name within the model; p0, p1 ... if left out."))
    engine = Text(_WORD, _WORD_EXPECTED, required=True, metadata=_about("Engine that runs it."))
    source = Text(
        required=True,
        metadata=_about("Where the weights are: file:/absolute/path, or sim: for the simulated engine."),
    )
    priority = Number(whole=True, metadata=_about("The highest that fits is used."))
    gpu_class = Text(_WORD, _WORD_EXPECTED, metadata=_about("Class of the devices it needs."))
    gpus = Number(whole=True, minimum=1, metadata=_about("Devices of gpu_class; needs gpu_class."))
    min_memory_gb = Number(above=0, metadata=_about("Memory claimed on the node, in GB of 2**30 bytes."))
    cpu_cores = Number(above=0, metadata=_about("Cores claimed on the node; the engine's thread count."))
    node_selector = Table(Text(r"[^\x00]{0,256}"), metadata=_about("Labels the node must have."))
    startup_timeout = Duration(metadata=_about("Longest time from start to ready."))
    context = Number(whole=True, minimum=1, metadata=_about("Context length in tokens."))
    slots = Number(whole=True, minimum=1, metadata=_about("Sequences the engine works on at once."))
    args = Words(Text(r"[^\x00]{0,4096}"), metadata=_about("More arguments of the engine."))
    env = Table(Text(r"[^\x00]{0,4096}"), metadata=_about("More environment of the engine."))
    weight = Number(above=0, metadata=_about("Share of requests against other replicas of the model."))
    max_inflight = Number(
        whole=True, minimum=1, metadata=_about("Requests each router worker gives one replica at once.")
    )


class ScalingSchema(Schema):
    """How many replicas. Both numbers are said; nothing fills one in (CAT-05)."""

    class Meta:
        """A field that is not declared is a fault."""

        unknown = RAISE

    min = Number(whole=True, minimum=0, required=True, metadata=_about("Replicas that always run."))
    max = Number(whole=True, minimum=0, required=True, metadata=_about("Most replicas; 0 is off."))


class ModelSchema(Schema):
    """One model."""

    class Meta:
        """A field that is not declared is a fault."""

        unknown = RAISE

    aliases = Words(Text(ALIAS_NAME, _ALIAS_EXPECTED), metadata=_about("Other names clients may use."))
    scaling = fields.Nested(ScalingSchema, metadata=_about("Without it the model is off."))
    profiles = fields.List(
        fields.Nested(ProfileSchema), required=True, metadata=_about("Ways to run it, at least one.")
    )


def known_fields(schema: type[Schema]) -> list[str]:
    """Names of the fields a schema declares."""
    return sorted(schema._declared_fields)


def _schema_of(schema: type[Schema]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, field in schema._declared_fields.items():
        if isinstance(field, fields.Nested):
            entry = _schema_of(field.nested)  # type: ignore[arg-type]
        elif isinstance(field, fields.List):
            entry = {"type": "array", "minItems": 1, "items": _schema_of(field.inner.nested)}  # type: ignore[attr-defined]
        else:
            entry = cast(Plain[Any], field).json_schema()
        properties[name] = {**entry, "description": field.metadata["description"]}
        if field.required:
            required.append(name)
    described: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    if required:
        described["required"] = required
    return described


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a catalog file (CAT-16)."""
    model = _schema_of(ModelSchema)
    profile = model["properties"]["profiles"]["items"]
    profile["properties"]["engine"] |= {"enum": sorted(ENGINES)}
    profile["properties"]["source"] |= {"pattern": f"^({'|'.join(SCHEMES)}):"}
    profile["dependentRequired"] = {"gpus": ["gpu_class"], "gpu_class": ["gpus"]}
    profile["anyOf"] = [{"required": ["gpus"]}, {"required": ["min_memory_gb"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llmgw catalog",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "models": {
                "type": "object",
                "description": "Models by name.",
                "propertyNames": {"pattern": f"^{MODEL_NAME}$"},
                "additionalProperties": model,
            }
        },
    }
