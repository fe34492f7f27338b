"""The catalog in force, and the log level."""

from typing import Any

import click

from llmgw.cli.client import Client
from llmgw.cli.groups import Group
from llmgw.cli.options import api, example, file_or_stdin, output
from llmgw.cli.output import as_yaml, plain, plural, say, utc
from llmgw.cli.yamltext import mapping


@click.group(cls=Group, epilog=example("llmgw ctl catalog reload"))
def catalog() -> None:
    """The catalog in force: files, and models added live."""


@catalog.command(epilog=example("llmgw ctl catalog show -o yaml"))
@output
@api
def show(client: Client, form: str) -> None:
    """Show which catalog is in force, and what is wrong with a refused one."""
    answer = client.get("catalog", "source")
    if plain(answer, form):
        return
    say(f"{answer['source']}, loaded {utc(answer['loaded_at'])}: {_models(answer)}")
    for fault in answer.get("refused", ()):
        say(f"refused since: {fault}")


@catalog.command(epilog=example("llmgw ctl catalog reload"))
@output
@api
def reload(client: Client, form: str) -> None:
    """Read the catalog's files again. With faults nothing changes, and all of them are told."""
    answer = client.send("POST", "catalog/reload", "source")
    if not plain(answer, form):
        say(f"{answer['source']} is in force: {_models(answer)}")


def _models(answer: dict[str, Any]) -> str:
    stored = f", {len(answer['stored'])} of them added live" if answer.get("stored") else ""
    return plural(len(answer["models"]), "model") + stored


@catalog.command(
    epilog=example("llmgw ctl catalog validate catalog.yaml", "llmgw ctl catalog validate - < catalog.yaml")
)
@click.argument("file")
@click.option("--alone", is_flag=True, help="Without the models that were added live.")
@output
@api
def validate(client: Client, file: str, alone: bool, form: str) -> None:
    """Say what would be wrong with a catalog file; nothing is changed."""
    what = "standard input" if file == "-" else file
    tree = mapping(file_or_stdin(file), what)
    answer = client.send("POST", "catalog/validate", "valid", tree, query={"store": "false" if alone else None})
    faults = answer["faults"]
    if not plain(answer, form):
        for fault in faults:
            say(f"{fault['path']}: {fault['message']}")
        say(f"{what} has {plural(len(faults), 'fault')}" if faults else f"{what} has no faults")
    if faults:
        click.get_current_context().exit(1)


@catalog.command(epilog=example("llmgw ctl catalog export > catalog.yaml"))
@output
@api
def export(client: Client, form: str) -> None:
    """Write the whole catalog as one file would hold it: files, and models added live."""
    answer = client.get("catalog/export", "models")
    if not plain(answer, form):
        click.echo(as_yaml(answer), nl=False)


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
        say(answer["level"])
