"""Replicas and their shards."""

from typing import Any, get_args

import marshmallow as ma

from controlplane.api.base import (
    OPERATE_SCOPED,
    READ_SCOPED,
    Blueprint,
    PageAnswer,
    PageQuery,
    Schema,
    change,
    items,
    number,
    principal,
    services,
)
from controlplane.api.fields import text
from controlplane.planning.view import ReplicaState
from controlplane.services.fleet import Plain, Which
from controlplane.services.paging import page_by_name

STATES = get_args(ReplicaState)

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
    used_cores = number()
    used_memory_bytes = ma.fields.Integer()
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
    stale_because = ma.fields.String(metadata={"description": "Why it would be started otherwise now."})
    restart = ma.fields.String(metadata={"description": "How far a restart is: queued, replacing, in place."})
    restart_asked = ma.fields.String(metadata={"description": "Who asked for it, and why."})
    replacement = ma.fields.String(metadata={"description": "The replica that takes this one's place."})
    state = ma.fields.String(required=True, metadata={"enum": list(STATES)})
    state_seconds = number()
    age_seconds = number()
    reason = ma.fields.String()
    rejected = ma.fields.List(
        ma.fields.Nested(CandidateSchema),
        metadata={"description": "Candidates turned down when it was placed; absent where they were not asked for."},
    )
    shards = items(ShardSchema)


class ReplicasSchema(PageAnswer):
    """Replicas, by model and id."""

    replicas = items(ReplicaSchema)


class ReplicasQuerySchema(PageQuery):
    """Which replicas."""

    model = ma.fields.String(
        validate=ma.validate.Length(1, 200), metadata={"description": "Only of this model, by name or alias."}
    )
    node = ma.fields.String(
        validate=ma.validate.Length(1, 253), metadata={"description": "Only with a shard on this node."}
    )
    state = ma.fields.String(validate=ma.validate.OneOf(STATES))
    rejected = ma.fields.Boolean(
        load_default=True,
        metadata={"description": "false: without the candidates that were turned down, most of a long answer."},
    )


class RestartRequestSchema(Schema):
    """Which replicas, by exactly one of replicas, model, stale and all."""

    replicas = ma.fields.List(
        ma.fields.String(validate=ma.validate.Length(1, 300)), validate=ma.validate.Length(1, 5000)
    )
    model = ma.fields.String(validate=ma.validate.Length(1, 128), metadata={"description": "All of this model."})
    stale = ma.fields.Boolean(metadata={"description": "true: all that run an older profile or engine key."})
    all = ma.fields.Boolean(metadata={"description": "true: all."})
    in_place = ma.fields.Boolean(
        load_default=False, metadata={"description": "Stop each before its replacement comes, instead of after."}
    )
    reason = text(load_default="", validate=ma.validate.Length(max=1000))

    @ma.validates_schema
    def name_which(self, data: Plain, **_: Any) -> None:
        """One of the four says which."""
        if sum(bool(data.get(name)) for name in ("replicas", "model", "stale", "all")) != 1:
            raise ma.ValidationError("name exactly one of replicas, model, stale: true and all: true")


class QueuedSchema(Schema):
    """A replica that is to be replaced."""

    id = ma.fields.String(required=True)
    model = ma.fields.String(required=True)
    state = ma.fields.String(required=True)


class RestartSchema(Schema):
    """What is queued, one at a time per model. Nothing: there was none to restart."""

    queued = items(QueuedSchema)


@blueprint.view("GET", "/replicas", READ_SCOPED)
@blueprint.takes(ReplicasQuerySchema, location="query")
@blueprint.answers(200, ReplicasSchema)
def list_replicas(query: Plain) -> Plain:
    """Replicas; an owner sees those of its scopes' models."""
    limit, cursor, fleet = query.pop("limit"), query.pop("cursor", None), services().fleet
    rejected = query.pop("rejected")
    page, after = page_by_name(fleet.replica_ids(principal(), **query), limit, cursor)
    return {"replicas": fleet.replicas(page, rejected=rejected), "next": after}


@blueprint.view("GET", "/replicas/<replica_id>", READ_SCOPED)
@blueprint.answers(200, ReplicaSchema)
def read_replica(replica_id: str) -> Plain:
    """One replica."""
    return services().fleet.replica(principal(), replica_id)


@blueprint.view("POST", "/replicas/restart", OPERATE_SCOPED)
@blueprint.takes(RestartRequestSchema)
@blueprint.answers(202, RestartSchema)
def restart_replicas(body: Plain) -> Plain:
    """Replace replicas one at a time per model, each by a new one that is ready before it drains."""
    fleet = services().fleet
    which = Which(
        tuple(dict.fromkeys(body.get("replicas", ()))),
        body.get("model"),
        bool(body.get("stale")),
        bool(body.get("all")),
    )
    queued = change(
        "replicas.restart",
        lambda asked: fleet.restart(asked, which, in_place=body["in_place"], reason=body["reason"]),
        lambda _: fleet.restarting(principal()),
    )
    return {"queued": [{"id": row.id, "model": row.model, "state": row.state} for row in queued]}
