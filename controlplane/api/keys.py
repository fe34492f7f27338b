"""API keys of clients."""

from datetime import UTC, datetime

import marshmallow as ma

from controlplane.api.base import MODEL_OR_ALIAS, Blueprint, Schema, actor, items, services
from controlplane.services.fleet import Plain
from controlplane.store.port import ApiKey

blueprint = Blueprint("keys", __name__, description="API keys. The key itself is shown once and kept nowhere.")


class KeySchema(Schema):
    """A key as it is kept. ``models`` is absent if it is good for all."""

    id = ma.fields.String(required=True)
    name = ma.fields.String(required=True)
    shown = ma.fields.String(required=True, metadata={"description": "How the key begins."})
    state = ma.fields.String(required=True, metadata={"enum": ["active", "expired", "revoked"]})
    models = ma.fields.List(ma.fields.String())
    created_at = ma.fields.String(required=True)
    created_by = ma.fields.String(required=True)
    expires_at = ma.fields.String()
    revoked_at = ma.fields.String()
    revoked_by = ma.fields.String()


class NewKeySchema(KeySchema):
    """A key that was just made, with the key itself."""

    key = ma.fields.String(required=True, metadata={"description": "Shown this once."})


class KeysSchema(Schema):
    """All keys."""

    keys = items(KeySchema)


class KeyRequestSchema(Schema):
    """What to make."""

    name = ma.fields.String(
        required=True,
        validate=ma.validate.Regexp(
            r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]{1,200}\Z", error="must be 1 to 200 printable characters"
        ),
    )
    models = ma.fields.List(
        ma.fields.String(validate=MODEL_OR_ALIAS),
        validate=ma.validate.Length(max=1000),
        metadata={"description": "Default: all."},
    )
    expires = ma.fields.String(metadata={"description": "A duration such as 30d, or an ISO 8601 moment."})


def _shown(key: ApiKey) -> Plain:
    expired = key.expires_at is not None and key.expires_at <= datetime.now(UTC).timestamp()
    return {
        "id": key.id,
        "name": key.name,
        "shown": f"{key.shown}...",
        "state": "revoked" if key.revoked_at is not None else "expired" if expired else "active",
        "models": None if key.models is None else list(key.models),
        "created_at": _moment(key.created_at),
        "created_by": key.created_by,
        "expires_at": _moment(key.expires_at),
        "revoked_at": _moment(key.revoked_at),
        "revoked_by": key.revoked_by,
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@blueprint.view("GET", "/keys")
@blueprint.answers(200, KeysSchema)
def list_keys() -> Plain:
    """Every key, revoked ones too."""
    return {"keys": [_shown(key) for key in services().keys.all()]}


@blueprint.view("POST", "/keys")
@blueprint.takes(KeyRequestSchema)
@blueprint.answers(201, NewKeySchema)
def create_key(body: Plain) -> Plain:
    """Make a key. It is in this answer and nowhere else."""
    key, text = services().keys.create(body["name"], body.get("models"), body.get("expires"), actor())
    return {**_shown(key), "key": text}


@blueprint.view("DELETE", "/keys/<key_id>")
@blueprint.answers(200, KeySchema)
def revoke_key(key_id: str) -> Plain:
    """Revoke a key; routers refuse it within one poll."""
    return _shown(services().keys.revoke(key_id, actor()))
