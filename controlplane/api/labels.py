"""Labels of nodes that people give; they lie over the agent's own."""

import marshmallow as ma

from controlplane.api.base import OPERATE, READ, Blueprint, Schema, change, services, tagged
from controlplane.services.fleet import Plain

blueprint = Blueprint(
    "labels", __name__, description="Labels of nodes; llmgw.io/rack and its like say where a node is."
)


class LabelsSchema(Schema):
    """A node's labels: ``labels`` all that hold, ``labels_set`` those that people gave,
    ``labels_agent`` the agent's own, absent if it never registered."""

    node = ma.fields.String(required=True)
    labels = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String(), required=True)
    labels_set = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String(), required=True)
    labels_agent = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String())
    location = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String(), required=True)


class LabelsRequestSchema(Schema):
    """Labels by name."""

    labels = ma.fields.Dict(
        keys=ma.fields.String(),
        values=ma.fields.String(),
        required=True,
        metadata={"example": {"llmgw.io/rack": "r12", "tier": "gold"}},
    )


class LabelsPatchSchema(Schema):
    """Labels by name; null takes one away."""

    labels = ma.fields.Dict(
        keys=ma.fields.String(),
        values=ma.fields.String(allow_none=True),
        required=True,
        metadata={"example": {"llmgw.io/rack": "r12", "tier": None}},
    )


@blueprint.view("GET", "/nodes/<node_id>/labels", READ, tagged=True)
@blueprint.answers(200, LabelsSchema)
def read_labels(node_id: str) -> Plain:
    """A node's labels."""
    return tagged(services().labels.one(node_id))


@blueprint.view("PUT", "/nodes/<node_id>/labels", OPERATE, tagged=True)
@blueprint.takes(LabelsRequestSchema)
@blueprint.answers(200, LabelsSchema)
def replace_labels(body: Plain, node_id: str) -> Plain:
    """Make these the labels that people gave the node. The agent's own stay beneath."""
    labels = services().labels
    return tagged(change("nodes.labels", lambda asked: labels.replace(asked, node_id, body["labels"]), labels.one))


@blueprint.view("PATCH", "/nodes/<node_id>/labels", OPERATE, tagged=True)
@blueprint.takes(LabelsPatchSchema)
@blueprint.answers(200, LabelsSchema)
def change_labels(body: Plain, node_id: str) -> Plain:
    """Set some labels; null takes one away."""
    labels = services().labels
    return tagged(change("nodes.labels", lambda asked: labels.merge(asked, node_id, body["labels"]), labels.one))
