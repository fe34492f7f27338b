"""Nodes: what they have, what is claimed, and their cordon."""

import marshmallow as ma

from controlplane.api.base import Blueprint, Empty, Schema, actor, items, number, services
from controlplane.services.fleet import Plain

blueprint = Blueprint("nodes", __name__, description="Enrolled nodes, connected or not.")


class CordonSchema(Schema):
    """Who keeps new replicas off a node, since when and why."""

    reason = ma.fields.String(required=True)
    actor = ma.fields.String(required=True)
    at = ma.fields.String(required=True)


class CordonRequestSchema(Schema):
    """Why a node is cordoned."""

    reason = ma.fields.String(required=True, validate=ma.validate.Length(max=1000))


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
    status = ma.fields.String(required=True, metadata={"enum": ["connected", "reconnecting", "unreachable", "lost"]})
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
    labels = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String())
    notes = ma.fields.List(ma.fields.String())
    cpu = ma.fields.Nested(CpuSchema)
    memory = ma.fields.Nested(NodeMemorySchema)
    devices = items(DeviceSchema)
    engines = ma.fields.List(ma.fields.Nested(EngineSchema))
    replicas = ma.fields.List(ma.fields.String(), required=True)


class NodesSchema(Schema):
    """All nodes."""

    nodes = items(NodeSchema)


@blueprint.view("GET", "/nodes")
@blueprint.answers(200, NodesSchema)
def list_nodes() -> Plain:
    """Every enrolled node."""
    return {"nodes": services().fleet.nodes()}


@blueprint.view("GET", "/nodes/<node_id>")
@blueprint.answers(200, NodeSchema)
def read_node(node_id: str) -> Plain:
    """One node."""
    return services().fleet.node(node_id)


@blueprint.view("POST", "/nodes/<node_id>/cordon")
@blueprint.takes(CordonRequestSchema)
@blueprint.answers(200, NodeSchema)
def cordon_node(body: Plain, node_id: str) -> Plain:
    """Place nothing new on a node; what runs there goes on."""
    return services().fleet.cordon(node_id, body["reason"], actor())


@blueprint.view("POST", "/nodes/<node_id>/uncordon")
@blueprint.takes(Empty, required=False)
@blueprint.answers(200, NodeSchema)
def uncordon_node(_body: Plain, node_id: str) -> Plain:
    """End a cordon."""
    return services().fleet.uncordon(node_id)
