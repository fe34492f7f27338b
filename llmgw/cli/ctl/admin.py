"""Events, the catalog, the log level."""

from typing import Any

import click

from llmgw.cli.client import Client
from llmgw.cli.options import api, example, output
from llmgw.cli.output import clean, plain, plural, table


@click.command(epilog=example("llmgw ctl events", "llmgw ctl events --model smollm2-135m --limit 20"))
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@click.option("--model", metavar="NAME", help="Only of this model.")
@click.option("--node", metavar="ID", help="Only of this node.")
@click.option("--kind", metavar="WORD", help="Only of this kind, such as place or failed.")
@output
@api
def events(client: Client, form: str, **query: Any) -> None:
    """Show what was decided and seen of late, oldest first. Times are UTC."""
    answer = client.get("events", "events", **query)
    if plain(answer, form):
        return
    table(
        ["TIME", "KIND", "SUBJECT", "why"],
        [
            [
                event["at"][:19].replace("T", " "),
                event["kind"],
                event.get("replica") or event.get("model") or event.get("node"),
                event["reason"],
            ]
            for event in reversed(answer["events"])
        ],
        "No event matches." if any(query[word] for word in ("model", "node", "kind")) else "Nothing has happened yet.",
    )


@click.group(epilog=example("llmgw ctl catalog reload"))
def catalog() -> None:
    """The catalog in force."""


@catalog.command(epilog=example("llmgw ctl catalog show -o yaml"))
@output
@api
def show(client: Client, form: str) -> None:
    """Show which catalog is in force, and what is wrong with a refused one."""
    answer = client.get("catalog", "source")
    if plain(answer, form):
        return
    click.echo(f"{clean(answer['source'])}, loaded {answer['loaded_at']}: {plural(len(answer['models']), 'model')}")
    for fault in answer.get("refused", ()):
        click.echo(f"refused since: {clean(fault)}")


@catalog.command(epilog=example("llmgw ctl catalog reload"))
@output
@api
def reload(client: Client, form: str) -> None:
    """Read the catalog again. With faults nothing changes, and all of them are told."""
    answer = client.send("POST", "catalog/reload", "source")
    if not plain(answer, form):
        click.echo(f"{clean(answer['source'])} is in force: {plural(len(answer['models']), 'model')}")


@click.command("log-level", epilog=example("llmgw ctl log-level", "llmgw ctl log-level debug"))
@click.argument("level", required=False, type=click.Choice(["debug", "info", "warning", "error"]))
@output
@api
def log_level(client: Client, level: str | None, form: str) -> None:
    """Show the control plane's log level, or change it until its next start."""
    if level is None:
        answer = client.get("log-level", "level")
    else:
        answer = client.send("PUT", "log-level", "level", {"level": level})
    if not plain(answer, form):
        click.echo(answer["level"])
