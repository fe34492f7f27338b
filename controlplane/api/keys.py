"""API keys of clients."""

import marshmallow as ma

from controlplane.api.base import (
    MODEL_OR_ALIAS,
    OPERATE_SCOPED,
    READ_SCOPED,
    Blueprint,
    PageAnswer,
    PageQuery,
    Schema,
    by_age,
    change,
    items,
    page,
    principal,
    services,
    tagged,
)
from controlplane.api.fields import NAME, SCOPE, text
from controlplane.services.fleet import Plain
from controlplane.services.moments import shown
from controlplane.store.values import ApiKey

blueprint = Blueprint("keys", __name__, description="API keys. The key itself is shown once and kept nowhere.")

STATES = ("active", "expired", "revoked")


class KeySchema(Schema):
    """A key as it is kept. ``models`` is absent if it is good for all, ``scope`` if it has none."""

    id = ma.fields.String(required=True)
    name = ma.fields.String(required=True)
    shown = ma.fields.String(required=True, metadata={"description": "How the key begins."})
    state = ma.fields.String(required=True, metadata={"enum": list(STATES)})
    scope = ma.fields.String()
    models = ma.fields.List(ma.fields.String())
    created_at = ma.fields.String(required=True)
    created_by = ma.fields.String(required=True)
    expires_at = ma.fields.String()
    revoked_at = ma.fields.String()
    revoked_by = ma.fields.String()
    version = ma.fields.Integer(required=True)


class NewKeySchema(KeySchema):
    """A key that was just made, with the key itself; a replay has the record alone."""

    key = ma.fields.String(metadata={"description": "Shown this once."})


class KeysSchema(PageAnswer):
    """Keys, oldest first."""

    keys = items(KeySchema)


class KeysQuerySchema(PageQuery):
    """Which keys."""

    state = ma.fields.String(validate=ma.validate.OneOf(STATES))
    scope = ma.fields.String(validate=SCOPE, metadata={"description": "Of this scope and all beneath."})
    name = ma.fields.String(
        validate=ma.validate.Length(1, 200), metadata={"description": "Whose name contains this, in either case."}
    )


class KeyRequestSchema(Schema):
    """What to make."""

    name = text(required=True, validate=NAME, metadata={"example": "ada's laptop"})
    models = ma.fields.List(
        ma.fields.String(validate=MODEL_OR_ALIAS),
        validate=ma.validate.Length(max=1000),
        metadata={"description": "Default: all.", "example": ["qwen3-8b"]},
    )
    expires = ma.fields.String(
        validate=ma.validate.Length(1, 40),
        metadata={"description": "A duration such as 30d, or an ISO 8601 moment.", "example": "90d"},
    )
    scope = ma.fields.String(
        validate=SCOPE,
        metadata={"description": "Whose key it is; an owner names one of its own.", "example": "acme/ml"},
    )


def _shown(key: ApiKey) -> Plain:
    return {
        "id": key.id,
        "name": key.name,
        "shown": f"{key.shown}...",
        "state": services().keys.state(key),
        "scope": key.scope or None,
        "models": None if key.models is None else list(key.models),
        "created_at": shown(key.created_at),
        "created_by": key.created_by,
        "expires_at": shown(key.expires_at),
        "revoked_at": shown(key.revoked_at),
        "revoked_by": key.revoked_by,
        "version": key.version,
    }


@blueprint.view("GET", "/keys", READ_SCOPED)
@blueprint.takes(KeysQuerySchema, location="query")
@blueprint.answers(200, KeysSchema)
def list_keys(query: Plain) -> Plain:
    """Keys, revoked ones too; an owner sees those of its scopes."""
    service = services().keys
    scope, state, name = query.get("scope"), query.get("state"), query.get("name", "").casefold()
    found = by_age(
        key
        for key in service.seen(principal())
        if (scope is None or key.scope == scope or key.scope.startswith(f"{scope}/"))
        and (state is None or service.state(key) == state)
        and name in key.name.casefold()
    )
    return page("keys", found, query, _shown)


@blueprint.view("POST", "/keys", OPERATE_SCOPED, tagged=True)
@blueprint.takes(KeyRequestSchema)
@blueprint.answers(201, NewKeySchema)
def create_key(body: Plain) -> Plain:
    """Make a key. It is in this answer and nowhere else."""
    service = services().keys
    key, secret = change(
        "keys.create",
        lambda asked: service.create(
            asked, body["name"], body.get("models"), body.get("expires"), body.get("scope", "")
        ),
        lambda key_id: (service.one(principal(), key_id), None),
    )
    return {**tagged(_shown(key)), "key": secret}


@blueprint.view("GET", "/keys/<key_id>", READ_SCOPED, tagged=True)
@blueprint.answers(200, KeySchema)
def read_key(key_id: str) -> Plain:
    """One key."""
    return tagged(_shown(services().keys.one(principal(), key_id)))


@blueprint.view("DELETE", "/keys/<key_id>", OPERATE_SCOPED, tagged=True)
@blueprint.answers(200, KeySchema)
def revoke_key(key_id: str) -> Plain:
    """Revoke a key; routers refuse it within one poll."""
    service = services().keys
    key = change(
        "keys.revoke", lambda asked: service.revoke(asked, key_id), lambda target: service.one(principal(), target)
    )
    return tagged(_shown(key))
