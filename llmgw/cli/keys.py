"""``llmgw keys``: the keys that clients present to the router."""

from typing import Any

import click

from llmgw.cli import completion
from llmgw.cli.changes import hand_over, shown_once
from llmgw.cli.client import Client, segment
from llmgw.cli.groups import Group
from llmgw.cli.options import api, example, output
from llmgw.cli.output import console, day, plain, say, utc
from llmgw.cli.tables import table


@click.group(cls=Group, epilog=example("llmgw keys create my-team --expires 90d"))
def keys() -> None:
    """API keys of clients."""


@keys.command(
    epilog=example(
        "llmgw keys create my-team",
        "llmgw keys create ci --scope acme/ml --model smollm2-135m --expires 30d",
        "KEY=$(llmgw keys create me)",
    )
)
@click.argument("name")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.models,
    help="Only this model; may be repeated. Default: all.",
)
@click.option(
    "--scope",
    metavar="PATH",
    shell_complete=completion.scopes,
    help="Scope it belongs to, such as acme/ml. Default: none.",
)
@click.option("--expires", metavar="WHEN", help="After a time such as 30d, or at 2030-01-31T00:00:00Z. Default: never.")
@output
@api
def create(
    client: Client, name: str, *, models: tuple[str, ...], scope: str | None, expires: str | None, form: str
) -> None:
    """Make a key. It is shown this once: the control plane keeps only a digest.

    The key alone goes to standard output, so that it can be captured.
    """
    body: dict[str, Any] = {"name": name}
    if models:
        body["models"] = list(models)
    if scope:
        body["scope"] = scope
    if expires:
        body["expires"] = expires
    made = client.send("POST", "keys", "id", body)
    secret = shown_once(made, "key", "llmgw keys revoke")
    if not plain(made, form):
        hand_over(
            f"{made['id']} for {_models(made, 'all models')}, expires {utc(made.get('expires_at'), 'never')}.", secret
        )


def _models(key: dict[str, Any], every: str) -> str:
    """What a key is good for; ``every`` if that is not limited."""
    return ", ".join(key["models"]) if "models" in key else every


@keys.command("list", epilog=example("llmgw keys list", "llmgw keys list --scope acme", "llmgw keys list -o json"))
@click.option("--scope", metavar="PATH", help="Only keys of this scope and all beneath it.")
@output
@api
def list_keys(client: Client, scope: str | None, form: str) -> None:
    """List every key, revoked ones too."""
    answer = client.all("keys", "keys", scope=scope)
    if plain(answer, form):
        return
    wide = form == "wide"
    table(
        [
            *("ID", "NAME", "STATE", "BEGINS", "scope", "CREATED", "EXPIRES", "models"),
            *(["created by", "REVOKED"] if wide else []),
        ],
        [
            [
                key["id"],
                key["name"],
                key["state"],
                key["shown"],
                key.get("scope", ""),
                day(key["created_at"]),
                day(key.get("expires_at"), "never"),
                _models(key, "all"),
                *([key["created_by"], day(key.get("revoked_at"))] if wide else []),
            ]
            for key in answer["keys"]
        ],
        "No key matches." if scope else "There are no keys. Make one: llmgw keys create NAME",
        console(),
    )


@keys.command("show", epilog=example("llmgw keys show key-1a2b3c4d5e6f"))
@click.argument("key_id", metavar="ID", shell_complete=completion.keys)
@output
@api
def show_key(client: Client, key_id: str, form: str) -> None:
    """Show a key: what it is good for, and who made it."""
    key = client.get(f"keys/{segment(key_id)}", "id")
    if plain(key, form):
        return
    until = utc(key.get("expires_at"), "never")
    say(f"{key['id']} ({key['name']}) is {key['state']}: {_models(key, 'all models')}, expires {until}")
    say(f"scope {key.get('scope') or 'none'}; made {utc(key['created_at'])} by {key['created_by']}")


@keys.command(epilog=example("llmgw keys revoke key-1a2b3c4d5e6f"))
@click.argument("key_id", metavar="ID", shell_complete=completion.keys)
@output
@api
def revoke(client: Client, key_id: str, form: str) -> None:
    """Revoke a key: routers refuse it within seconds."""
    revoked = client.send("DELETE", f"keys/{segment(key_id)}", "id")
    if not plain(revoked, form):
        say(f"{revoked['id']} ({revoked['name']}) is revoked")
