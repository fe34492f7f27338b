"""What the commands share: settings in, words and bars out.

Facts go to standard output, everything else to standard error. Exit status: 1 for
trouble, 2 for wrong usage or settings.
"""

import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from controlplane.settings import load
from controlplane.store.database import Backend, Database
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.move import alone, give_to_owner
from controlplane.store.opening import backend_of
from controlplane.store.sqlite import Sqlite
from llmgw.runtime.settings import Loaded, SettingsError

DEFAULT_CONFIG = Path("/etc/llmgw/controlplane.yaml")
"""Where ``llmgw server`` looks too."""

PIPED_WIDTH = 200
SENTENCE = 200
"""Longest that a list of commands says of each, in characters."""

_STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

Command = TypeVar("Command", bound=Callable[..., Any])


class Plainly(click.Group):
    """A group whose commands' failures are told in words, and what each does in a whole sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in its help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, found.get_short_help_str(SENTENCE)) for name, found in commands.items() if found is not None]
            )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except SettingsError as error:
            raise _WrongSettings(str(error)) from error
        except (StoreError, StoreUnavailable) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{place}{error.strerror or error}") from error


class _WrongSettings(click.ClickException):
    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(self.format_message(), file=file or sys.stderr)


def example(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def config(command: Command) -> Command:
    """``--config``: the command gets the control plane's ``settings``."""
    return click.option(
        "--config",
        "settings",
        type=click.Path(path_type=Path),
        metavar="FILE",
        callback=_load,
        help=f"The control plane's settings file (default {DEFAULT_CONFIG}, if there).",
    )(command)


def _load(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Loaded:
    file = value or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)
    return load(file, os.environ)


def output(command: Command) -> Command:
    """``-o``: the command gets a ``form``."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(("table", "json")),
        default="table",
        show_default=True,
        help="Tables for people, json for programs.",
    )(command)


def backend(settings: Loaded, **more: Any) -> Backend:
    """The store that the settings name. ``more`` is for a PostgreSQL one."""
    password_file = settings["store.password_file"]
    file = Path(password_file).expanduser() if password_file else None
    return backend_of(settings["store.url"], file, settings["state_dir"], **more)


@contextmanager
def opened(settings: Loaded) -> Iterator[Database]:
    """The store that the settings name, of this program's schema, while every control plane is
    kept out. Raises ``StoreError``."""
    target = backend(settings)
    with alone(backend(settings, lock="exclusive")):
        try:
            database = Database(target).open()
        except StoreUnavailable as error:
            raise StoreError(str(error)) from error
        try:
            yield database
        finally:
            database.close()
            if isinstance(target, Sqlite):
                give_to_owner(target.file)


def actor(command: str) -> str:
    """Who uses a command, for the audit: the user that we are, and who became it by sudo."""
    by = os.environ.get("SUDO_USER")
    return f"{command}:{getpass.getuser()}" + (f" (sudo by {by})" if by else "")


def directory(path: Path) -> None:
    """Make a private directory, of whoever owns the one it lies in. Raises ``OSError``."""
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True)
        give_to_owner(path)


def clean(value: Any) -> str:
    """``value`` as text that cannot steer the terminal; unknown is ``-``."""
    return "-" if value is None else _STEERS.sub("?", str(value))


def say(words: str) -> None:
    """Tell a person, on standard error."""
    click.echo(clean(words), err=True)


def facts(data: Any) -> None:
    """Facts as JSON, on standard output."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=True))


def console(*, err: bool = False) -> Console:
    """Where tables and bars go."""
    stream = sys.stderr if err else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=PIPED_WIDTH if piped else None)


def table(columns: tuple[str, ...], rows: list[tuple[Any, ...]], numbers: tuple[int, ...] = ()) -> None:
    """A table, on standard output."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        made.add_column(name.upper(), justify="right" if index in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(clean, row))
    target = console()
    with target.capture() as written:
        target.print(made)
    for line in written.get().splitlines():
        click.echo(line.rstrip())


def size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "-"
    for unit, scale in (("GB", 1024**3), ("MB", 1024**2), ("kB", 1024)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


@contextmanager
def bars(totals: dict[str, int] | None = None) -> Iterator[Callable[[str, int], None]]:
    """A bar for each table while it is worked on, on standard error; none without a
    terminal. Yields what is told of each table how many rows are done."""
    target = console(err=True)
    if not target.is_terminal:
        yield lambda _table, _rows: None
        return
    columns = (TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.completed:,.0f} rows"))
    with Progress(*columns, TimeElapsedColumn(), console=target, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def told(name: str, rows: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=(totals or {}).get(name))
            elif rows < (progress.tasks[tasks[name]].completed or 0):
                progress.reset(tasks[name], description=f"{name} (check)")
            progress.update(tasks[name], completed=rows)

        yield told
