"""What changes of several kinds of things have in common."""

import sys
from typing import Any

import click

from llmgw.cli.client import Client
from llmgw.cli.output import clean, plain, say


def take_away(client: Client, path: str, form: str, words: str, /, **named: str) -> None:
    """Delete what no answer comes of: programs are told what was ``named``, people the words."""
    client.send("DELETE", path, "")
    if not plain(named, form):
        say(words)


def shown_once(made: dict[str, Any], field: str, remove: str) -> str:
    """The secret that was just made. It is missing if the connection broke before it came,
    and the repeat was answered with what had been made."""
    secret = made.get(field)
    if not isinstance(secret, str):
        raise click.ClickException(
            f"{clean(made['id'])} was made, but the connection broke before it could be shown, and it is kept nowhere. "
            f"Remove it ({remove} {clean(made['id'])}) and make another"
        )
    return clean(secret)


def hand_over(words: str, secret: str) -> None:
    """The words for people; the secret alone on standard output, so that it can be captured."""
    where = "" if sys.stdout.isatty() else ", on standard output"
    for line in f"{words} Shown this once{where}:".split("\n"):
        click.echo(clean(line), err=True)
    click.echo(secret)
