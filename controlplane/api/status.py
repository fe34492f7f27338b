"""The state of the whole."""

import marshmallow as ma

from controlplane.api.base import READ, Blueprint, Schema, items, number, services
from controlplane.services.fleet import Plain

blueprint = Blueprint("status", __name__, description="The state of the whole, problems first.")


class SettlingSchema(Schema):
    """The wait after a start during which nothing is placed."""

    active = ma.fields.Boolean(required=True)
    seconds = number()
    reason = ma.fields.String()


class MassLossSchema(Schema):
    """So many nodes went silent together that none is declared lost (REC-11): those that are
    not back."""

    seconds = number()
    nodes = ma.fields.List(ma.fields.String(), required=True)


class ProblemSchema(Schema):
    """Something a person should look at."""

    kind = ma.fields.String(required=True)
    subject = ma.fields.String(required=True)
    message = ma.fields.String(required=True)


class DeviceClassSchema(Schema):
    """Devices of one class on connected nodes."""

    device_class = ma.fields.String(required=True)
    total = ma.fields.Integer(required=True)
    claimed = ma.fields.Integer(required=True)
    excluded = ma.fields.Integer(required=True)
    free = ma.fields.Integer(required=True)


class MemorySchema(Schema):
    """Memory of connected nodes. ``unknown_nodes`` do not say what they have."""

    total_bytes = ma.fields.Integer()
    claimed_bytes = ma.fields.Integer()
    used_bytes = ma.fields.Integer()
    nodes = ma.fields.Integer()
    unknown_nodes = ma.fields.Integer()


class CoresSchema(Schema):
    """Cores of connected nodes."""

    total_cores = number()
    claimed_cores = number()
    used_cores = number()
    nodes = ma.fields.Integer()
    unknown_nodes = ma.fields.Integer()


class CapacitySchema(Schema):
    """What there is and what is claimed."""

    devices = items(DeviceClassSchema)
    memory = ma.fields.Nested(MemorySchema, required=True)
    cores = ma.fields.Nested(CoresSchema, required=True)


class ScalingSchema(Schema):
    """How many replicas a model shall have."""

    min = ma.fields.Integer(required=True)
    max = ma.fields.Integer(required=True)
    mode = ma.fields.String(required=True, metadata={"enum": ["always", "on-demand", "off"]})
    idle_timeout = number()


class ModelSummarySchema(Schema):
    """A model against what it should have."""

    name = ma.fields.String(required=True)
    state = ma.fields.String()
    reason = ma.fields.String()
    wanted = ma.fields.Integer(required=True)
    live = ma.fields.Integer(required=True)
    ready = ma.fields.Integer(required=True)
    parked = ma.fields.Boolean(required=True)
    failures = ma.fields.Integer(required=True)
    scaling = ma.fields.Nested(ScalingSchema, required=True)


class RouterSchema(Schema):
    """A router process that reported within the last minute."""

    id = ma.fields.String(required=True)
    boot = ma.fields.String(required=True)
    version = ma.fields.String(required=True)
    generation = ma.fields.String()
    reported_seconds = number()


class LeaderSchema(Schema):
    """The control plane that leads: the one that answers (HA-01)."""

    name = ma.fields.String(required=True)
    ha = ma.fields.Boolean(required=True, metadata={"description": "Whether others may stand by."})
    sure = ma.fields.Boolean(
        required=True, metadata={"description": "False while the lease is in doubt: it only heals in place."}
    )
    remaining_seconds = number()
    failing = ma.fields.String(metadata={"description": "Why the store does not renew the lease."})


class StatusSchema(Schema):
    """The state of the whole."""

    version = ma.fields.String(required=True)
    epoch = ma.fields.Integer(required=True)
    leader = ma.fields.Nested(LeaderSchema, required=True)
    uptime_seconds = number()
    stopped = ma.fields.Boolean(required=True, metadata={"description": "Whether people stopped serving."})
    settling = ma.fields.Nested(SettlingSchema, required=True)
    mass_loss = ma.fields.Nested(MassLossSchema)
    problems = items(ProblemSchema)
    nodes = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.Integer(), required=True)
    capacity = ma.fields.Nested(CapacitySchema, required=True)
    models = items(ModelSummarySchema)
    replicas = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.Integer(), required=True)
    routers = items(RouterSchema)


@blueprint.view("GET", "/status", READ)
@blueprint.answers(200, StatusSchema)
def read_status() -> Plain:
    """Problems, nodes, capacity, models."""
    return services().status.read()
