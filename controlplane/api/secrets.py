"""Secrets of the control plane: which generations there are, never what they are."""

import marshmallow as ma

from controlplane.api.base import ADMIN_ONLY, READ, Blueprint, Schema, change, items, services, tagged
from controlplane.services.fleet import Plain

blueprint = Blueprint(
    "secrets", __name__, description="Secrets of the control plane itself: rotated here, shown nowhere."
)


class GenerationSchema(Schema):
    """One generation of a secret. ``kept`` says why one that is not current is still there."""

    id = ma.fields.String(required=True, metadata={"example": "2-9f3a61c0"})
    state = ma.fields.String(required=True, metadata={"enum": ["current", "old"]})
    created_at = ma.fields.String(required=True)
    created_by = ma.fields.String(metadata={"description": "Absent: the control plane, at its first start."})
    replicas = ma.fields.Integer(required=True, metadata={"description": "Replicas whose engines run with it."})
    kept = ma.fields.String()


class SecretSchema(Schema):
    """A secret. ``generation`` is the current one."""

    name = ma.fields.String(required=True)
    generation = ma.fields.String(required=True)
    version = ma.fields.Integer(required=True)
    generations = items(GenerationSchema)


class SecretsSchema(Schema):
    """Every secret that can be rotated."""

    secrets = items(SecretSchema)


@blueprint.view("GET", "/secrets", READ)
@blueprint.answers(200, SecretsSchema)
def list_secrets() -> Plain:
    """Every secret with its generations, newest first."""
    return {"secrets": services().secrets.all()}


@blueprint.view("GET", "/secrets/<name>", READ, tagged=True)
@blueprint.answers(200, SecretSchema)
def read_secret(name: str) -> Plain:
    """One secret."""
    return tagged(services().secrets.one(name))


@blueprint.view("POST", "/secrets/<name>/rotate", ADMIN_ONLY, tagged=True)
@blueprint.answers(200, SecretSchema)
def rotate_secret(name: str) -> Plain:
    """Make a new generation. Engines that run keep their keys until they are restarted; what starts gets a new one."""
    service = services().secrets
    return tagged(change("secrets.rotate", lambda asked: service.rotate(asked, name), service.one))
