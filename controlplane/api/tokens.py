"""Tokens of users for this API."""

import marshmallow as ma

from controlplane.api.base import (
    ADMIN_ONLY,
    Blueprint,
    PageAnswer,
    PageQuery,
    Schema,
    by_age,
    change,
    items,
    page,
    services,
)
from controlplane.api.fields import NAME, text
from controlplane.services.fleet import Plain
from controlplane.services.moments import shown
from controlplane.store.values import AdminToken

blueprint = Blueprint("tokens", __name__, description="Tokens of users. The token itself is shown once.")


class TokenSchema(Schema):
    """A token as it is kept. ``reason`` says why it is good for nothing, if so."""

    id = ma.fields.String(required=True)
    user = ma.fields.String(required=True)
    name = ma.fields.String(required=True)
    shown = ma.fields.String(required=True, metadata={"description": "How the token begins."})
    good = ma.fields.Boolean(required=True)
    reason = ma.fields.String()
    created_at = ma.fields.String(required=True)
    created_by = ma.fields.String(required=True)
    expires_at = ma.fields.String()
    revoked_at = ma.fields.String()
    revoked_by = ma.fields.String()


class NewTokenSchema(TokenSchema):
    """A token that was just made, with the token itself; a replay has the record alone."""

    token = ma.fields.String(metadata={"description": "Shown this once."})


class TokensSchema(PageAnswer):
    """Tokens, oldest first."""

    tokens = items(TokenSchema)


class TokensQuerySchema(PageQuery):
    """Which tokens."""

    user = ma.fields.String(validate=ma.validate.Length(1, 100))


class TokenRequestSchema(Schema):
    """What to make, and for whom."""

    user = ma.fields.String(required=True, validate=ma.validate.Length(1, 100), metadata={"example": "ada"})
    name = text(required=True, validate=NAME, metadata={"description": "What it is for.", "example": "laptop"})
    expires = ma.fields.String(
        validate=ma.validate.Length(1, 40),
        metadata={"description": "A duration such as 30d, or an ISO 8601 moment. Default: never.", "example": "90d"},
    )


def _shown(token: AdminToken) -> Plain:
    why = services().people.why_not(token)
    return {
        "id": token.id,
        "user": token.user,
        "name": token.name,
        "shown": f"{token.shown}...",
        "good": not why,
        "reason": why or None,
        "created_at": shown(token.created_at),
        "created_by": token.created_by,
        "expires_at": shown(token.expires_at),
        "revoked_at": shown(token.revoked_at),
        "revoked_by": token.revoked_by,
    }


@blueprint.view("GET", "/tokens", ADMIN_ONLY)
@blueprint.takes(TokensQuerySchema, location="query")
@blueprint.answers(200, TokensSchema)
def list_tokens(query: Plain) -> Plain:
    """Every token of users, revoked ones too."""
    user = query.get("user")
    found = by_age(token for token in services().people.tokens() if user is None or token.user == user)
    return page("tokens", found, query, _shown)


@blueprint.view("POST", "/tokens", ADMIN_ONLY)
@blueprint.takes(TokenRequestSchema)
@blueprint.answers(201, NewTokenSchema)
def create_token(body: Plain) -> Plain:
    """Make a token for a user. It is in this answer and nowhere else."""
    people = services().people
    token, secret = change(
        "tokens.create",
        lambda asked: people.add_token(asked, body["user"], body["name"], body.get("expires")),
        lambda token_id: (people.one_token(token_id), None),
    )
    return {**_shown(token), "token": secret}


@blueprint.view("GET", "/tokens/<token_id>", ADMIN_ONLY)
@blueprint.answers(200, TokenSchema)
def read_token(token_id: str) -> Plain:
    """One token's record."""
    return _shown(services().people.one_token(token_id))


@blueprint.view("DELETE", "/tokens/<token_id>", ADMIN_ONLY, versioned=False)
@blueprint.answers(200, TokenSchema)
def revoke_token(token_id: str) -> Plain:
    """Revoke a token: it is refused from the next request on."""
    people = services().people
    return _shown(change("tokens.revoke", lambda asked: people.revoke_token(asked, token_id), people.one_token))
