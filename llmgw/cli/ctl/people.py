"""Who may do what: scopes, users, their tokens (TEN-01, API-08)."""

from typing import Any

import click

from llmgw.cli import completion
from llmgw.cli.changes import hand_over, shown_once, take_away
from llmgw.cli.client import Client, segment
from llmgw.cli.groups import Group
from llmgw.cli.options import api, confirm, example, output, yes
from llmgw.cli.output import clean, console, day, plain, say, utc
from llmgw.cli.tables import table

ROLES = ("admin", "operator", "owner", "auditor")


# ---------------------------------------------------------------- scopes


@click.command(epilog=example("llmgw ctl scopes", "llmgw ctl scopes -o yaml"))
@output
@api
def scopes(client: Client, form: str) -> None:
    """List scopes: organisations, their teams and projects."""
    answer = client.all("scopes", "scopes")
    if plain(answer, form):
        return
    table(
        ["SCOPE", "KIND", "title", "CREATED", *(["created by"] if form == "wide" else [])],
        [
            [
                each["path"],
                each.get("kind"),
                each["title"],
                day(each["created_at"]),
                *([each["created_by"]] if form == "wide" else []),
            ]
            for each in answer["scopes"]
        ],
        "There are no scopes. Add one: llmgw ctl scope add acme --title 'Acme Inc.'",
        console(),
    )


@click.group(cls=Group, epilog=example("llmgw ctl scope add acme/ml --title 'Machine learning'"))
def scope() -> None:
    """One scope: an organisation, team or project that owns models and keys."""


@scope.command("show", epilog=example("llmgw ctl scope show acme/ml"))
@click.argument("path", shell_complete=completion.scopes)
@output
@api
def show_scope(client: Client, path: str, form: str) -> None:
    """Show a scope."""
    found = client.get(f"scopes/{segment(path)}", "path")
    if not plain(found, form):
        say(
            f"{found['path']} ({clean(found.get('kind'))}): {found['title']}, since {utc(found['created_at'])} "
            f"by {found['created_by']}"
        )


@scope.command(
    "add", epilog=example("llmgw ctl scope add acme", "llmgw ctl scope add acme/ml --title 'Machine learning'")
)
@click.argument("path")
@click.option("--title", default="", help="What people call it. Default: its last part.")
@output
@api
def add_scope(client: Client, path: str, title: str, form: str) -> None:
    """Add a scope. PATH is org, org/team or org/team/project; what is above it must be there."""
    body = {"path": path, "title": title or path.rpartition("/")[2]}
    answer = client.send("POST", "scopes", "path", body)
    if not plain(answer, form):
        say(f"{answer['path']} is added. A key of it: llmgw keys create NAME --scope {answer['path']}")


@scope.command("set", epilog=example("llmgw ctl scope set acme/ml --title 'Machine learning'"))
@click.argument("path", shell_complete=completion.scopes)
@click.option("--title", required=True, help="What people call it.")
@output
@api
def set_scope(client: Client, path: str, title: str, form: str) -> None:
    """Change a scope's title."""
    found = client.read(f"scopes/{segment(path)}", "path")
    answer = client.send("PUT", f"scopes/{segment(path)}", "path", {"title": title}, match=found.tag)
    if not plain(answer, form):
        say(f"{answer['path']}: {answer['title']}")


@scope.command("remove", epilog=example("llmgw ctl scope remove acme/ml"))
@click.argument("path", shell_complete=completion.scopes)
@yes
@output
@api
def remove_scope(client: Client, path: str, yes: bool, form: str) -> None:
    """Remove a scope that nothing uses."""
    confirm(f"Remove the scope {path}?", yes)
    take_away(client, f"scopes/{segment(path)}", form, f"{path} is removed", path=path)


# ---------------------------------------------------------------- users


@click.command(epilog=example("llmgw ctl users"))
@output
@api
def users(client: Client, form: str) -> None:
    """List users of the admin API and their roles."""
    answer = client.all("users", "users")
    if plain(answer, form):
        return
    table(
        ["USER", "STATE", "ROLES", ">TOKENS", "CREATED", *(["created by"] if form == "wide" else [])],
        [
            [
                each["name"],
                _user_state(each),
                _roles(each["roles"]),
                each["tokens"],
                day(each["created_at"]),
                *([each["created_by"]] if form == "wide" else []),
            ]
            for each in answer["users"]
        ],
        "There are no users. Add one: llmgw ctl user add NAME --role admin",
        console(),
    )


def _user_state(user: dict[str, Any]) -> str:
    return "disabled" if "disabled_at" in user else "active"


def _roles(grants: list[dict[str, Any]]) -> str:
    words = [
        f"{clean(each['role'])} of {clean(each['scope'])}" if each.get("scope") else clean(each["role"])
        for each in grants
    ]
    return ", ".join(words) or "none"


def _grants(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[dict[str, str]]:
    """``ROLE``, or ``owner=SCOPE``, as the API has them."""
    grants = []
    for value in values:
        role, equals, path = value.partition("=")
        if role not in ROLES:
            raise click.BadParameter(f"{role!r} is not one of {', '.join(ROLES)}")
        if (role == "owner") != bool(equals and path):
            raise click.BadParameter("an owner's scope is written owner=SCOPE; the other roles have none")
        grants.append({"role": role, "scope": path} if path else {"role": role})
    return grants


_role = click.option(
    "--role",
    "roles",
    multiple=True,
    callback=_grants,
    metavar="ROLE",
    help="admin, operator, auditor or owner=SCOPE; may be repeated.",
)


@click.group(cls=Group, epilog=example("llmgw ctl user add ada --role operator"))
def user() -> None:
    """One user of the admin API. What they prove themselves with: llmgw ctl token add."""


@user.command("show", epilog=example("llmgw ctl user show ada"))
@click.argument("name", metavar="USER", shell_complete=completion.users)
@output
@api
def show_user(client: Client, name: str, form: str) -> None:
    """Show a user."""
    found = client.get(f"users/{segment(name)}", "name")
    if not plain(found, form):
        say(
            f"{found['name']} is {_user_state(found)}: {_roles(found['roles'])}; since {utc(found['created_at'])} "
            f"by {found['created_by']}"
        )


@user.command(
    "add", epilog=example("llmgw ctl user add ada --role operator", "llmgw ctl user add grace --role owner=acme/ml")
)
@click.argument("name", metavar="USER")
@_role
@output
@api
def add_user(client: Client, name: str, roles: list[dict[str, str]], form: str) -> None:
    """Add a user with roles."""
    answer = client.send("POST", "users", "name", {"name": name, "roles": roles})
    if not plain(answer, form):
        say(f"{answer['name']} is added: {_roles(answer['roles'])}. A token: llmgw ctl token add {answer['name']}")


@user.command("set", epilog=example("llmgw ctl user set ada --role admin", "llmgw ctl user set ada --disable"))
@click.argument("name", metavar="USER", shell_complete=completion.users)
@_role
@click.option("--disable/--enable", default=None, help="Refuse all their tokens, or take them again.")
@output
@api
def set_user(client: Client, name: str, roles: list[dict[str, str]], disable: bool | None, form: str) -> None:
    """Give a user these roles instead of those they have, or disable them."""
    if not roles and disable is None:
        raise click.UsageError("say what to change: --role, --disable or --enable")
    found = client.read(f"users/{segment(name)}", "name")
    body = {
        "roles": roles or found.body["roles"],
        "disabled": disable if disable is not None else _user_state(found.body) == "disabled",
    }
    answer = client.send("PUT", f"users/{segment(name)}", "name", body, match=found.tag)
    if not plain(answer, form):
        say(f"{answer['name']} is {_user_state(answer)}: {_roles(answer['roles'])}")


@user.command("remove", epilog=example("llmgw ctl user remove ada"))
@click.argument("name", metavar="USER", shell_complete=completion.users)
@yes
@output
@api
def remove_user(client: Client, name: str, yes: bool, form: str) -> None:
    """Remove a user with all their tokens. What they did stays in the audit."""
    confirm(f"Remove the user {name} and all their tokens?", yes)
    take_away(client, f"users/{segment(name)}", form, f"{name} is removed", name=name)


# ---------------------------------------------------------------- tokens


@click.command(epilog=example("llmgw ctl tokens", "llmgw ctl tokens -o wide"))
@output
@api
def tokens(client: Client, form: str) -> None:
    """List tokens of users, revoked ones too."""
    answer = client.all("tokens", "tokens")
    if plain(answer, form):
        return
    wide = form == "wide"
    table(
        ["ID", "USER", "name", "STATE", "BEGINS", "CREATED", "EXPIRES", *(["created by", "REVOKED"] if wide else [])],
        [
            [
                each["id"],
                each["user"],
                each["name"],
                _token_state(each),
                each["shown"],
                day(each["created_at"]),
                day(each.get("expires_at"), "never"),
                *([each["created_by"], day(each.get("revoked_at"))] if wide else []),
            ]
            for each in answer["tokens"]
        ],
        "There are no tokens. Make one: llmgw ctl token add USER",
        console(),
    )


def _token_state(found: dict[str, Any]) -> str:
    if found["good"]:
        return "active"
    return "revoked" if "revoked_at" in found else clean(found.get("reason", "refused")).removeprefix("the token ")


@click.group(cls=Group, epilog=example("llmgw ctl token add ada --expires 90d"))
def token() -> None:
    """One token, with which a user proves who they are to the admin API."""


@token.command(
    "add",
    epilog=example(
        "llmgw ctl token add ada --name laptop --expires 90d",
        "(umask 077; llmgw ctl token add ada > ~/.config/llmgw/token)",
    ),
)
@click.argument("user_name", metavar="USER", shell_complete=completion.users)
@click.option("--name", default="", help="What it is for, such as laptop.")
@click.option("--expires", metavar="WHEN", help="After a time such as 90d, or at a moment. Default: never.")
@output
@api
def add_token(client: Client, user_name: str, name: str, expires: str | None, form: str) -> None:
    """Make a token. It is shown this once: the control plane keeps only a digest.

    The token alone goes to standard output, so that it can be captured.
    """
    body = {"user": user_name, "name": name or user_name, **({"expires": expires} if expires else {})}
    made = client.send("POST", "tokens", "id", body)
    secret = shown_once(made, "token", "llmgw ctl token revoke")
    if not plain(made, form):
        hand_over(f"{made['id']} of {made['user']}, expires {utc(made.get('expires_at'), 'never')}.", secret)


@token.command("show", epilog=example("llmgw ctl token show tok-1a2b3c4d5e6f"))
@click.argument("token_id", metavar="ID", shell_complete=completion.tokens)
@output
@api
def show_token(client: Client, token_id: str, form: str) -> None:
    """Show a token: whose it is, and whether it is good."""
    found = client.get(f"tokens/{segment(token_id)}", "id")
    if plain(found, form):
        return
    say(f"{found['id']} ({found['name']} of {found['user']}) is {_token_state(found)}")
    say(f"made {utc(found['created_at'])} by {found['created_by']}, expires {utc(found.get('expires_at'), 'never')}")


@token.command(epilog=example("llmgw ctl token revoke tok-1a2b3c4d5e6f"))
@click.argument("token_id", metavar="ID", shell_complete=completion.tokens)
@output
@api
def revoke(client: Client, token_id: str, form: str) -> None:
    """Revoke a token: it is refused from the next request on."""
    answer = client.send("DELETE", f"tokens/{segment(token_id)}", "id")
    if not plain(answer, form):
        say(f"{answer['id']} ({answer['name']} of {answer['user']}) is revoked")


# ---------------------------------------------------------------- who am I


@click.command(epilog=example("llmgw ctl whoami", "llmgw ctl whoami -o json"))
@output
@api
def whoami(client: Client, form: str) -> None:
    """Show who the control plane takes you for, and what you may do."""
    answer = client.get("whoami", "user")
    if plain(answer, form):
        return
    said = f", token {answer['token']}" if answer.get("token") else ""
    say(f"{answer['user']}{said}: {_roles(answer.get('roles', []))}")
