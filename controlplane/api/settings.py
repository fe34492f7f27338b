"""The settings of this process."""

import marshmallow as ma

from controlplane.api.base import Blueprint, Schema, items, services
from controlplane.services.fleet import Plain

blueprint = Blueprint("settings", __name__, description="Values in force and where they came from.")


class SettingSchema(Schema):
    """One setting; durations are seconds."""

    name = ma.fields.String(required=True)
    value = ma.fields.Raw(required=True)
    origin = ma.fields.String(required=True, metadata={"description": "flag, environment, a file's path or default"})
    default = ma.fields.Raw()
    help = ma.fields.String()


class SettingsSchema(Schema):
    """All settings."""

    settings = items(SettingSchema)


@blueprint.view("GET", "/settings")
@blueprint.answers(200, SettingsSchema)
def list_settings() -> Plain:
    """Every setting. None holds a secret."""
    return {"settings": services().setting_values()}
