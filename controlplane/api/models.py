"""Models: desired against actual, and why."""

import marshmallow as ma

from controlplane.api.base import Blueprint, Empty, Schema, actor, items, number, services
from controlplane.api.replicas import CandidateSchema, ReasonSchema
from controlplane.api.status import ModelSummarySchema
from controlplane.services.fleet import Plain

blueprint = Blueprint("models", __name__, description="The models of the catalog.")


class ProfileSchema(Schema):
    """One way to run a model."""

    name = ma.fields.String(required=True)
    engine = ma.fields.String(required=True)
    source = ma.fields.String(required=True)
    priority = ma.fields.Integer()
    gpu_class = ma.fields.String()
    gpus = ma.fields.Integer()
    memory_bytes = ma.fields.Integer()
    cpu_cores = number()
    node_selector = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String())
    context = ma.fields.Integer()
    slots = ma.fields.Integer()
    startup_timeout = number()
    fingerprint = ma.fields.String()


class ModelSchema(ModelSummarySchema):
    """A model. ``last_output`` is what its last failed engine wrote."""

    aliases = ma.fields.List(ma.fields.String(), required=True)
    replicas = ma.fields.List(ma.fields.String(), required=True)
    quarantined = ma.fields.String()
    backoff_seconds = number()
    last_error = ma.fields.String()
    last_error_code = ma.fields.String()
    last_error_seconds = number()
    last_output = ma.fields.List(ma.fields.String())
    profiles = items(ProfileSchema)


class ModelsSchema(Schema):
    """All models."""

    models = items(ModelSchema)


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


@blueprint.view("GET", "/models")
@blueprint.answers(200, ModelsSchema)
def list_models() -> Plain:
    """Every model."""
    return {"models": services().fleet.models()}


@blueprint.view("GET", "/models/<path:name>")
@blueprint.answers(200, ModelSchema)
def read_model(name: str) -> Plain:
    """One model, by name or alias."""
    return services().fleet.model(name)


@blueprint.view("GET", "/models/<path:name>/explain")
@blueprint.answers(200, ExplanationSchema)
def explain_model(name: str) -> Plain:
    """Why it is where it is, candidate by candidate."""
    return services().fleet.explain(name)


@blueprint.view("POST", "/models/<path:name>/retry")
@blueprint.takes(Empty, required=False)
@blueprint.answers(202, ModelSchema)
def retry_model(_body: Plain, name: str) -> Plain:
    """Try again now: ends backoff and parking."""
    return services().fleet.retry(name, actor())
