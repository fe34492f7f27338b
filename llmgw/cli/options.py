"""Options that many commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from llmgw.cli.client import DEFAULT_API, Client

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("table", "wide", "json", "yaml")


def _client(context: click.Context, _parameter: click.Parameter, value: str | None) -> Client:
    outer = context.find_root().obj or {}
    return Client(value or outer.get("api") or DEFAULT_API)


def api(command: Command) -> Command:
    """``--api``: the command gets a ``client``."""
    return click.option(
        "--api",
        "client",
        metavar="URL",
        callback=_client,
        help=f"Admin API of the control plane (default {DEFAULT_API}, or LLMGW_API).",
    )(command)


def output(command: Command) -> Command:
    """``-o``: the command gets a ``form``."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Tables for people, json or yaml for programs.",
    )(command)


def example(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
