"""Decisions and events: a list, and a stream of new ones."""

import marshmallow as ma
from flask import Response, request

from controlplane.api.base import READ, Blueprint, PageAnswer, PageQuery, Schema, items, principal, services
from controlplane.services.errors import invalid
from controlplane.services.events import EventFilter, stream
from controlplane.services.fleet import Plain
from controlplane.services.moments import past

blueprint = Blueprint("events", __name__, description="What was decided and seen, newest first.")

STREAM = "text/event-stream"
MAX_SECONDS = 86400


class EventSchema(Schema):
    """One decision. ``figures`` are the numbers behind ``reason``."""

    id = ma.fields.String(metadata={"description": "Unique for ever."})
    at = ma.fields.String(required=True)
    kind = ma.fields.String(required=True)
    reason = ma.fields.String(required=True)
    epoch = ma.fields.Integer()
    model = ma.fields.String()
    replica = ma.fields.String()
    node = ma.fields.String()
    figures = ma.fields.Dict()


class EventsSchema(PageAnswer):
    """Events."""

    events = items(EventSchema)
    incomplete = ma.fields.String(
        metadata={"description": "Why events are missing that the store has; absent if it answered."}
    )


class SentSchema(Schema):
    """One server-sent event. ``data`` is an event as JSON, or an object with a ``message``."""

    id = ma.fields.String()
    event = ma.fields.String(required=True, metadata={"enum": ["event", "gap", "dropped", "end"]})
    data = ma.fields.String(required=True)


class EventsQuerySchema(PageQuery):
    """Which events."""

    limit = ma.fields.Integer(
        load_default=100, validate=ma.validate.Range(1, 1000), metadata={"description": "Most entries to answer."}
    )
    model = ma.fields.String(validate=ma.validate.Length(1, 200))
    node = ma.fields.String(validate=ma.validate.Length(1, 253))
    kind = ma.fields.String(validate=ma.validate.Length(1, 100))
    since = ma.fields.String(
        validate=ma.validate.Length(1, 40),
        metadata={"description": "Not before: a duration ago such as 1h, or an ISO 8601 moment."},
    )
    until = ma.fields.String(validate=ma.validate.Length(1, 40), metadata={"description": "Before: the same."})
    watch = ma.fields.Boolean(
        metadata={"description": "Answer a stream of server-sent events, as the header Accept: text/event-stream does."}
    )
    seconds = ma.fields.Float(
        validate=ma.validate.Range(0, MAX_SECONDS),
        metadata={"description": "End the stream after so many seconds (default: when the client goes)."},
    )


@blueprint.view("GET", "/events", READ)
@blueprint.takes(EventsQuerySchema, location="query")
@blueprint.answers(200, EventsSchema)
@blueprint.alternatively(
    200,
    schema=SentSchema,
    content_type=STREAM,
    description="OK",
    example={"id": "5f0c9a1be2d9-00000001", "event": "event", "data": '{"kind": "place", "reason": "..."}'},
)
def list_events(query: Plain) -> Plain | Response:
    """The latest events, newest first; or a stream of those to come.

    With ``watch`` each event comes as a server-sent event with its id. ``Last-Event-ID``
    (what browsers send by themselves) goes on after that one, as far as memory reaches:
    otherwise an event ``gap`` comes first. A client that reads too slowly gets an event
    ``dropped`` and the end. A comment comes every 15 seconds.
    """
    now = services().clock.now()
    since, until = (
        query[name] and past(name, query[name], now) if name in query else None for name in ("since", "until")
    )
    which = EventFilter(query.get("model"), query.get("node"), query.get("kind"), since, until)
    if query.get("watch", request.accept_mimetypes.best == STREAM):
        return _stream(which, query)
    if "seconds" in query:
        raise invalid("seconds", "is for a stream: send watch=true too")
    return services().events.page(which, query["limit"], query.get("cursor"))


def _stream(which: EventFilter, query: Plain) -> Response:
    if "cursor" in query:
        raise invalid("cursor", "is for the list: a stream goes on after the header Last-Event-ID")
    kept = services()
    who = principal()
    response = Response(mimetype=STREAM, headers={"X-Accel-Buffering": "no"})
    if request.method == "HEAD":
        return response
    watcher, missed, complete = kept.events.watch(which, _last_id(), who.user)
    response.response = stream(
        kept.events,
        watcher,
        missed,
        complete=complete,
        good=lambda: (now := kept.auth.still(who)) is not None and now.has(*READ),
        seconds=query.get("seconds"),
        clock=kept.clock,
    )
    response.call_on_close(lambda: kept.events.forget(watcher))
    return response


def _last_id() -> str | None:
    value = request.headers.get("Last-Event-ID")
    if value is not None and not (0 < len(value) <= 100 and value.isascii() and value.isprintable()):
        raise invalid("Last-Event-ID", "must be the id of an event")
    return value
