"""Who changed what."""

import marshmallow as ma

from controlplane.api.base import AUDIT, Blueprint, PageAnswer, PageQuery, Schema, items, services
from controlplane.services.audit import AuditFilter, plain
from controlplane.services.fleet import Plain
from controlplane.services.moments import past

blueprint = Blueprint("audit", __name__, description="Every change: who, what, before and after. No secret is in it.")


class AuditEntrySchema(Schema):
    """One change. ``actor`` is who, in words; ``user`` and ``token`` are what was proven."""

    id = ma.fields.Integer(required=True)
    at = ma.fields.String(required=True)
    actor = ma.fields.String(required=True)
    user = ma.fields.String(required=True)
    token = ma.fields.String()
    operation = ma.fields.String(required=True)
    kind = ma.fields.String(required=True)
    target = ma.fields.String(required=True)
    before = ma.fields.Raw()
    after = ma.fields.Raw()
    request_id = ma.fields.String()


class AuditSchema(PageAnswer):
    """Changes, newest first."""

    audit = items(AuditEntrySchema)


class AuditQuerySchema(PageQuery):
    """Which changes."""

    user = ma.fields.String(validate=ma.validate.Length(1, 200), metadata={"description": "Only by this user."})
    kind = ma.fields.String(
        validate=ma.validate.Length(1, 100), metadata={"description": "Only of this kind of thing, such as model."}
    )
    target = ma.fields.String(
        validate=ma.validate.Length(1, 300), metadata={"description": "Only of this thing, by name or id."}
    )
    since = ma.fields.String(
        validate=ma.validate.Length(1, 40),
        metadata={"description": "Not before: a duration ago such as 24h, or an ISO 8601 moment."},
    )
    until = ma.fields.String(validate=ma.validate.Length(1, 40), metadata={"description": "Before: the same."})


@blueprint.view("GET", "/audit", AUDIT)
@blueprint.takes(AuditQuerySchema, location="query")
@blueprint.answers(200, AuditSchema)
def list_audit(query: Plain) -> Plain:
    """Changes, newest first."""
    now = services().clock.now()
    which = AuditFilter(
        user=query.get("user"),
        kind=query.get("kind"),
        target=query.get("target"),
        since=past("since", query["since"], now) if "since" in query else None,
        until=past("until", query["until"], now) if "until" in query else None,
    )
    page = services().audit.page(which, query["limit"], query.get("cursor"))
    return {"audit": [plain(entry) for entry in page.items], "next": page.next}
