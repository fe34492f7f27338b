"""What was used: tokens and requests by key, scope, model and time."""

from datetime import datetime

import marshmallow as ma
from flask import Response, request

from controlplane.api.base import READ_SCOPED, Blueprint, Schema, items, principal, services
from controlplane.services.csvtext import csv_text
from controlplane.services.errors import invalid
from controlplane.services.fleet import Plain
from controlplane.services.moments import past, shown
from controlplane.services.scoped import scope_of
from controlplane.services.usage import By
from controlplane.store.values import UsageRow

blueprint = Blueprint("usage", __name__, description="Requests and tokens, summed by hour, by key, scope and model.")

BY: tuple[By, ...] = ("key", "scope", "model", "day", "hour")
COLUMNS = ("requests", "failed", "uncounted", "prompt_tokens", "completion_tokens", "cached_tokens")
CSV = "text/csv"
DEFAULT_SINCE = "30d"


class UsageRowSchema(Schema):
    """A sum. ``start`` is when its day or hour began. ``uncounted`` requests had no token
    counts: their tokens are unknown, not zero, and not in the sums."""

    start = ma.fields.String()
    key = ma.fields.String()
    key_name = ma.fields.String()
    scope = ma.fields.String()
    model = ma.fields.String()
    requests = ma.fields.Integer(required=True)
    failed = ma.fields.Integer(required=True)
    uncounted = ma.fields.Integer(required=True)
    prompt_tokens = ma.fields.Integer(required=True)
    completion_tokens = ma.fields.Integer(required=True)
    cached_tokens = ma.fields.Integer(required=True)


class UsageSchema(Schema):
    """Sums between two moments, by what was asked for. Hours are the finest there is:
    the bounds are those of the first and of the last hour."""

    since = ma.fields.String(required=True)
    until = ma.fields.String(required=True)
    by = ma.fields.List(ma.fields.String(), required=True)
    usage = items(UsageRowSchema)


class UsageQuerySchema(Schema):
    """Which sums."""

    since = ma.fields.String(
        load_default=DEFAULT_SINCE,
        validate=ma.validate.Length(1, 40),
        metadata={"description": "Not before: a duration ago such as 24h, or an ISO 8601 moment."},
    )
    until = ma.fields.String(
        validate=ma.validate.Length(1, 40), metadata={"description": "Before: the same; now if left out."}
    )
    by = ma.fields.String(
        load_default="model",
        validate=ma.validate.Length(1, 60),
        metadata={"description": f"Commas between some of {', '.join(BY)}; day and hour exclude each other."},
    )
    key = ma.fields.String(validate=ma.validate.Length(1, 200), metadata={"description": "Only of this key, by id."})
    scope = ma.fields.String(
        validate=ma.validate.Length(1, 200), metadata={"description": "Only of this scope and what is beneath it."}
    )
    model = ma.fields.String(validate=ma.validate.Length(1, 200), metadata={"description": "Only of this model."})
    format = ma.fields.String(
        validate=ma.validate.OneOf(("json", "csv")),
        metadata={"description": "csv for a table, as the header Accept: text/csv."},
    )


@blueprint.view("GET", "/usage", READ_SCOPED)
@blueprint.takes(UsageQuerySchema, location="query")
@blueprint.answers(200, UsageSchema)
@blueprint.alternatively(
    200, schema={"type": "string"}, content_type=CSV, description="OK", example="model,requests\r\n"
)
def read_usage(query: Plain) -> Plain | Response:
    """Sums of requests and tokens; an owner sees those of its scopes."""
    now = services().clock.now()
    since, until, by = _since(query, now), _until(query, now), _by(query["by"])
    if since >= until:
        raise invalid("since", "must be before until")
    scope = scope_of(principal(), query.get("scope"))
    rows = services().usage.usage(since, until, by=by, key=query.get("key"), scope=scope, model=query.get("model"))
    names = {key.id: key.name for key in services().keys.all()}
    found = [_plain(row, by, names) for row in rows]
    if wants_csv(query.get("format")):
        columns = [*(["start"] if {"day", "hour"} & set(by) else []), *(name for name in by if name in BY[:3])]
        columns = [*columns, *(["key_name"] if "key" in by else []), *COLUMNS]
        return csv_answer(columns, found, "usage")
    return {"since": shown(since), "until": shown(until), "by": list(by), "usage": found}


def wants_csv(form: str | None) -> bool:
    """Whether the answer is to be CSV: by the query, else by Accept."""
    if form is not None:
        return form == "csv"
    return request.accept_mimetypes.best_match(["application/json", CSV], "application/json") == CSV


def csv_answer(columns: list[str], rows: list[Plain], name: str) -> Response:
    """Rows as a CSV file."""
    text = csv_text(columns, ([row.get(column) for column in columns] for row in rows))
    disposition = {"Content-Disposition": f'attachment; filename="llmgw-{name}.csv"'}
    return Response(text, 200, disposition, mimetype=CSV)


def _since(query: Plain, now: datetime) -> float:
    return past("since", query["since"], now)


def _until(query: Plain, now: datetime) -> float:
    return past("until", query["until"], now) if "until" in query else now.timestamp()


def _by(text: str) -> tuple[By, ...]:
    words = [word.strip() for word in text.split(",")]
    unknown = [word for word in words if word not in BY]
    if unknown:
        raise invalid("by", f"{unknown[0][:40]!r} is none of {', '.join(BY)}: separate several with commas")
    if {"day", "hour"} <= set(words):
        raise invalid("by", "can be by day or by hour, not by both")
    return tuple(name for name in BY if name in words)


def _plain(row: UsageRow, by: tuple[By, ...], names: dict[str, str]) -> Plain:
    timed = bool({"day", "hour"} & set(by))
    return {
        "start": shown(row.start) if timed else None,
        "key": row.key if "key" in by else None,
        "key_name": names.get(row.key) if "key" in by else None,
        "scope": row.scope if "scope" in by else None,
        "model": row.model if "model" in by else None,
        "requests": row.requests,
        "failed": row.failed,
        "uncounted": row.uncounted,
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": row.completion_tokens,
        "cached_tokens": row.cached_tokens,
    }
