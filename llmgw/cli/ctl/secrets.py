"""Secrets of the control plane and their rotation (SEC-08)."""

from collections.abc import Sequence
from typing import Any

import click

from llmgw.cli.client import Client, segment
from llmgw.cli.groups import Group
from llmgw.cli.options import api, example, output
from llmgw.cli.output import clean, console, moment, plain, say
from llmgw.cli.tables import table

Secret = dict[str, Any]


@click.group(cls=Group, epilog=example("llmgw ctl secrets list", "llmgw ctl secrets rotate engine"))
def secrets() -> None:
    """Secrets of the control plane itself: rotated here, shown nowhere.

    There is one, engine: the keys that engines demand are derived from it.
    """


@secrets.command("list", epilog=example("llmgw ctl secrets list", "llmgw ctl secrets list -o json"))
@output
@api
def list_secrets(client: Client, form: str) -> None:
    """List every secret's generations, and why the older ones are still there."""
    answer = client.get("secrets", "secrets")
    if not plain(answer, form):
        _print(answer["secrets"])


@secrets.command(epilog=example("llmgw ctl secrets show engine"))
@click.argument("name", metavar="SECRET")
@output
@api
def show(client: Client, name: str, form: str) -> None:
    """Show one secret's generations, never the secret."""
    answer = client.get(f"secrets/{segment(name)}", "generations")
    if not plain(answer, form):
        _print([answer])


@secrets.command(epilog=example("llmgw ctl secrets rotate engine", "llmgw ctl restart --stale"))
@click.argument("name", metavar="SECRET")
@output
@api
def rotate(client: Client, name: str, form: str) -> None:
    """Make a new generation of a secret. Nothing is interrupted.

    Engines that run keep their keys, which stay good until their replicas are restarted;
    what is started from now on gets a key of the new generation.
    """
    answer = client.send("POST", f"secrets/{segment(name)}/rotate", "generation")
    if plain(answer, form):
        return
    older = sum(one["replicas"] for one in answer["generations"] if one["state"] != "current")
    words = f"{answer['name']} is at generation {answer['generation']}"
    if older:
        runs = "replica still runs" if older == 1 else "replicas still run"
        words += f"; {older} {runs} with an older one, each until it is replaced: llmgw ctl restart --stale"
    say(words)


def _print(found: Sequence[Secret]) -> None:
    table(
        ["SECRET", "GENERATION", "STATE", "CREATED", ">REPLICAS", "created by", "why"],
        [
            [
                secret["name"],
                generation["id"],
                generation["state"],
                moment(generation["created_at"]),
                generation["replicas"],
                generation.get("created_by", "the first start"),
                clean(generation.get("kept", "")),
            ]
            for secret in found
            for generation in secret["generations"]
        ],
        "There are no secrets.",
        console(),
    )
