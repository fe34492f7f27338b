"""Scopes: org, org/team, org/team/project."""

import marshmallow as ma

from controlplane.api.base import (
    ADMIN_ONLY,
    READ_SCOPED,
    Blueprint,
    PageAnswer,
    PageQuery,
    Schema,
    change,
    items,
    page,
    principal,
    services,
    tag,
)
from controlplane.api.fields import LINE, text
from controlplane.services.fleet import Plain
from controlplane.services.scopes import shown
from controlplane.store.values import Scope

blueprint = Blueprint(
    "scopes", __name__, description="To whom models and keys belong: org, org/team, org/team/project."
)


class ScopeSchema(Schema):
    """A scope. ``parent`` is absent for an org."""

    path = ma.fields.String(required=True)
    title = ma.fields.String(required=True)
    kind = ma.fields.String(required=True, metadata={"enum": ["org", "team", "project"]})
    parent = ma.fields.String()
    created_at = ma.fields.String(required=True)
    created_by = ma.fields.String(required=True)
    version = ma.fields.Integer(required=True)


class ScopesSchema(PageAnswer):
    """Scopes, by path."""

    scopes = items(ScopeSchema)


class ScopesQuerySchema(PageQuery):
    """Which scopes."""

    under = ma.fields.String(
        validate=ma.validate.Length(1, 200), metadata={"description": "This scope and all beneath it."}
    )


class ScopeTitleSchema(Schema):
    """What a scope is called."""

    title = text(required=True, validate=LINE)


class ScopeRequestSchema(Schema):
    """A scope to be."""

    path = ma.fields.String(
        required=True,
        validate=ma.validate.Length(1, 200),
        metadata={"description": "org, org/team or org/team/project; the parent must exist.", "example": "acme/ml"},
    )
    title = text(load_default="", validate=LINE)


@blueprint.view("GET", "/scopes", READ_SCOPED)
@blueprint.takes(ScopesQuerySchema, location="query")
@blueprint.answers(200, ScopesSchema)
def list_scopes(query: Plain) -> Plain:
    """Scopes; an owner sees its own and all beneath."""
    under = query.get("under")
    found = {
        scope.path: scope
        for scope in services().scopes.all(principal())
        if under is None or scope.path == under or scope.path.startswith(f"{under}/")
    }
    return page("scopes", found, query, shown)


@blueprint.view("POST", "/scopes", ADMIN_ONLY, tagged=True)
@blueprint.takes(ScopeRequestSchema)
@blueprint.answers(201, ScopeSchema)
def add_scope(body: Plain) -> Plain:
    """Add a scope."""
    scopes = services().scopes
    return _tagged(change("scopes.add", lambda asked: scopes.create(asked, body["path"], body["title"]), _now))


@blueprint.view("GET", "/scopes/<path:path>", READ_SCOPED, tagged=True)
@blueprint.answers(200, ScopeSchema)
def read_scope(path: str) -> Plain:
    """One scope."""
    return _tagged(_now(path))


@blueprint.view("PUT", "/scopes/<path:path>", ADMIN_ONLY, tagged=True)
@blueprint.takes(ScopeTitleSchema)
@blueprint.answers(200, ScopeSchema)
def rename_scope(body: Plain, path: str) -> Plain:
    """Change its title."""
    scopes = services().scopes
    return _tagged(change("scopes.rename", lambda asked: scopes.rename(asked, path, body["title"]), _now))


@blueprint.view("DELETE", "/scopes/<path:path>", ADMIN_ONLY)
@blueprint.answers(204)
def remove_scope(path: str) -> None:
    """Remove a scope. Refused while scopes beneath it, keys, models or grants use it."""
    change("scopes.remove", lambda asked: services().scopes.remove(asked, path), lambda _: None)


def _now(path: str) -> Scope:
    return services().scopes.one(principal(), path)


def _tagged(scope: Scope) -> Plain:
    tag(scope.version)
    return shown(scope)
