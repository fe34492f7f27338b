"""Schema of a catalog as people write it: one declaration for files, the REST API
and the JSON Schema that editors complete from (CAT-01, CAT-04, CAT-16)."""

from typing import Any, cast

from marshmallow import RAISE, Schema, fields

from controlplane.catalog.engines import ENGINES, NOT_YET, SCHEMES
from controlplane.catalog.fields import (
    Choice,
    Days,
    Duration,
    Flag,
    Number,
    Plain,
    Table,
    Text,
    TimeOfDay,
    Weights,
    Words,
)

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ALIAS_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}"
MODEL_NAME_EXPECTED = "must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit"
ALIAS_EXPECTED = "must be 1 to 128 letters, digits or any of . _ : / @ -, and begin with a letter or digit"
_WORD = MODEL_NAME
_WORD_EXPECTED = MODEL_NAME_EXPECTED
_SCOPE = rf"{_WORD}(?:/{_WORD}){{0,2}}"
_SCOPE_EXPECTED = "must be the path of a scope: org, org/team or org/team/project"
_ABSOLUTE = r"/[^\x00]{1,4095}"
SECTIONS = ("models", "aliases")
DOMAINS = ("site", "room", "row", "rack", "pdu")
CLASSES = ("critical", "standard", "opportunistic")


def _about(text: str) -> dict[str, str]:
    return {"description": text}


class Strict(Schema):
    """A field that is not declared is a fault."""

    class Meta:
        """What marshmallow asks for."""

        unknown = RAISE


class ProfileSchema(Strict):
    """One way to run a model."""

    name = Text(_WORD, _WORD_EXPECTED, metadata=_about("Name within the model; p0, p1 ... if left out."))
    engine = Text(_WORD, _WORD_EXPECTED, required=True, metadata=_about("Engine that runs it."))
    source = Text(
        required=True,
        metadata=_about(
            "Where the weights are: file:/absolute/path, hf:org/name, hf:org/name@revision, hf:org/name:file.gguf, "
            "https://host/file.gguf, or sim: for the simulated engine."
        ),
    )
    priority = Number(whole=True, metadata=_about("The highest that fits is used; 0 if left out."))
    gpu_class = Text(_WORD, _WORD_EXPECTED, metadata=_about("Class of the devices it needs, such as h100-80g."))
    gpus = Number(whole=True, minimum=1, metadata=_about("Devices of gpu_class on each node; needs gpu_class."))
    nodes = Number(whole=True, minimum=1, maximum=1024, metadata=_about("Nodes that one replica spans; 1 if left out."))
    tp = Number(
        whole=True,
        minimum=1,
        maximum=8192,
        metadata=_about("Tensor-parallel ranks. nodes x gpus = tp x pp x dp; on one node all its gpus if left out."),
    )
    pp = Number(whole=True, minimum=1, maximum=1024, metadata=_about("Pipeline-parallel stages; 1 if left out."))
    dp = Number(whole=True, minimum=1, maximum=1024, metadata=_about("Data-parallel groups; 1 if left out."))
    launch_mode = Choice(
        "native", "ray", metadata=_about("How the ranks of several nodes find each other; native if left out.")
    )
    min_memory_gb = Number(
        above=0, unit="GB", metadata=_about("Memory claimed on each node, in GB of 2**30 bytes; a must without gpus.")
    )
    cpu_cores = Number(above=0, unit="cores", metadata=_about("Cores claimed on each node; the engine's thread count."))
    node_selector = Table(Text(r"[^\x00]{0,256}"), metadata=_about("Labels the node must have."))
    keep_within = Choice(*DOMAINS, metadata=_about("Domain that all nodes of one replica must share."))
    power_watts = Number(above=0, unit="watts", metadata=_about("Watts that one replica draws under load, all nodes."))
    startup_timeout = Duration(metadata=_about("Longest time from start to ready; 10m if left out."))
    context = Number(whole=True, minimum=1, unit="tokens", metadata=_about("Context length in tokens."))
    slots = Number(whole=True, minimum=1, metadata=_about("Sequences the engine works on at once."))
    args = Words(Text(r"[^\x00]{0,4096}"), metadata=_about("More arguments of the engine."))
    env = Table(Text(r"[^\x00]{0,4096}"), metadata=_about("More environment of the engine; no secrets."))
    weight = Number(above=0, metadata=_about("Share of requests against other replicas of the model; 1 if left out."))
    target_waiting = Number(above=0, metadata=_about("Waiting requests of a replica above which another is wanted."))
    kv_ceiling = Number(
        above=0,
        maximum=1,
        note="a share: 0.9 is 90 %",
        metadata=_about("Fill of the KV cache, 0 to 1, above which routers look elsewhere."),
    )
    max_inflight = Number(
        whole=True, minimum=1, metadata=_about("Requests each router worker gives one replica at once.")
    )


class WindowSchema(Strict):
    """When other bounds hold (DEM-06)."""

    days = Days(metadata=_about("Days it begins on, such as [mon, wed] or mon-fri; every day if left out."))
    start = TimeOfDay(required=True, data_key="from", metadata=_about('When it begins, such as "08:00".'))
    end = TimeOfDay(
        required=True,
        data_key="to",
        metadata=_about('When it ends, such as "18:00", up to "24:00"; before from: on the next day.'),
    )
    min = Number(whole=True, minimum=0, required=True, metadata=_about("Replicas that always run in it."))
    max = Number(whole=True, minimum=0, required=True, metadata=_about("Most replicas in it."))
    prewarm = Flag(metadata=_about("Start early, by the time the model took to start before; false if left out."))


class ScalingSchema(Strict):
    """How many replicas. Both numbers are said; nothing fills one in (CAT-05)."""

    min = Number(whole=True, minimum=0, required=True, metadata=_about("Replicas that always run; 0 is on demand."))
    max = Number(whole=True, minimum=0, required=True, metadata=_about("Most replicas; 0 is off."))
    idle_timeout = Duration(metadata=_about("Replicas on demand stop this long after their last use; 15m if left out."))
    schedule = fields.List(fields.Nested(WindowSchema), metadata=_about("Times with other numbers; larger ones win."))


class ExternalSchema(Strict):
    """A provider outside the cluster (CAT-10)."""

    url = Text(required=True, metadata=_about("Base of its API, before /chat/completions: https://host/v1."))
    model = Text(
        r"[^\x00-\x20\x7f]{1,256}",
        "must be a name without spaces",
        required=True,
        metadata=_about("What the provider calls the model."),
    )
    api_key_file = Text(
        _ABSOLUTE,
        "must be an absolute path",
        metadata=_about("File on the control plane with the provider's key, mode 0600, read each time."),
    )


class AdapterSchema(Strict):
    """A LoRA adapter on another model's replicas (CAT-14)."""

    base = Text(ALIAS_NAME, ALIAS_EXPECTED, required=True, metadata=_about("The model whose replicas serve it."))
    source = Text(required=True, metadata=_about("Where the adapter is: hf:org/name, or file:/absolute/directory."))


class ResourcesSchema(Strict):
    """What each profile claims instead of what it says (CAT-12)."""

    cpu_cores = Number(above=0, unit="cores", metadata=_about("Cores claimed on each node, of every profile."))
    min_memory_gb = Number(above=0, unit="GB", metadata=_about("Memory claimed on each node, of every profile."))


class ModelSchema(Strict):
    """One model: with profiles, external, or an adapter."""

    aliases = Words(Text(ALIAS_NAME, ALIAS_EXPECTED), metadata=_about("Other names clients may use."))
    fallbacks = Words(
        Text(ALIAS_NAME, ALIAS_EXPECTED), 16, metadata=_about("Models to ask, in this order, while this one cannot.")
    )
    scaling = fields.Nested(ScalingSchema, metadata=_about("Without it the model is off."))
    profiles = fields.List(fields.Nested(ProfileSchema), metadata=_about("Ways to run it, at least one."))
    external = fields.Nested(ExternalSchema, metadata=_about("A provider outside; it has no profiles."))
    adapter = fields.Nested(AdapterSchema, metadata=_about("A LoRA adapter on a base model; it has no profiles."))
    role = Choice(
        "guard",
        other=", or the line left out",
        metadata=_about("guard: a judge of requests, which clients neither see nor ask."),
    )
    service_class = Choice(
        *CLASSES,
        data_key="class",
        metadata=_about("Who yields when room is short; standard, or opportunistic if on demand, if left out."),
    )
    owner = Text(_SCOPE, _SCOPE_EXPECTED, metadata=_about("Path of the scope it belongs to: org/team/project."))
    resources = fields.Nested(ResourcesSchema, metadata=_about("Claims instead of those of the profiles."))


class AliasSchema(Strict):
    """A name that stands for several models (CAT-13)."""

    models = Weights(required=True, metadata=_about("Models by name, each with its share of the requests."))
    sticky = Flag(metadata=_about("The same client key always gets the same model; false if left out."))


NESTED: dict[str, type[Schema]] = {
    "profiles": ProfileSchema,
    "scaling": ScalingSchema,
    "schedule": WindowSchema,
    "external": ExternalSchema,
    "adapter": AdapterSchema,
    "resources": ResourcesSchema,
}
"""Schemas that stand in a field of another, by the name of the field."""


def known_fields(schema: type[Schema]) -> list[str]:
    """Names of the fields a schema declares, as people write them."""
    return sorted(field.data_key or name for name, field in schema._declared_fields.items())


def _schema_of(schema: type[Schema]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for attribute, field in schema._declared_fields.items():
        name = field.data_key or attribute
        if isinstance(field, fields.Nested):
            entry = _schema_of(field.nested)  # type: ignore[arg-type]
        elif isinstance(field, fields.List):
            entry = {"type": "array", "items": _schema_of(field.inner.nested)}  # type: ignore[attr-defined]
        else:
            entry = cast(Plain[Any], field).json_schema()
        properties[name] = {**entry, "description": field.metadata["description"]}
        if field.required:
            required.append(name)
    described: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    if required:
        described["required"] = required
    return described


def model_json_schema() -> dict[str, Any]:
    """JSON Schema of one model, as under its name in a file and as a body of the API."""
    model = _schema_of(ModelSchema)
    model["properties"]["profiles"]["minItems"] = 1
    profile = model["properties"]["profiles"]["items"]
    profile["properties"]["engine"] |= {"enum": sorted(ENGINES)}
    schemes = "|".join(scheme for scheme in SCHEMES if scheme not in NOT_YET)
    profile["properties"]["source"] |= {"pattern": f"^(?:{schemes}):"}
    profile["dependentRequired"] = {"gpus": ["gpu_class"], "gpu_class": ["gpus"]}
    profile["anyOf"] = [{"required": ["gpus"]}, {"required": ["min_memory_gb"]}]
    profile["allOf"] = [
        {
            "if": {"properties": {"engine": {"enum": [name]}}, "required": ["engine"]},
            "then": {
                "properties": {
                    "source": {"pattern": f"^(?:{'|'.join(rules.schemes)}):"},
                    **({} if rules.spreads else {"tp": False, "pp": False, "dp": False}),
                    **({} if rules.launch_modes else {"nodes": {"const": 1}, "launch_mode": False}),
                }
            },
        }
        for name, rules in ENGINES.items()
    ]
    one = {"const": 1}
    profile["allOf"] += [
        {
            "if": {"properties": {"gpu_class": {"pattern": "-mig-"}}, "required": ["gpu_class"]},
            "then": {"properties": dict.fromkeys(("gpus", "nodes", "tp", "pp", "dp"), one)},
        },
        {
            "if": {"required": ["launch_mode"]},
            "then": {"properties": {"nodes": {"minimum": 2}}, "required": ["nodes"]},
        },
    ]
    model["properties"]["external"]["properties"]["url"] |= {"pattern": "^https?://[^@?#]+$"}
    model["properties"]["adapter"]["properties"]["source"] |= {"pattern": "^(?:hf|file):"}
    model["properties"]["resources"]["minProperties"] = 1
    model["oneOf"] = [{"required": [kind]} for kind in ("profiles", "external", "adapter")]
    alone = {"properties": {"scaling": False, "resources": False}}
    model["dependentSchemas"] = {"external": alone, "adapter": {"properties": {**alone["properties"], "role": False}}}
    return model


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a catalog file (CAT-16)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llmgw catalog",
        "type": "object",
        "additionalProperties": False,
        "required": ["models"],
        "properties": {
            "models": {
                "type": "object",
                "description": "Models by name.",
                "propertyNames": {"pattern": f"^{MODEL_NAME}$"},
                "additionalProperties": model_json_schema(),
            },
            "aliases": {
                "type": "object",
                "description": "Names that stand for several models by weight.",
                "propertyNames": {"pattern": f"^{ALIAS_NAME}$"},
                "additionalProperties": _schema_of(AliasSchema),
            },
        },
    }
