"""The log level of the running process."""

import marshmallow as ma

from controlplane.api.base import OPERATE, READ, Blueprint, Schema, act
from controlplane.services.changes import Asked, Changed
from controlplane.services.fleet import Plain
from llmgw.runtime.logs import LEVELS, Logger, get_level, set_level

log = Logger("llmgw.api")
blueprint = Blueprint("log-level", __name__, description="How much is logged, changed live.")


class LogLevelSchema(Schema):
    """The least level that is logged."""

    level = ma.fields.String(required=True, validate=ma.validate.OneOf(LEVELS), metadata={"example": "debug"})


@blueprint.view("GET", "/log-level", READ)
@blueprint.answers(200, LogLevelSchema)
def read_log_level() -> Plain:
    """The level in force."""
    return {"level": get_level()}


@blueprint.view("PUT", "/log-level", OPERATE)
@blueprint.takes(LogLevelSchema)
@blueprint.answers(200, LogLevelSchema)
def change_log_level(body: Plain) -> Plain:
    """Change it until the next start or reload. Works while the store is away."""

    def work(asked: Asked) -> Changed[Plain]:
        before = get_level()
        set_level(body["level"])
        log.warning("log level changed", level=body["level"], actor=asked.actor)
        return Changed(body, "log-level", "log.level", before, body["level"])

    return act("log-level.set", work, lambda _: {"level": get_level()})
