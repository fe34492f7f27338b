"""Replicas and their shards."""

import marshmallow as ma

from controlplane.api.base import Blueprint, Schema, items, number, services
from controlplane.services.fleet import Plain

blueprint = Blueprint("replicas", __name__, description="Running copies of models.")


class ReasonSchema(Schema):
    """Why a candidate was turned down, with the figures."""

    code = ma.fields.String(required=True)
    message = ma.fields.String(required=True)
    needed = number()
    available = number()


class ScoreSchema(Schema):
    """One term of a candidate's score; smaller is better."""

    term = ma.fields.String(required=True)
    value = ma.fields.Raw(required=True)


class CandidateSchema(Schema):
    """A profile on a node, and whether it fits."""

    profile = ma.fields.String(required=True)
    node = ma.fields.String(required=True)
    fits = ma.fields.Boolean(required=True)
    chosen = ma.fields.Boolean(required=True)
    reasons = items(ReasonSchema)
    score = items(ScoreSchema)


class ExitSchema(Schema):
    """How a shard ended; ``tail`` is its last lines of output."""

    code = ma.fields.String(required=True)
    message = ma.fields.String()
    exit_status = ma.fields.Integer()
    tail = ma.fields.List(ma.fields.String())


class ShardSchema(Schema):
    """A replica's part on one node."""

    rank = ma.fields.Integer(required=True)
    incarnation = ma.fields.Integer(required=True)
    node = ma.fields.String(required=True)
    phase = ma.fields.String(required=True)
    phase_seconds = number()
    engine = ma.fields.String(required=True)
    host = ma.fields.String()
    port = ma.fields.Integer()
    devices = ma.fields.List(ma.fields.String())
    cpu_cores = number()
    memory_bytes = ma.fields.Integer()
    pid = ma.fields.Integer()
    adopted = ma.fields.Boolean()
    detail = ma.fields.String()
    exit = ma.fields.Nested(ExitSchema)


class ReplicaSchema(Schema):
    """A replica; ``reason`` is why it is in its state, ``stale`` absent if unknown."""

    id = ma.fields.String(required=True)
    model = ma.fields.String(required=True)
    profile = ma.fields.String(required=True)
    fingerprint = ma.fields.String()
    stale = ma.fields.Boolean()
    state = ma.fields.String(required=True)
    state_seconds = number()
    age_seconds = number()
    reason = ma.fields.String()
    rejected = items(CandidateSchema)
    shards = items(ShardSchema)


class ReplicasSchema(Schema):
    """Replicas."""

    replicas = items(ReplicaSchema)


class ReplicasQuerySchema(Schema):
    """Which replicas."""

    model = ma.fields.String(metadata={"description": "Only replicas of this model."})
    node = ma.fields.String(metadata={"description": "Only replicas with a shard on this node."})


@blueprint.view("GET", "/replicas")
@blueprint.takes(ReplicasQuerySchema, location="query")
@blueprint.answers(200, ReplicasSchema)
def list_replicas(query: Plain) -> Plain:
    """All replicas, or those of a model or node."""
    return {"replicas": services().fleet.replicas(**query)}


@blueprint.view("GET", "/replicas/<replica_id>")
@blueprint.answers(200, ReplicaSchema)
def read_replica(replica_id: str) -> Plain:
    """One replica."""
    return services().fleet.replica(replica_id)
