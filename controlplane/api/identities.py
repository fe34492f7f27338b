"""Nodes and routers by their certificates, and tokens to join with (SEC-01, SEC-02)."""

import marshmallow as ma

from controlplane.api.base import (
    ADMIN_ONLY,
    READ,
    Blueprint,
    PageAnswer,
    PageQuery,
    Schema,
    by_age,
    change,
    items,
    page,
    services,
    tagged,
)
from controlplane.api.fields import LINE, text
from controlplane.services.enrolment import KINDS
from controlplane.services.errors import invalid, not_found
from controlplane.services.fleet import Plain
from controlplane.services.moments import shown
from controlplane.store.values import Enrolled, JoinToken
from llmgw.identity.names import Identity, IdentityError, identity

blueprint = Blueprint(
    "identities", __name__, description="Nodes and routers by their certificates; tokens to join with."
)

NAME = ma.validate.Regexp(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z",
    error="must be 1 to 253 letters, digits, dots, dashes or underscores, beginning with a letter or digit",
)
KIND = ma.validate.OneOf(KINDS)


class IdentitySchema(Schema):
    """A node or router. Certificates issued at or before ``revoked_at`` are refused;
    ``removed_at`` is there while it does not belong to the fleet."""

    kind = ma.fields.String(required=True, metadata={"enum": list(KINDS)})
    name = ma.fields.String(required=True)
    enrolled_at = ma.fields.String(required=True)
    enrolled_by = ma.fields.String(required=True)
    serial = ma.fields.String(metadata={"description": "Of the newest certificate that is known."})
    issued_at = ma.fields.String(metadata={"description": "When that certificate was made."})
    expires_at = ma.fields.String(metadata={"description": "When that certificate ends."})
    revoked_at = ma.fields.String()
    revoked_by = ma.fields.String()
    reason = ma.fields.String()
    removed_at = ma.fields.String()
    version = ma.fields.Integer(required=True)


class RevokedSchema(IdentitySchema):
    """One that was just revoked."""

    join_tokens_removed = ma.fields.List(
        ma.fields.String(), metadata={"description": "Ids of its join tokens that were not used; absent of a replay."}
    )


class IdentitiesSchema(PageAnswer):
    """Identities, by kind and name."""

    identities = items(IdentitySchema)


class IdentitiesQuerySchema(PageQuery):
    """Which identities."""

    kind = ma.fields.String(validate=KIND)
    revoked = ma.fields.Boolean(metadata={"description": "Only those that were revoked or removed, or only others."})


class RevokeSchema(Schema):
    """Why certificates are refused from now on."""

    reason = text(required=True, validate=LINE, metadata={"example": "the machine was stolen"})
    unseen = ma.fields.Boolean(
        load_default=False,
        metadata={"description": "Also if it never came here: the authority may have given it a certificate."},
    )


class JoinTokenSchema(Schema):
    """A token as it is kept: good once, for one node or router, for 15 minutes."""

    id = ma.fields.String(required=True)
    kind = ma.fields.String(required=True, metadata={"enum": list(KINDS)})
    name = ma.fields.String(required=True)
    state = ma.fields.String(required=True, metadata={"enum": ["unused", "used", "expired", "void"]})
    created_at = ma.fields.String(required=True)
    created_by = ma.fields.String(required=True)
    expires_at = ma.fields.String(required=True)
    used_at = ma.fields.String()
    used_from = ma.fields.String()


class NewJoinTokenSchema(JoinTokenSchema):
    """A token that was just made, with the token itself; a replay has the record alone."""

    token = ma.fields.String(metadata={"description": "Shown this once."})
    join = ma.fields.String(metadata={"description": "Address of the join listener."})


class JoinTokensSchema(PageAnswer):
    """Join tokens, oldest first."""

    join_tokens = items(JoinTokenSchema)


class JoinTokenRequestSchema(Schema):
    """Who is to join."""

    kind = ma.fields.String(required=True, validate=KIND)
    name = ma.fields.String(required=True, validate=NAME, metadata={"example": "gpu-7"})


def _shown(row: Enrolled) -> Plain:
    return {
        "kind": row.kind,
        "name": row.name,
        "enrolled_at": shown(row.enrolled_at),
        "enrolled_by": row.enrolled_by,
        "serial": row.serial or None,
        "issued_at": shown(row.issued_at),
        "expires_at": shown(row.expires_at),
        "revoked_at": shown(row.revoked_at),
        "revoked_by": row.revoked_by,
        "reason": row.reason or None,
        "removed_at": shown(row.removed_at),
        "version": row.version,
    }


def _shown_token(token: JoinToken) -> Plain:
    return {
        "id": token.id,
        "kind": token.kind,
        "name": token.name,
        "state": services().joining.state(token),
        "created_at": shown(token.created_at),
        "created_by": token.created_by,
        "expires_at": shown(token.expires_at),
        "used_at": shown(token.used_at),
        "used_from": token.used_from,
    }


def _identity(kind: str, name: str) -> Identity:
    if kind not in KINDS:
        raise not_found("kind of identity", kind, f": there are {' and '.join(KINDS)}")
    try:
        return identity(kind, name)
    except IdentityError as error:
        raise invalid("name", str(error)) from error


@blueprint.view("GET", "/identities", READ)
@blueprint.takes(IdentitiesQuerySchema, location="query")
@blueprint.answers(200, IdentitiesSchema)
def list_identities(query: Plain) -> Plain:
    """Everyone who may speak to the control plane, or might once."""
    kind, revoked = query.get("kind"), query.get("revoked")
    found = {
        f"{row.kind} {row.name}": row
        for row in services().identities.all()
        if (kind is None or row.kind == kind) and (revoked is None or (row.revoked_at is not None) == revoked)
    }
    return page("identities", found, query, _shown)


@blueprint.view("GET", "/identities/<kind>/<name>", READ, tagged=True)
@blueprint.answers(200, IdentitySchema)
def read_identity(kind: str, name: str) -> Plain:
    """One identity."""
    return tagged(_shown(services().identities.one(_identity(kind, name))))


@blueprint.view("POST", "/identities/<kind>/<name>/revoke", ADMIN_ONLY, tagged=True, versioned=True)
@blueprint.takes(RevokeSchema)
@blueprint.answers(200, RevokedSchema)
def revoke_identity(body: Plain, kind: str, name: str) -> Plain:
    """Refuse every certificate that it has, at once: its sessions end, and it must join anew,
    with a new token: those that were not used are taken back. It stays in the fleet; what runs
    on a node goes on serving."""
    identities, who = services().identities, _identity(kind, name)
    row, tokens = change(
        "identities.revoke",
        lambda asked: identities.revoke(asked, who, body["reason"], unseen=body["unseen"]),
        lambda _: (identities.one(who), None),
    )
    return {**tagged(_shown(row)), "join_tokens_removed": tokens}


@blueprint.view("DELETE", "/identities/<kind>/<name>", ADMIN_ONLY)
@blueprint.answers(204)
def remove_identity(kind: str, name: str) -> None:
    """Take a node or router out of the fleet for good: its certificates are refused until it
    joins anew, with a new token, and what ran on a node is placed elsewhere. 404 if it was
    removed before."""
    identities, who = services().identities, _identity(kind, name)
    change("identities.remove", lambda asked: identities.remove(asked, who), lambda _: None)


@blueprint.view("GET", "/join-tokens", ADMIN_ONLY)
@blueprint.takes(PageQuery, location="query")
@blueprint.answers(200, JoinTokensSchema)
def list_join_tokens(query: Plain) -> Plain:
    """Join tokens of late, used ones too."""
    return page("join_tokens", by_age(services().joining.tokens()), query, _shown_token)


@blueprint.view("POST", "/join-tokens", ADMIN_ONLY)
@blueprint.takes(JoinTokenRequestSchema)
@blueprint.answers(201, NewJoinTokenSchema)
def create_join_token(body: Plain) -> Plain:
    """Make a token with which one node or router gets its first certificate (llmgw join). It
    is in this answer and nowhere else."""
    joining, who = services().joining, _identity(body["kind"], body["name"])
    token, secret = change(
        "join-tokens.create", lambda asked: joining.add(asked, who), lambda token_id: (joining.one(token_id), None)
    )
    return {**_shown_token(token), "token": secret, "join": joining.address}


@blueprint.view("GET", "/join-tokens/<token_id>", ADMIN_ONLY)
@blueprint.answers(200, JoinTokenSchema)
def read_join_token(token_id: str) -> Plain:
    """One join token's record."""
    return _shown_token(services().joining.one(token_id))


@blueprint.view("DELETE", "/join-tokens/<token_id>", ADMIN_ONLY, versioned=False)
@blueprint.answers(204)
def remove_join_token(token_id: str) -> None:
    """Take a join token back."""
    joining = services().joining
    change("join-tokens.remove", lambda asked: joining.remove(asked, token_id), lambda _: None)
