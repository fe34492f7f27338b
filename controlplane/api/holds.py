"""Holds: nothing new is placed in a rack, a row or another domain."""

import marshmallow as ma

from controlplane.api.base import (
    OPERATE,
    READ,
    Blueprint,
    PageAnswer,
    PageQuery,
    Schema,
    change,
    items,
    page,
    services,
    tagged,
)
from controlplane.api.fields import text
from controlplane.services.fleet import Plain

blueprint = Blueprint("holds", __name__, description="Domains such as racks in which nothing new is placed.")


class HoldSchema(Schema):
    """A hold. ``nodes`` are those in the domain now; what runs there goes on."""

    domain = ma.fields.String(required=True)
    label = ma.fields.String(required=True)
    value = ma.fields.String(required=True)
    reason = ma.fields.String(required=True)
    actor = ma.fields.String(required=True)
    at = ma.fields.String(required=True)
    nodes = ma.fields.List(ma.fields.String(), required=True)


class HoldsSchema(PageAnswer):
    """Holds, by domain."""

    holds = items(HoldSchema)


class HoldRequestSchema(Schema):
    """Why a domain is held."""

    reason = text(required=True, validate=ma.validate.Length(max=1000))


@blueprint.view("GET", "/holds", READ)
@blueprint.takes(PageQuery, location="query")
@blueprint.answers(200, HoldsSchema)
def list_holds(query: Plain) -> Plain:
    """Every hold."""
    return page("holds", {hold["domain"]: hold for hold in services().holds.all()}, query, lambda hold: hold)


@blueprint.view("GET", "/holds/<path:domain>", READ, tagged=True)
@blueprint.answers(200, HoldSchema)
def read_hold(domain: str) -> Plain:
    """One hold. A domain is LABEL=VALUE, such as llmgw.io/rack=r12, or rack=r12 for short."""
    return tagged(services().holds.one(domain))


@blueprint.view("PUT", "/holds/<path:domain>", OPERATE, tagged=True)
@blueprint.takes(HoldRequestSchema)
@blueprint.answers(200, HoldSchema)
def put_hold(body: Plain, domain: str) -> Plain:
    """Place nothing new in a domain; what runs there goes on."""
    holds = services().holds
    return tagged(change("holds.put", lambda asked: holds.put(asked, domain, body["reason"]), holds.one))


@blueprint.view("DELETE", "/holds/<path:domain>", OPERATE)
@blueprint.answers(200, HoldSchema)
def release_hold(domain: str) -> Plain:
    """Release a domain. The answer is the hold that was."""
    holds = services().holds
    return change("holds.release", lambda asked: holds.remove(asked, domain), _gone)


def _gone(domain: str) -> Plain:
    """A hold that was released under the same Idempotency-Key before."""
    label, _, value = domain.partition("=")
    return {"domain": domain, "label": label, "value": value, "reason": "", "actor": "", "at": "", "nodes": []}
