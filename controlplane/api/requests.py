"""The log of finished requests: metadata, never prompts."""

from urllib.parse import urlencode

import marshmallow as ma
from flask import Response, request

from controlplane.api.base import (
    READ_SCOPED,
    Blueprint,
    PageAnswer,
    PageQuery,
    Schema,
    items,
    number,
    principal,
    services,
)
from controlplane.api.usage import CSV, csv_answer, wants_csv
from controlplane.services.errors import not_found
from controlplane.services.fleet import Plain
from controlplane.services.moments import past, shown
from controlplane.services.reading import PATIENCE
from controlplane.services.scoped import scope_of
from controlplane.store.values import RequestEntry

blueprint = Blueprint("requests", __name__, description="Finished requests of clients, if the log is on.")

CSV_PATIENCE = 20.0
"""Seconds in which the rows of a table are looked for: there will be no other page."""

COLUMNS = (
    *("at", "id", "key", "key_name", "scope", "model", "asked", "replica", "router", "status", "code", "stream"),
    *("first_byte_seconds", "duration_seconds", "prompt_tokens", "completion_tokens", "cached_tokens", "retried"),
)


class RequestSchema(Schema):
    """One request. ``asked`` is the name the client used, if another than the model's;
    ``retried`` says why each earlier try failed. Absent token counts are unknown."""

    at = ma.fields.String(required=True)
    id = ma.fields.String(required=True)
    key = ma.fields.String(required=True)
    key_name = ma.fields.String()
    scope = ma.fields.String()
    model = ma.fields.String(required=True)
    asked = ma.fields.String()
    replica = ma.fields.String()
    router = ma.fields.String(required=True)
    status = ma.fields.Integer(required=True)
    code = ma.fields.String()
    stream = ma.fields.Boolean(required=True)
    first_byte_seconds = number()
    duration_seconds = number()
    prompt_tokens = ma.fields.Integer()
    completion_tokens = ma.fields.Integer()
    cached_tokens = ma.fields.Integer()
    retried = ma.fields.List(ma.fields.String())


class RequestsSchema(PageAnswer):
    """Requests, newest first."""

    requests = items(RequestSchema)


class RequestsQuerySchema(PageQuery):
    """Which requests."""

    limit = ma.fields.Integer(
        load_default=100, validate=ma.validate.Range(1, 5000), metadata={"description": "Most entries to answer."}
    )
    key = ma.fields.String(validate=ma.validate.Length(1, 200), metadata={"description": "Only of this key, by id."})
    scope = ma.fields.String(
        validate=ma.validate.Length(1, 200), metadata={"description": "Only of this scope and what is beneath it."}
    )
    model = ma.fields.String(validate=ma.validate.Length(1, 200))
    replica = ma.fields.String(validate=ma.validate.Length(1, 200))
    failed = ma.fields.Boolean(metadata={"description": "Only those that failed, or only those that did not."})
    since = ma.fields.String(
        validate=ma.validate.Length(1, 40),
        metadata={"description": "Not before: a duration ago such as 1h, or an ISO 8601 moment."},
    )
    until = ma.fields.String(validate=ma.validate.Length(1, 40), metadata={"description": "Before: the same."})
    format = ma.fields.String(
        validate=ma.validate.OneOf(("json", "csv")),
        metadata={"description": "csv for a table, as the header Accept: text/csv."},
    )


@blueprint.view("GET", "/requests", READ_SCOPED)
@blueprint.takes(RequestsQuerySchema, location="query")
@blueprint.answers(200, RequestsSchema)
@blueprint.alternatively(200, schema={"type": "string"}, content_type=CSV, description="OK", example="at,id\r\n")
def list_requests(query: Plain) -> Plain | Response:
    """Logged requests, newest first; an owner sees those of its scopes' keys.

    An answer may have fewer than ``limit``, or none, and yet a ``next``: what was looked
    through in a second held no more. CSV has it in the header ``Link``.
    """
    now = services().clock.now()
    moments: Plain = {name: past(name, query[name], now) for name in ("since", "until") if name in query}
    which: Plain = {name: query[name] for name in ("key", "model", "replica", "failed") if name in query}
    scope = scope_of(principal(), query.get("scope"))
    page = services().usage.requests(
        query["limit"],
        query.get("cursor"),
        scope=scope,
        **which,
        **moments,
        patience=CSV_PATIENCE if wants_csv(query.get("format")) else PATIENCE,
    )
    names = _key_names()
    found = [_plain(entry, names) for entry in page.items]
    if wants_csv(query.get("format")):
        answer = csv_answer(
            list(COLUMNS), [{**row, "retried": "; ".join(row["retried"] or ())} for row in found], "requests"
        )
        if page.next is not None:  # a table has no place for it
            following = urlencode({**request.args.to_dict(), "cursor": page.next})
            answer.headers["Link"] = f'<{request.path}?{following}>; rel="next"'
        return answer
    return {"requests": found, "next": page.next}


@blueprint.view("GET", "/requests/<request_id>", READ_SCOPED)
@blueprint.answers(200, RequestSchema)
def read_request(request_id: str) -> Plain:
    """One logged request, by the id that its answer carried."""
    entry = services().usage.request(request_id)
    if entry is None or not principal().sees(entry.scope):
        kept = services().cluster.value("requests.retention") / 86400
        off = "" if services().cluster.value("requests.log") else "; the log is off (cluster setting requests.log)"
        raise not_found("logged request", request_id, f": they are kept for {kept:g} days{off}")
    return _plain(entry, _key_names())


def _key_names() -> dict[str, str]:
    return {key.id: key.name for key in services().keys.all()}


def _plain(entry: RequestEntry, names: dict[str, str]) -> Plain:
    return {
        "at": shown(entry.at),
        "id": entry.id,
        "key": entry.key,
        "key_name": names.get(entry.key),
        "scope": entry.scope or None,
        "model": entry.model,
        "asked": entry.asked or None,
        "replica": entry.replica or None,
        "router": entry.router,
        "status": entry.status,
        "code": entry.code or None,
        "stream": entry.stream,
        "first_byte_seconds": entry.first_byte,
        "duration_seconds": entry.duration,
        "prompt_tokens": entry.prompt_tokens,
        "completion_tokens": entry.completion_tokens,
        "cached_tokens": entry.cached_tokens,
        "retried": list(entry.retried) or None,
    }
