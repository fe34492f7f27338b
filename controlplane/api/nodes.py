"""Nodes: what they have, what is claimed, and their cordon."""

import marshmallow as ma

from controlplane.api.base import (
    OPERATE,
    READ,
    Blueprint,
    Empty,
    PageAnswer,
    PageQuery,
    Schema,
    change,
    items,
    number,
    services,
)
from controlplane.api.fields import text
from controlplane.services.fleet import Plain
from controlplane.services.paging import page_by_name

REASON = r"[^\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]{0,1000}\Z"
STATUSES = ("connected", "reconnecting", "unreachable", "lost")

blueprint = Blueprint("nodes", __name__, description="Enrolled nodes, connected or not.")


class CordonSchema(Schema):
    """Who keeps new replicas off a node, since when and why."""

    reason = ma.fields.String(required=True)
    actor = ma.fields.String(required=True)
    at = ma.fields.String(required=True)


class HeldSchema(CordonSchema):
    """A domain of the node in which nothing new is placed."""

    domain = ma.fields.String(required=True, metadata={"example": "llmgw.io/rack=r12"})


class CordonRequestSchema(Schema):
    """Why a node is cordoned."""

    reason = text(
        required=True,
        validate=ma.validate.Regexp(REASON, error="must be at most 1000 printable characters"),
        metadata={"example": "fan is being replaced"},
    )


class CpuSchema(Schema):
    """Processor: what there is, what replicas claim, what is used."""

    model = ma.fields.String()
    count = ma.fields.Integer()
    claimed_cores = number()
    percent = number()
    load1 = number()


class NodeMemorySchema(Schema):
    """Memory in bytes."""

    total_bytes = ma.fields.Integer()
    claimed_bytes = ma.fields.Integer()
    used_bytes = ma.fields.Integer()
    available_bytes = ma.fields.Integer()


class DeviceSchema(Schema):
    """A GPU or MIG instance. ``claimed_by`` is a replica; ``excluded`` says why it must not be used."""

    uuid = ma.fields.String(required=True)
    kind = ma.fields.String(required=True)
    index = ma.fields.Integer()
    name = ma.fields.String()
    device_class = ma.fields.String()
    memory_bytes = ma.fields.Integer()
    claimed_by = ma.fields.String()
    excluded = ma.fields.String()
    memory_used_bytes = ma.fields.Integer()
    utilization_percent = number()
    temperature_celsius = number()
    power_watts = number()
    foreign_processes = ma.fields.List(ma.fields.String())


class EngineSchema(Schema):
    """An engine installed on a node: ready only after it was seen to run."""

    name = ma.fields.String(required=True)
    state = ma.fields.String(required=True)
    version = ma.fields.String()
    detail = ma.fields.String()


class NodeSchema(Schema):
    """A node. What is absent is unknown."""

    id = ma.fields.String(required=True)
    status = ma.fields.String(required=True, metadata={"enum": list(STATUSES)})
    status_seconds = number()
    last_heard_seconds = number()
    enrolled = ma.fields.Boolean(required=True)
    cordon = ma.fields.Nested(CordonSchema)
    agent_version = ma.fields.String()
    address = ma.fields.String()
    hostname = ma.fields.String()
    os = ma.fields.String()
    kernel = ma.fields.String()
    arch = ma.fields.String()
    driver = ma.fields.String()
    labels = ma.fields.Dict(
        keys=ma.fields.String(),
        values=ma.fields.String(),
        metadata={"description": "The agent's, and over them those that people gave it."},
    )
    labels_set = ma.fields.Dict(
        keys=ma.fields.String(), values=ma.fields.String(), metadata={"description": "Those that people gave it."}
    )
    location = ma.fields.Dict(
        keys=ma.fields.String(), values=ma.fields.String(), metadata={"description": "site, room, row, rack, pdu"}
    )
    holds = items(HeldSchema)
    notes = ma.fields.List(ma.fields.String())
    cpu = ma.fields.Nested(CpuSchema)
    memory = ma.fields.Nested(NodeMemorySchema)
    devices = items(DeviceSchema)
    engines = ma.fields.List(ma.fields.Nested(EngineSchema))
    replicas = ma.fields.List(ma.fields.String(), required=True)


class NodesSchema(PageAnswer):
    """Nodes, by id."""

    nodes = items(NodeSchema)


class NodesQuerySchema(PageQuery):
    """Which nodes."""

    status = ma.fields.String(validate=ma.validate.OneOf(STATUSES))
    label = ma.fields.List(
        ma.fields.String(validate=ma.validate.Length(1, 400)),
        validate=ma.validate.Length(max=20),
        metadata={
            "description": "NAME=VALUE, of several all must fit.",
            "example": ["llmgw.io/rack=r12"],
        },
    )
    domain = ma.fields.String(
        validate=ma.validate.Length(1, 400), metadata={"description": "In this rack, row, ...: such as rack=r12."}
    )
    name = ma.fields.String(validate=ma.validate.Length(1, 253), metadata={"description": "Whose id contains this."})
    cordoned = ma.fields.Boolean()


@blueprint.view("GET", "/nodes", READ)
@blueprint.takes(NodesQuerySchema, location="query")
@blueprint.answers(200, NodesSchema)
def list_nodes(query: Plain) -> Plain:
    """Enrolled nodes, connected or not."""
    limit, cursor, fleet = query.pop("limit"), query.pop("cursor", None), services().fleet
    ids = fleet.node_ids(labels=query.pop("label", ()), within=query.pop("domain", None), **query)
    page, after = page_by_name(ids, limit, cursor)
    return {"nodes": fleet.nodes(page), "next": after}


@blueprint.view("GET", "/nodes/<node_id>", READ)
@blueprint.answers(200, NodeSchema)
def read_node(node_id: str) -> Plain:
    """One node."""
    return services().fleet.node(node_id)


class LossSchema(Schema):
    """Whose loss is accepted."""

    nodes = ma.fields.List(
        ma.fields.String(validate=ma.validate.Length(1, 253)),
        validate=ma.validate.Length(1, 10_000),
        metadata={"description": "Those of them that went silent together; all that did if it is absent."},
    )


class LostSchema(Schema):
    """Nodes that are declared lost, and those that went silent with them and are not."""

    nodes = ma.fields.List(ma.fields.String(), required=True)
    silent = ma.fields.List(ma.fields.String(), required=True)


@blueprint.view("POST", "/nodes/accept-loss", OPERATE)
@blueprint.takes(LossSchema, required=False)
@blueprint.answers(202, LostSchema)
def accept_loss(body: Plain) -> Plain:
    """Declare lost nodes that went silent together: what ran there is rebuilt elsewhere.

    Name those that are meant: more may have fallen silent since you looked.
    """
    losses = services().losses
    return change(
        "nodes.accept_loss", lambda asked: losses.accept(asked, body.get("nodes")), lambda _target: losses.lost()
    )


@blueprint.view("POST", "/nodes/<node_id>/cordon", OPERATE)
@blueprint.takes(CordonRequestSchema)
@blueprint.answers(200, NodeSchema)
def cordon_node(body: Plain, node_id: str) -> Plain:
    """Place nothing new on a node; what runs there goes on."""
    fleet = services().fleet
    return change("nodes.cordon", lambda asked: fleet.cordon(asked, node_id, body["reason"]), fleet.node)


@blueprint.view("POST", "/nodes/<node_id>/uncordon", OPERATE)
@blueprint.takes(Empty, required=False)
@blueprint.answers(200, NodeSchema)
def uncordon_node(_body: Plain, node_id: str) -> Plain:
    """End a cordon."""
    fleet = services().fleet
    return change("nodes.uncordon", lambda asked: fleet.uncordon(asked, node_id), fleet.node)
