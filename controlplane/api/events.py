"""Recent decisions and events."""

import marshmallow as ma

from controlplane.api.base import Blueprint, Schema, items, services
from controlplane.journal import RECENT
from controlplane.services.fleet import Plain

blueprint = Blueprint("events", __name__, description="What was decided and seen of late, newest first.")


class EventSchema(Schema):
    """One decision. ``figures`` are the numbers behind ``reason``."""

    at = ma.fields.String(required=True)
    kind = ma.fields.String(required=True)
    reason = ma.fields.String(required=True)
    epoch = ma.fields.Integer()
    model = ma.fields.String()
    replica = ma.fields.String()
    node = ma.fields.String()
    figures = ma.fields.Dict()


class EventsSchema(Schema):
    """Events."""

    events = items(EventSchema)


class EventsQuerySchema(Schema):
    """Which events."""

    limit = ma.fields.Integer(load_default=100, validate=ma.validate.Range(1, RECENT))
    model = ma.fields.String()
    node = ma.fields.String()
    kind = ma.fields.String()


@blueprint.view("GET", "/events")
@blueprint.takes(EventsQuerySchema, location="query")
@blueprint.answers(200, EventsSchema)
def list_events(query: Plain) -> Plain:
    """The latest events, newest first."""
    return {"events": services().events(**query)}
