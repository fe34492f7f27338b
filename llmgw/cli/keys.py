"""``llmgw keys``: the keys that clients present to the router."""

import sys
from typing import Any

import click

from llmgw.cli.client import Client, segment
from llmgw.cli.options import api, example, output
from llmgw.cli.output import clean, plain, table


@click.group(epilog=example("llmgw keys create my-team --expires 90d"))
def keys() -> None:
    """API keys of clients."""


@keys.command(
    epilog=example(
        "llmgw keys create my-team",
        "llmgw keys create ci --model smollm2-135m --expires 30d",
        "KEY=$(llmgw keys create me)",
    )
)
@click.argument("name")
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="Only this model; may be repeated. Default: all."
)
@click.option("--expires", metavar="WHEN", help="After a time such as 30d, or at 2030-01-31T00:00:00Z. Default: never.")
@output
@api
def create(client: Client, name: str, models: tuple[str, ...], expires: str | None, form: str) -> None:
    """Make a key. It is shown this once: the control plane keeps only a digest.

    The key alone goes to standard output, so that it can be captured.
    """
    body: dict[str, Any] = {"name": name}
    if models:
        body["models"] = list(models)
    if expires:
        body["expires"] = expires
    made = client.send("POST", "keys", "key", body)
    if plain(made, form):
        return
    allowed = ", ".join(made["models"]) if made.get("models") else "all models"
    where = "" if sys.stdout.isatty() else ", on standard output"
    words = f"{made['id']} for {allowed}, expires {made.get('expires_at', 'never')}. Shown this once{where}:"
    click.echo(clean(words), err=True)
    click.echo(made["key"])


@keys.command("list", epilog=example("llmgw keys list", "llmgw keys list -o json"))
@output
@api
def list_keys(client: Client, form: str) -> None:
    """List every key, revoked ones too."""
    answer = client.get("keys", "keys")
    if plain(answer, form):
        return
    wide = form == "wide"
    table(
        ["ID", "name", "STATE", "BEGINS", "models", "CREATED", "EXPIRES", *(["created by", "REVOKED"] if wide else [])],
        [
            [
                key["id"],
                key["name"],
                key["state"],
                key["shown"],
                ", ".join(key["models"]) if "models" in key else "all",
                key["created_at"][:10],
                key.get("expires_at", "never")[:10],
                *([key["created_by"], key.get("revoked_at")] if wide else []),
            ]
            for key in answer["keys"]
        ],
        "There are no keys. Make one: llmgw keys create NAME",
    )


@keys.command(epilog=example("llmgw keys revoke key-1a2b3c4d5e6f"))
@click.argument("key_id", metavar="ID")
@output
@api
def revoke(client: Client, key_id: str, form: str) -> None:
    """Revoke a key: routers refuse it within seconds."""
    revoked = client.send("DELETE", f"keys/{segment(key_id)}", "id")
    if not plain(revoked, form):
        click.echo(f"{clean(revoked['id'])} ({clean(revoked['name'])}) is revoked")
