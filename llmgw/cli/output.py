"""How the command writes: tables, JSON, YAML. ``-`` is unknown; 0 is zero."""

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

UNKNOWN = "-"
PIPED_WIDTH = 200
GIB = 1024**3

FOLDED = 12
"""Least width of a column that may be folded."""

COLOURS = {
    "ready": "green",
    "connected": "green",
    "active": "green",
    "loading": "yellow",
    "starting": "yellow",
    "placing": "yellow",
    "draining": "yellow",
    "reconnecting": "yellow",
    "unreachable": "red",
    "lost": "red",
    "failed": "red",
    "parked": "red",
    "unplaceable": "red",
    "revoked": "bright_black",
    "expired": "bright_black",
    "off": "bright_black",
}


_STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that turn the direction of writing, and halves of pairs."""


def clean(value: Any) -> str:
    """``value`` as text that cannot steer the terminal."""
    text = UNKNOWN if value is None else str(value)
    return _STEERS.sub("?", text)


def prepare() -> None:
    """Make standard output fit for any text and any place: what its encoding lacks is
    escaped, and one that was closed takes everything."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def give_up() -> None:
    """Nothing more can be written: keep the interpreter from trying again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def plain(data: Any, form: str) -> bool:
    """Write ``data`` as JSON or YAML if that is asked for."""
    if form == "json":
        text = json.dumps(data, indent=2, ensure_ascii=False)
        click.echo(_STEERS.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text))
        return True
    if form == "yaml":
        import yaml  # noqa: PLC0415 - only when asked for

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        if _STEERS.search(text.replace("\n", "")):
            text = yaml.safe_dump(data, sort_keys=False, allow_unicode=False)
        click.echo(text, nl=False)
        return True
    return False


def console() -> "Console":
    """Where tables go. Without a terminal they are wide and without colour."""
    from rich.console import Console  # noqa: PLC0415 - not needed to start a part

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=sys.stdout,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
        width=PIPED_WIDTH if piped else None,
    )


def styled(value: Any) -> "Text":
    """A cell: states in their colour."""
    from rich.text import Text  # noqa: PLC0415

    text = clean(value)
    return Text(text, style=COLOURS.get(text.split(" ")[0], ""))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str, out: "Console | None" = None) -> None:
    """Write rows under their headings, or the sentence ``empty``. Columns in lower
    case may be folded, the others keep their width. Where that is too wide nothing is
    cut: each row becomes a few lines."""
    from rich.table import Table  # noqa: PLC0415

    target = out or console()
    content = [[styled(cell) for cell in row] for row in rows]
    if not content:
        target.print(empty)
        return
    if _least_width(columns, content) > target.width:
        _records(columns, content, target)
        return
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        folds = name.islower()
        made.add_column(name.upper(), no_wrap=not folds, overflow="fold")
    for cells in content:
        made.add_row(*cells)
    target.print(made)


def _least_width(columns: Sequence[str], content: Sequence[Sequence["Text"]]) -> int:
    """Columns of the terminal that a table needs at least."""
    widths = [max(len(name), *(row[index].cell_len for row in content)) for index, name in enumerate(columns)]
    return sum(
        (min(width, FOLDED) if name.islower() else width) + 2 for name, width in zip(columns, widths, strict=True)
    )


def _records(columns: Sequence[str], content: Sequence[Sequence["Text"]], out: "Console") -> None:
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    indent = 2 if out.width > 2 * FOLDED else 0
    for first, *others in content:
        if first.plain.strip():
            out.print(first)
        for name, cell in zip(columns[1:], others, strict=True):
            if cell.plain.strip():
                line = Text.assemble(f"{name.upper()}: ", cell)
                out.print(Padding(line, (0, 0, 0, indent), expand=False))


def gb(size: float | None) -> str:
    """Bytes as GB of 2**30."""
    return UNKNOWN if size is None else f"{size / GIB:.1f}"


def count(value: float | None) -> str:
    """A number without needless decimals."""
    return UNKNOWN if value is None else f"{value:.1f}".removesuffix(".0")


def plural(number: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ago(seconds: float | None) -> str:
    """A duration in its two largest units at most: ``45s``, ``5m``, ``3h12m``, ``2d4h``."""
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}" + (f"{rest}{smaller_unit}" if rest else "")
    return f"{whole // 60}m" if whole >= 60 else f"{whole}s"
