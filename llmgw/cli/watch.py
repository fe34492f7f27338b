"""Showing an answer once, or again and again (``--watch``)."""

import io
import json
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from llmgw.cli.client import Unreachable
from llmgw.cli.output import as_json, as_yaml, console, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Data = dict[str, Any]
Fetch = Callable[[], Data]
Shown = Callable[["Console", Data], None]

AGES = re.compile(r"_seconds\Z")
MEASURED = re.compile(
    r"(_seconds|percent|load1|(\A|_)used_(bytes|cores)|available_bytes|temperature_celsius|power_watts)\Z"
)
"""Fields that move by themselves: without a terminal they are no news."""


def view(form: str, watch: float | None, fetch: Fetch, show: Shown, moves: re.Pattern[str] = MEASURED) -> None:
    """Fetch and show; with ``watch`` again every so many seconds until Ctrl-C.

    On a terminal it is redrawn in place, in whatever size the window has. Elsewhere a
    block is written whenever something else than ``moves`` changed.
    """
    if watch is None:
        answer = fetch()
        if not plain(answer, form):
            show(console(), answer)
    elif sys.stdout.isatty() and form in ("table", "wide"):
        _redraw(watch, fetch, show)
    else:
        _on_change(form, watch, fetch, show, moves)


def _on_change(form: str, watch: float, fetch: Fetch, show: Shown, moves: re.Pattern[str]) -> None:
    before: str | None = None
    away = ""
    answer = fetch()
    while True:
        now = json.dumps(_still(answer, moves), sort_keys=True)
        if now != before:
            if form == "json":
                click.echo(as_json(answer, None))
            elif form == "yaml":
                click.echo("---\n" + as_yaml(answer), nl=False)
            else:
                if before is not None:
                    click.echo(f"\n--- {_clock()}")
                show(console(), answer)
            sys.stdout.flush()
            before, away = now, ""
        while True:
            time.sleep(watch)
            try:
                answer = fetch()
                break
            except Unreachable as error:
                if error.message != away:
                    away = error.message
                    click.echo(f"{_clock()} {away}; trying again", err=True)


def _still(data: Any, moves: re.Pattern[str]) -> Any:
    """``data`` without the fields that move by themselves."""
    if isinstance(data, dict):
        return {name: _still(value, moves) for name, value in data.items() if not moves.search(str(name))}
    return [_still(item, moves) for item in data] if isinstance(data, list) else data


def _clock() -> str:
    return f"{datetime.now(UTC):%H:%M:%S} UTC"


def _redraw(watch: float, fetch: Fetch, show: Shown) -> None:
    from rich.live import Live  # noqa: PLC0415 - only when asked for

    answer, told = fetch(), ""
    screen = console()

    def drawn() -> "Text":
        return _page(answer, show, told, screen)

    try:
        # The other screen has no history that a window of another size could wrap again.
        # Nothing else writes meanwhile; what would be put in stdout's place has no encoding to draw bars by.
        with Live(console=screen, screen=True, get_renderable=drawn, refresh_per_second=2, redirect_stdout=False):
            while True:
                time.sleep(watch)
                try:
                    answer, told = fetch(), ""
                except Unreachable as error:
                    told = f"{_clock()} {error.message}; trying again. What is shown is older"
    finally:
        show(screen, answer)


def _page(answer: Data, show: Shown, told: str, screen: "Console") -> "Text":
    """As much as the window holds."""
    from rich.text import Text  # noqa: PLC0415 - as above

    made = io.StringIO()
    page = console(made)
    page.width, page.no_color = screen.width, screen.no_color
    if told:
        page.print(told, style="bold red")
    show(page, answer)
    lines = made.getvalue().splitlines()
    room = max(2, screen.height)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines: make the window larger"]
    return Text.from_ansi("\n".join(lines), no_wrap=True)
