"""The catalog in force and its reload."""

import marshmallow as ma

from controlplane.api.base import Blueprint, Empty, Schema, actor, services
from controlplane.services.fleet import Plain

blueprint = Blueprint("catalog", __name__, description="The desired state, replaced as a whole.")


class CatalogSchema(Schema):
    """Which catalog is current. ``refused`` says what is wrong with the one on disk."""

    source = ma.fields.String(required=True)
    loaded_at = ma.fields.String(required=True)
    models = ma.fields.List(ma.fields.String(), required=True)
    refused = ma.fields.List(ma.fields.String())


def _shown() -> Plain:
    service = services().catalog
    return {
        "source": service.current.source,
        "loaded_at": service.loaded_at.isoformat(timespec="seconds"),
        "models": sorted(service.current.models),
        "refused": [str(fault) for fault in service.refusal.faults] if service.refusal else None,
    }


@blueprint.view("GET", "/catalog")
@blueprint.answers(200, CatalogSchema)
def read_catalog() -> Plain:
    """The catalog in force."""
    return _shown()


@blueprint.view("POST", "/catalog/reload")
@blueprint.takes(Empty, required=False)
@blueprint.answers(200, CatalogSchema)
def reload_catalog(_body: Plain) -> Plain:
    """Read the file again. With faults nothing changes, and all of them are told."""
    services().catalog.reload(actor())
    return _shown()
