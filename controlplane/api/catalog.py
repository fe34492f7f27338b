"""The catalog in force, its reload, and looks at catalogs and sources that change nothing."""

import marshmallow as ma

from controlplane.api.base import (
    OPERATE,
    OPERATE_SCOPED,
    READ,
    Blueprint,
    Empty,
    Schema,
    act,
    principal,
    services,
)
from controlplane.api.errors import FaultSchema
from controlplane.api.models import SourceSchema, plain_source
from controlplane.services.changes import Asked, Changed
from controlplane.services.fleet import Plain

blueprint = Blueprint("catalog", __name__, description="The desired state: files and what was added live, as one.")


class CatalogSchema(Schema):
    """Which catalog is current. ``refused`` says what is wrong with the one on disk."""

    source = ma.fields.String(required=True)
    loaded_at = ma.fields.String(required=True)
    models = ma.fields.List(ma.fields.String(), required=True)
    stored = ma.fields.List(
        ma.fields.String(), required=True, metadata={"description": "Those of the models that were added live."}
    )
    aliases = ma.fields.List(ma.fields.String(), metadata={"description": "Weighted aliases."})
    refused = ma.fields.List(ma.fields.String())


class CatalogTreeSchema(Schema):
    """A catalog as one file holds it."""

    class Meta:
        """The catalog names unknown sections itself."""

        unknown = ma.INCLUDE

    models = ma.fields.Raw(metadata={"description": "Models by name."})
    aliases = ma.fields.Raw(metadata={"description": "Weighted aliases by name."})


class CatalogExportSchema(Schema):
    """The whole catalog as one file would hold it."""

    models = ma.fields.Dict(required=True)
    aliases = ma.fields.Dict()


class ValidationSchema(Schema):
    """What would be wrong with a catalog file of this content."""

    valid = ma.fields.Boolean(required=True)
    faults = ma.fields.List(ma.fields.Nested(FaultSchema), required=True)


class ValidateQuerySchema(Schema):
    """What to validate it with."""

    store = ma.fields.Boolean(
        load_default=True,
        metadata={"description": "Together with the models that were added live, as a reload would."},
    )


class CheckSourceSchema(Schema):
    """A source of weights."""

    source = ma.fields.String(
        required=True, validate=ma.validate.Length(1, 4096), metadata={"example": "hf:HuggingFaceTB/SmolLM2-135M"}
    )


def _shown() -> Plain:
    service = services().catalog
    return {
        "source": service.current.source,
        "loaded_at": service.loaded_at.isoformat(timespec="seconds"),
        "models": sorted(service.current.models),
        "stored": sorted(service.stored),
        "aliases": sorted(service.current.aliases) or None,
        "refused": [str(fault) for fault in service.refusal.faults] if service.refusal else None,
    }


@blueprint.view("GET", "/catalog", READ)
@blueprint.answers(200, CatalogSchema)
def read_catalog() -> Plain:
    """The catalog in force."""
    return _shown()


@blueprint.view("GET", "/catalog/export", READ)
@blueprint.answers(200, CatalogExportSchema)
def export_catalog() -> Plain:
    """The whole catalog as one file would hold it: all files, and what was added live."""
    return services().catalog.export()


@blueprint.view("POST", "/catalog/reload", OPERATE)
@blueprint.takes(Empty, required=False)
@blueprint.answers(200, CatalogSchema)
def reload_catalog(_body: Plain) -> Plain:
    """Read the files again. With faults nothing changes, and all of them are told."""

    def work(asked: Asked) -> Changed[Plain]:
        before = len(services().catalog.current.models)
        after = services().catalog.reload(asked.actor)
        return Changed(_shown(), "catalog", "catalog", {"models": before}, {"models": len(after.models)})

    return act("catalog.reload", work, lambda _: _shown())


@blueprint.view("POST", "/catalog/validate", READ, changes=False)
@blueprint.takes(ValidateQuerySchema, location="query")
@blueprint.takes(CatalogTreeSchema, unknown=None)
@blueprint.answers(200, ValidationSchema)
def validate_catalog(query: Plain, body: Plain) -> Plain:
    """Say everything that would be wrong with a catalog file of this content. Nothing is changed."""
    faults = services().catalog.faults(body, with_store=query["store"])
    return {"valid": not faults, "faults": [{"path": fault.path, "message": fault.message} for fault in faults]}


@blueprint.view("POST", "/catalog/check-source", OPERATE_SCOPED, changes=False)
@blueprint.takes(CheckSourceSchema)
@blueprint.answers(200, SourceSchema)
def check_source(body: Plain) -> Plain:
    """Look at a source of weights: does it exist, can it be reached, how large is it."""
    return plain_source(services().models.check_source(principal(), body["source"]))
