"""Models: what they should be, what they are and why; added, changed and removed live."""

from typing import Any, get_args

import marshmallow as ma
from flask import Response

from controlplane.api.base import (
    OPERATE_SCOPED,
    READ_SCOPED,
    Blueprint,
    Empty,
    PageAnswer,
    PageQuery,
    Schema,
    change,
    items,
    number,
    principal,
    services,
    tag,
)
from controlplane.api.replicas import CandidateSchema, ReasonSchema
from controlplane.api.slices import render
from controlplane.api.status import ModelSummarySchema
from controlplane.catalog.schema import CLASSES
from controlplane.catalog.source import SourceReport
from controlplane.services.changes import Asked
from controlplane.services.fleet import Plain
from controlplane.services.models import Outcome
from controlplane.services.paging import page_by_name
from llmgw.wire.routing import ModelState

blueprint = Blueprint("models", __name__, description="The models of the catalog, from files and added live.")

STATES = get_args(ModelState)


class ProfileSchema(Schema):
    """One way to run a model. Sizes are bytes, durations seconds."""

    name = ma.fields.String(required=True)
    engine = ma.fields.String(required=True)
    source = ma.fields.String(required=True)
    priority = ma.fields.Integer()
    gpu_class = ma.fields.String()
    gpus = ma.fields.Integer()
    nodes = ma.fields.Integer()
    tp = ma.fields.Integer()
    pp = ma.fields.Integer()
    dp = ma.fields.Integer()
    launch_mode = ma.fields.String()
    keep_within = ma.fields.String()
    power_watts = number()
    memory_bytes = ma.fields.Integer()
    cpu_cores = number()
    node_selector = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String())
    context = ma.fields.Integer()
    slots = ma.fields.Integer()
    args = ma.fields.List(ma.fields.String())
    weight = number()
    max_inflight = ma.fields.Integer()
    target_waiting = number()
    kv_ceiling = number()
    startup_timeout = number()
    fingerprint = ma.fields.String()


class ExternalSchema(Schema):
    """A provider outside. ``problem`` says what is wrong with the file of its key."""

    url = ma.fields.String(required=True)
    model = ma.fields.String(required=True)
    api_key_file = ma.fields.String(metadata={"description": "The file, never what is in it."})
    problem = ma.fields.String()


class AdapterSchema(Schema):
    """A LoRA adapter on another model's replicas."""

    base = ma.fields.String(required=True)
    source = ma.fields.String(required=True)


class ResourcesSchema(Schema):
    """What each profile claims instead of what it says."""

    cpu_cores = number()
    memory_bytes = ma.fields.Integer()


class ModelSchema(ModelSummarySchema):
    """A model. ``last_output`` is what its last failed engine wrote. ``origin`` is the file
    it is written in, or store; what is in the store can be changed here."""

    aliases = ma.fields.List(ma.fields.String(), required=True)
    replicas = ma.fields.List(ma.fields.String(), required=True)
    origin = ma.fields.String()
    owner = ma.fields.String()
    service_class = ma.fields.String(data_key="class", attribute="class", metadata={"enum": list(CLASSES)})
    role = ma.fields.String()
    fallbacks = ma.fields.List(ma.fields.String())
    external = ma.fields.Nested(ExternalSchema)
    adapter = ma.fields.Nested(AdapterSchema)
    resources = ma.fields.Nested(ResourcesSchema)
    stale = ma.fields.Integer(metadata={"description": "Replicas that run an older profile or engine key."})
    quarantined = ma.fields.String()
    backoff_seconds = number()
    last_error = ma.fields.String()
    last_error_code = ma.fields.String()
    last_error_seconds = number()
    last_output = ma.fields.List(ma.fields.String())
    profiles = items(ProfileSchema)


class SourceSchema(Schema):
    """What was found out about a source of weights. ``unknown``: only nodes could tell.
    ``usable``: a model with it is added without ``check=false``."""

    source = ma.fields.String(required=True)
    state = ma.fields.String(required=True, metadata={"enum": ["exists", "missing", "unreachable", "unknown"]})
    usable = ma.fields.Boolean(required=True)
    words = ma.fields.String(required=True)
    size_bytes = ma.fields.Integer()
    files = ma.fields.Integer()
    revision = ma.fields.String()


class ModelWholeSchema(ModelSchema):
    """A model with what a person wrote of it, as a file would hold it under its name."""

    definition = ma.fields.Dict()
    version = ma.fields.Integer(metadata={"description": "Of a model in the store; rises with each change."})
    created_at = ma.fields.String()
    created_by = ma.fields.String()
    updated_at = ma.fields.String()
    updated_by = ma.fields.String()
    sources = ma.fields.List(ma.fields.Nested(SourceSchema), metadata={"description": "What was looked at."})
    dry_run = ma.fields.Boolean(metadata={"description": "True: nothing was changed, it would be so."})


class ModelsSchema(PageAnswer):
    """Models, by name."""

    models = items(ModelSchema)


class ModelsQuerySchema(PageQuery):
    """Which models."""

    state = ma.fields.String(validate=ma.validate.OneOf(STATES))
    origin = ma.fields.String(
        validate=ma.validate.Length(1, 300), metadata={"description": "file (any), store, or the name of a file."}
    )
    owner = ma.fields.String(
        validate=ma.validate.Length(1, 200), metadata={"description": "A scope, with all beneath it."}
    )
    name = ma.fields.String(validate=ma.validate.Length(1, 128), metadata={"description": "Part of a name or alias."})
    service_class = ma.fields.String(data_key="class", validate=ma.validate.OneOf(CLASSES))


class ModelDefinitionSchema(Schema):
    """A model as a catalog file holds it under its name. The catalog checks it: its JSON
    Schema is that of the file."""

    class Meta:
        """The catalog names unknown fields itself, with the nearest known one."""

        unknown = ma.INCLUDE

    @ma.post_load(pass_original=True)
    def keep_order(self, data: Plain, original: Plain, **_: Any) -> Plain:
        """As it was written: people read it again."""
        return {name: data[name] for name in original if name in data}


class ModelRequestSchema(ModelDefinitionSchema):
    """The same, with the name."""

    name = ma.fields.String(required=True, validate=ma.validate.Length(1, 200))


class ModelPatchSchema(Schema):
    """Parts to set; null takes one away. Each is as in a catalog file."""

    service_class = ma.fields.Raw(
        data_key="class", allow_none=True, metadata={"description": "critical, standard or opportunistic."}
    )
    owner = ma.fields.Raw(allow_none=True, metadata={"description": "Path of the scope it belongs to."})
    resources = ma.fields.Raw(
        allow_none=True, metadata={"description": "cpu_cores and min_memory_gb that each profile claims."}
    )
    scaling = ma.fields.Raw(allow_none=True, metadata={"description": "min, max, idle_timeout, schedule."})


class DryRunSchema(Schema):
    """Whether to carry it out."""

    dry_run = ma.fields.Boolean(
        load_default=False, metadata={"description": "Check everything and answer what would be; change nothing."}
    )


class ChangeQuerySchema(DryRunSchema):
    """How to go about it."""

    check = ma.fields.Boolean(
        load_default=True, metadata={"description": "false: do not look at the sources of the weights."}
    )


class RemovedSchema(Schema):
    """A model that is gone. What ran of it is drained and stopped."""

    name = ma.fields.String(required=True)
    replicas = ma.fields.List(ma.fields.String(), required=True, metadata={"description": "What drains."})
    keys = ma.fields.List(
        ma.fields.String(), required=True, metadata={"description": "API keys that were good for this model alone."}
    )
    dry_run = ma.fields.Boolean(required=True)


class CheckedSchema(Schema):
    """What was found out about a model's sources."""

    model = ma.fields.String()
    sources = items(SourceSchema)


class ExplanationSchema(Schema):
    """Why a model is where it is: one sentence, and every candidate for one more replica."""

    model = ma.fields.String(required=True)
    state = ma.fields.String(required=True)
    sentence = ma.fields.String(required=True)
    wanted = ma.fields.Integer(required=True)
    live = ma.fields.Integer(required=True)
    ready = ma.fields.Integer(required=True)
    blockers = items(ReasonSchema)
    candidates = items(CandidateSchema)


# ---------------------------------------------------------------- reads


@blueprint.view("GET", "/models", READ_SCOPED)
@blueprint.takes(ModelsQuerySchema, location="query")
@blueprint.answers(200, ModelsSchema)
def list_models(query: Plain) -> Plain:
    """Models; an owner sees those of its scopes."""
    limit, cursor = query.pop("limit"), query.pop("cursor", None)
    names, after = page_by_name(services().models.names(principal(), **query), limit, cursor)
    return {"models": services().fleet.models(names), "next": after}


@blueprint.view("GET", "/models/<path:name>", READ_SCOPED, tagged=True)
@blueprint.answers(200, ModelWholeSchema)
def read_model(name: str) -> Plain:
    """One model, by name or alias."""
    return _whole(services().models.visible(principal(), name).name)


@blueprint.view("GET", "/models/<path:name>/explain", READ_SCOPED)
@blueprint.answers(200, ExplanationSchema)
def explain_model(name: str) -> Plain:
    """Why it is where it is, candidate by candidate."""
    return services().fleet.explain(principal(), name)


@blueprint.view("POST", "/models/<path:name>/check", OPERATE_SCOPED, changes=False)
@blueprint.takes(Empty, required=False)
@blueprint.answers(200, CheckedSchema)
def check_model(_body: Plain, name: str) -> Plain:
    """Look at the sources of its weights now: do they exist, can they be reached, how large are they."""
    return {"model": name, "sources": [plain_source(row) for row in services().models.check(principal(), name)]}


# ---------------------------------------------------------------- changes


@blueprint.view("POST", "/models", OPERATE_SCOPED)
@blueprint.takes(ChangeQuerySchema, location="query")
@blueprint.takes(ModelRequestSchema, unknown=None)
@blueprint.answers(201, ModelWholeSchema)
@blueprint.alternatively(200, schema=ModelWholeSchema, description="On a dry run: what would be.")
def add_model(query: Plain, body: Plain) -> Any:
    """Add a model. It is in force at once, without a restart."""
    name = body.pop("name")
    return _changed(lambda asked: services().models.create(asked, name, body, **query), 201)


@blueprint.view("PUT", "/models/<name>", OPERATE_SCOPED)
@blueprint.takes(ChangeQuerySchema, location="query")
@blueprint.takes(ModelDefinitionSchema, unknown=None)
@blueprint.answers(200, ModelWholeSchema)
def put_model(query: Plain, body: Plain, name: str) -> Any:
    """Add a model, or replace its definition. ``If-None-Match: *`` only adds."""
    return _changed(lambda asked: services().models.put(asked, name, body, **query), 200)


@blueprint.view("PATCH", "/models/<name>", OPERATE_SCOPED)
@blueprint.takes(DryRunSchema, location="query")
@blueprint.takes(ModelPatchSchema)
@blueprint.answers(200, ModelWholeSchema)
def patch_model(query: Plain, body: Plain, name: str) -> Any:
    """Set its class, owner, resources or scaling, and leave the rest."""
    if "service_class" in body:
        body["class"] = body.pop("service_class")
    return _changed(lambda asked: services().models.patch(asked, name, body, **query), 200)


@blueprint.view("DELETE", "/models/<name>", OPERATE_SCOPED)
@blueprint.takes(DryRunSchema, location="query")
@blueprint.answers(200, RemovedSchema)
def remove_model(query: Plain, name: str) -> Plain:
    """Remove a model; what runs of it is drained and stopped."""

    def told(outcome: Outcome) -> Plain:
        draining = [
            row.id for row in services().fleet.view.replicas.values() if row.model == name and row.state != "gone"
        ]
        return {"name": name, "replicas": sorted(draining), "keys": list(outcome.keys), "dry_run": outcome.dry_run}

    return change(
        "models.remove",
        lambda asked: told(services().models.remove(asked, name, **query)),
        lambda gone: told(Outcome(gone, None, None)),
    )


@blueprint.view("POST", "/models/<path:name>/retry", OPERATE_SCOPED)
@blueprint.takes(Empty, required=False)
@blueprint.answers(202, ModelSchema)
def retry_model(_body: Plain, name: str) -> Plain:
    """Try again now: ends backoff and parking."""
    fleet = services().fleet
    return change("models.retry", lambda asked: fleet.retry(asked, name), fleet.model)


def _changed(make: Any, status: int) -> Any:
    def made(asked: Asked) -> Any:
        outcome: Outcome = make(asked)
        shown = _whole(outcome.name, outcome)
        if outcome.dry_run and status != 200:
            return Response(render(ModelWholeSchema(), shown), 200, mimetype="application/json")
        return shown

    return change("models.change", made, _whole)


def _whole(name: str, outcome: Outcome | None = None) -> Plain:
    """A model with its definition: as it is now, or as an outcome says."""
    service, fleet = services().models, services().fleet
    stored = outcome.stored if outcome else service.stored(name)
    model = outcome.model if outcome else None
    if model is None:
        model = services().models.visible(principal(), name)
    running = [row for row in fleet.view.replicas.values() if row.model == model.name]
    definition = outcome.definition if outcome else service.definition(model.name)
    shown = {**fleet.shown_model(model, running), "definition": definition}
    if stored is not None:
        shown |= service.shown(stored)
        if outcome is None or not outcome.dry_run:
            tag(stored.version, live=True)
    if outcome is not None:
        shown |= {"sources": [plain_source(row) for row in outcome.sources], "dry_run": outcome.dry_run or None}
    return shown


def plain_source(report: SourceReport) -> Plain:
    """What was found out about a source, as it is shown."""
    return {
        "source": report.source,
        "state": report.state,
        "usable": report.usable,
        "words": report.words,
        "size_bytes": report.size_bytes,
        "files": report.files,
        "revision": report.revision,
    }
