"""Catalog definitions in the OpenAPI document: the same JSON Schema as that of a file (CAT-16)."""

from typing import Any

from controlplane.catalog.schema import MODEL_NAME, json_schema, model_json_schema


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with the bodies that the catalog reads itself."""
    schemas = document["components"]["schemas"]
    model = {"description": "A model as a catalog file holds it under its name.", **model_json_schema()}
    named = {**model, "properties": {"name": {"type": "string", "pattern": f"^{MODEL_NAME}$"}, **model["properties"]}}
    named["required"] = ["name", *model.get("required", ())]
    tree = {key: value for key, value in json_schema().items() if key not in ("$schema", "$id", "title")}
    for name in schemas["ModelPatch"]["properties"]:
        schemas["ModelPatch"]["properties"][name] = {"anyOf": [model["properties"][name], {"type": "null"}]}
    schemas["ModelDefinition"] = model
    schemas["ModelRequest"] = {**named, "description": "A model with its name, else as in a catalog file."}
    schemas["CatalogFile"] = {"description": "A catalog as one file holds it.", **tree}
    schemas["CatalogTree"] = {
        "description": "What may be a CatalogFile: anything is taken, and what is wrong with it is the answer.",
        "type": "object",
    }
    return document
