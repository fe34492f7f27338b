"""The settings of this process, and the cluster's, which change live."""

import marshmallow as ma

from controlplane.api.base import OPERATE, READ, Blueprint, Schema, change, items, services, tagged
from controlplane.services.fleet import Plain

blueprint = Blueprint("settings", __name__, description="Values in force and where they came from.")


class SettingSchema(Schema):
    """One setting of this process; durations are seconds."""

    name = ma.fields.String(required=True)
    value = ma.fields.Raw(metadata={"description": "Absent: none."})
    origin = ma.fields.String(required=True, metadata={"description": "flag, environment, a file's path or default"})
    default = ma.fields.Raw()
    help = ma.fields.String()


class FileValueSchema(Schema):
    """What a file, a flag or the environment gives a cluster setting."""

    value = ma.fields.Raw(metadata={"description": "Absent: none."})
    origin = ma.fields.String(required=True)


class StoreValueSchema(Schema):
    """What the store gives a cluster setting. ``fault``: this release cannot use it."""

    value = ma.fields.Raw(metadata={"description": "Absent: none."})
    updated_at = ma.fields.String(required=True)
    updated_by = ma.fields.String(required=True)
    fault = ma.fields.String()


class ClusterSettingSchema(Schema):
    """A cluster setting. ``rules`` says whose value is in force: store, default, or the
    file, flag or environment that gave it."""

    name = ma.fields.String(required=True)
    value = ma.fields.Raw(metadata={"description": "Absent: none."})
    rules = ma.fields.String(required=True)
    default = ma.fields.Raw(required=True)
    kind = ma.fields.String(required=True)
    unit = ma.fields.String()
    help = ma.fields.String(required=True)
    version = ma.fields.Integer(required=True, metadata={"description": "Of the store's value; 0: it has none."})
    file = ma.fields.Nested(FileValueSchema)
    store = ma.fields.Nested(StoreValueSchema)


class SettingsSchema(Schema):
    """All settings."""

    settings = items(SettingSchema)
    cluster = items(ClusterSettingSchema)


class SettingRequestSchema(Schema):
    """A value, as it would stand in a file."""

    value = ma.fields.Raw(required=True, metadata={"description": "Durations also as text, such as 7d."})


@blueprint.view("GET", "/settings", READ)
@blueprint.answers(200, SettingsSchema)
def list_settings() -> Plain:
    """Every setting. None holds a secret."""
    return {"settings": services().setting_values(), "cluster": services().cluster.all()}


@blueprint.view("GET", "/settings/<name>", READ, tagged=True)
@blueprint.answers(200, ClusterSettingSchema)
def read_setting(name: str) -> Plain:
    """One cluster setting: the file's value, the store's, and which rules."""
    return tagged(services().cluster.one(name))


@blueprint.view("PUT", "/settings/<name>", OPERATE, tagged=True)
@blueprint.takes(SettingRequestSchema)
@blueprint.answers(200, ClusterSettingSchema)
def set_setting(body: Plain, name: str) -> Plain:
    """Set a cluster setting in the store. It rules, and is in force, at once. An operator
    may set serving.stopped and log.level, an administrator all."""
    cluster = services().cluster
    return tagged(change("settings.set", lambda asked: cluster.set(asked, name, body["value"]), cluster.one))


@blueprint.view("DELETE", "/settings/<name>", OPERATE, tagged=True)
@blueprint.answers(200, ClusterSettingSchema)
def unset_setting(name: str) -> Plain:
    """Take the store's value away: the file's value or the default is in force at once."""
    cluster = services().cluster
    return tagged(change("settings.unset", lambda asked: cluster.unset(asked, name), cluster.one))
