"""Options that many commands share."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from llmgw.cli.client import DEFAULT_API, Client

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("table", "wide", "json", "yaml")
EVERY = 2.0
"""Seconds between two looks of ``--watch``."""

MAX_EVERY = 3600.0
EXAMPLE = 74
"""Longest line of an example."""


def connection(command: Command) -> Command:
    """Where the API is and how it is asked: three options, left in the context for ``connect``."""
    for option in (
        click.option("--ca", metavar="FILE", help="Certificate authority of an https:// API."),
        click.option("--token-file", metavar="FILE", help="File with your token; beats LLMGW_TOKEN_FILE."),
        click.option("--api", metavar="URL", help=f"Admin API (default {DEFAULT_API}, or LLMGW_API)."),
    ):
        command = option(command)
    return command


def connect(context: click.Context, within: float | None = None) -> Client:
    """The client that the command's options ask for; those of the groups that it stands in
    come after them, then the environment."""

    def given(option: str) -> str | None:
        here: click.Context | None = context
        while here is not None and not here.params.get(option):
            here = here.parent
        return None if here is None else here.params[option]

    return Client(
        given("api") or os.environ.get("LLMGW_API") or DEFAULT_API,
        given("token_file"),
        given("ca") or os.environ.get("LLMGW_CA") or None,
        within,
    )


def api(command: Command) -> Command:
    """``--api``, ``--token-file``, ``--ca``: the command gets a ``client``. A group that answers
    by itself does so only where none of its commands is asked for."""

    @wraps(command)
    def connected(*args: Any, api: str | None, token_file: str | None, ca: str | None, **options: Any) -> Any:  # noqa: ARG001 - connect finds them
        context = click.get_current_context()
        return None if context.invoked_subcommand else command(*args, client=connect(context), **options)

    return connection(connected)  # type: ignore[return-value]


def with_list(group: click.Group) -> None:
    """Give a group that lists by itself the command ``list``, which does the same."""
    alone = f"llmgw ctl {group.name}"
    command = click.Command("list", callback=group.callback, params=group.params, help=f"The same as {alone} alone.")
    command.epilog = example(f"{alone} list", f"{alone} list -o json")
    group.add_command(command)


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


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= MAX_EVERY:
        raise click.BadParameter(f"{value!r} is not a number of seconds from 0.1 to {MAX_EVERY:g}: write --watch last")
    return seconds


def watch(command: Command) -> Command:
    """``--watch``: the command gets ``watch``, seconds or ``None``."""
    return click.option(
        "-w",
        "--watch",
        "watch",
        callback=_seconds,
        is_flag=False,
        flag_value=str(EVERY),
        metavar="[SECONDS]",
        help=f"Show it again whenever it changes, until Ctrl-C; looks every {EVERY:g} s.",
    )(command)


def yes(command: Command) -> Command:
    """``--yes``: the command gets ``yes``."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, yes: bool) -> None:
    """Ask a person at a terminal; a script is taken at its word. Ends the command if the
    answer is no."""
    if yes or not sys.stdin.isatty():
        return
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")


def file_or_stdin(name: str) -> str:
    """The text of a file, or of standard input for ``-``. Raises ``ClickException``."""
    try:
        if name == "-":
            return sys.stdin.read()
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise click.UsageError(f"cannot read {name}: {what}") from error


def example(*lines: str) -> str:
    """The end of a command's help. Lines longer than a terminal are continued."""
    return "\b\nExample:\n" + "\n".join(f"  {_continued(line)}" for line in lines)


def _continued(line: str) -> str:
    """A command over several lines, as a shell takes it."""
    done, rest = [], line
    while len(rest) > EXAMPLE:
        cut = rest.rfind(" -", 0, EXAMPLE)
        if cut <= 0:
            break
        done.append(rest[:cut] + " \\")
        rest = "    " + rest[cut + 1 :]
    return "\n  ".join([*done, rest])
