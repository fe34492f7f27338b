"""Who may use this API, and as what."""

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
    tagged,
)
from controlplane.api.fields import SCOPE
from controlplane.services.auth import LOCAL
from controlplane.services.fleet import Plain
from controlplane.services.moments import shown
from controlplane.store.values import ROLES, Grant, User

blueprint = Blueprint("users", __name__, description="Users of this API, their roles, and who you are.")

USER_NAME = ma.validate.Regexp(
    r"[a-z0-9][a-z0-9._@+-]{0,99}\Z",
    error="must be 1 to 100 lower-case letters, digits or . _ @ + -, beginning with a letter or digit",
)


class GrantSchema(Schema):
    """A role. ``owner`` is good for a scope and what is beneath it, the others for everything."""

    role = ma.fields.String(required=True, validate=ma.validate.OneOf(ROLES), metadata={"example": "owner"})
    scope = ma.fields.String(
        validate=SCOPE, metadata={"description": "For owner, and for it alone.", "example": "acme/ml"}
    )


class UserSchema(Schema):
    """A user. ``disabled_at`` is absent while the user may ask for anything."""

    name = ma.fields.String(required=True)
    roles = items(GrantSchema)
    created_at = ma.fields.String(required=True)
    created_by = ma.fields.String(required=True)
    disabled_at = ma.fields.String()
    tokens = ma.fields.Integer(required=True, metadata={"description": "How many are good now."})
    version = ma.fields.Integer(required=True)


class UsersSchema(PageAnswer):
    """Users, by name."""

    users = items(UserSchema)


class UsersQuerySchema(PageQuery):
    """Which users."""

    role = ma.fields.String(validate=ma.validate.OneOf(ROLES))


class NewUserSchema(Schema):
    """Whom to add."""

    name = ma.fields.String(required=True, validate=USER_NAME, metadata={"example": "ada"})
    roles = ma.fields.List(ma.fields.Nested(GrantSchema), required=True, validate=ma.validate.Length(max=100))


class UserChangeSchema(Schema):
    """What a user shall be: all of it."""

    roles = ma.fields.List(ma.fields.Nested(GrantSchema), required=True, validate=ma.validate.Length(max=100))
    disabled = ma.fields.Boolean(load_default=False, metadata={"description": "Refuse all of the user's tokens."})


class WhoSchema(Schema):
    """Who was proven to ask."""

    user = ma.fields.String(required=True)
    token = ma.fields.String(required=True, metadata={"description": "The id of the token presented."})
    roles = items(GrantSchema)
    expires_at = ma.fields.String()


def _shown(user: User) -> Plain:
    people = services().people
    return {
        "name": user.name,
        "roles": _roles(user.grants),
        "created_at": shown(user.created_at),
        "created_by": user.created_by,
        "disabled_at": shown(user.disabled_at),
        "tokens": sum(1 for token in people.tokens() if token.user == user.name and not people.why_not(token)),
        "version": user.version,
    }


def _roles(grants: tuple[Grant, ...]) -> list[Plain]:
    return [{"role": grant.role, "scope": grant.scope or None} for grant in grants]


def _grants(body: Plain) -> list[Grant]:
    return [Grant(row["role"], row.get("scope", "")) for row in body["roles"]]


@blueprint.view("GET", "/whoami", READ_SCOPED)
@blueprint.answers(200, WhoSchema)
def read_whoami() -> Plain:
    """You, by the token you sent."""
    who = principal()
    token = None if who.token == LOCAL else services().people.by_id(who.token)
    return {
        "user": who.user,
        "token": who.token,
        "roles": _roles(who.grants),
        "expires_at": shown(token.expires_at) if token else None,
    }


@blueprint.view("GET", "/users", ADMIN_ONLY)
@blueprint.takes(UsersQuerySchema, location="query")
@blueprint.answers(200, UsersSchema)
def list_users(query: Plain) -> Plain:
    """Every user, or those with a role."""
    role = query.get("role")
    users = {
        user.name: user
        for user in services().people.users()
        if role is None or any(grant.role == role for grant in user.grants)
    }
    return page("users", users, query, _shown)


@blueprint.view("POST", "/users", ADMIN_ONLY, tagged=True)
@blueprint.takes(NewUserSchema)
@blueprint.answers(201, UserSchema)
def create_user(body: Plain) -> Plain:
    """Add a user, who can do nothing before a token is made."""
    people = services().people
    return _tagged(
        change("users.create", lambda asked: people.add_user(asked, body["name"], _grants(body)), people.user)
    )


@blueprint.view("GET", "/users/<name>", ADMIN_ONLY, tagged=True)
@blueprint.answers(200, UserSchema)
def read_user(name: str) -> Plain:
    """One user."""
    return _tagged(services().people.user(name))


@blueprint.view("PUT", "/users/<name>", ADMIN_ONLY, tagged=True)
@blueprint.takes(UserChangeSchema)
@blueprint.answers(200, UserSchema)
def change_user(body: Plain, name: str) -> Plain:
    """Replace a user's roles, disable or enable it. It takes effect with the next request.

    The last administrator who is not disabled stays one. The control plane's own token is
    not counted: nobody can tell who used it.
    """
    people = services().people
    return _tagged(
        change(
            "users.change", lambda asked: people.change_user(asked, name, _grants(body), body["disabled"]), people.user
        )
    )


@blueprint.view("DELETE", "/users/<name>", ADMIN_ONLY)
@blueprint.answers(204)
def delete_user(name: str) -> None:
    """Remove a user with all its tokens; what it made stays."""
    people = services().people
    change("users.delete", lambda asked: people.remove_user(asked, name), lambda _: None)


def _tagged(user: User) -> Plain:
    return tagged(_shown(user))
