"""Tables on terminals of any width. Nothing is cut, and no column is squeezed.

A column whose heading is in small letters holds words. Where they do not fit beside the
others they stand on lines of their own below the row. Where the others alone do not
fit, a row becomes one line for each of its cells. A heading that begins with ``>``
stands to the right, as figures do. Without a terminal a row is one line.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from llmgw.cli.output import ENDLESS, UNKNOWN, clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = 2
INDENT = 4
NAMELESS = ("why", "reason", "error")
"""Columns whose words speak for themselves below a row."""

COLOURS = {
    **dict.fromkeys(("ready", "connected", "active", "good", "fits", "chosen", "ok", "done"), "green"),
    **dict.fromkeys(("loading", "starting", "placing", "draining", "reconnecting", "stopping", "stale"), "yellow"),
    **dict.fromkeys(("unreachable", "lost", "failed", "parked", "unplaceable"), "bold red"),
    **dict.fromkeys(("revoked", "removed", "expired", "used", "disabled", "off", "no"), "bright_black"),
}


class Row(NamedTuple):
    """Cells, and sentences that stand below them."""

    cells: Sequence[Any]
    notes: Sequence[str] = ()


def styled(value: Any) -> "Text":
    """A cell: states in their colour. What is styled already stays as it is."""
    from rich.text import Text  # noqa: PLC0415 - not needed to start a part

    if isinstance(value, Text):
        return value
    text = clean(value)
    return Text(text, style=COLOURS.get(text.split(" ")[0], ""))


def bar(share: float | None, width: int) -> str:
    """``share`` of one as a bar: more than nothing shows, less than all leaves a gap."""
    full, free = _blocks()
    if share is None:
        return UNKNOWN.ljust(width)
    filled = round(min(1.0, max(0.0, share)) * width)
    if share > 0:
        filled = max(1, filled)
    if share < 1 and width > 1:
        filled = min(width - 1, filled)
    return full * filled + free * (width - filled)


def _blocks() -> tuple[str, str]:
    return ("█", "░") if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else ("#", ".")


def share(part: float | None, whole: float | None) -> float | None:
    """``part`` of ``whole``; unknown if one of them is, or if there is nothing to have a part of."""
    return None if part is None or not whole else part / whole


def gauge(part: float | None, whole: float | None, words: str, width: int) -> str:
    """A bar and the figures behind it; the figures alone where there is nothing to draw."""
    drawn = share(part, whole)
    if part is None and whole is None:
        return UNKNOWN
    return words if drawn is None or not width else f"{bar(drawn, width)} {words}"


def fitting(
    columns: Sequence[str], rows: Callable[[int], Sequence[Row]], bars: Sequence[int], width: int
) -> Sequence[Row]:
    """``rows(bar)`` with the longest bars that let all columns stand side by side; with
    the last if none do."""
    from rich.cells import cell_len  # noqa: PLC0415 - as above

    for length in bars:
        made = rows(length)
        widths = [len(name.lstrip(">")) for name in columns]
        for row in made:
            widths = [max(known, cell_len(str(cell))) for known, cell in zip(widths, row.cells, strict=True)]
        if sum(widths) + GAP * (len(widths) - 1) <= width:
            break
    return made


def table(columns: Sequence[str], rows: Iterable[Row | Sequence[Any]], empty: str, out: "Console") -> None:
    """Write rows under their headings, or the sentence ``empty``."""
    made = [row if isinstance(row, Row) else Row(row) for row in rows]
    if not made:
        below(out, empty, 0)
        return
    content = [([styled(cell) for cell in row.cells], list(row.notes)) for row in made]
    inside = _inside(columns, content, out.width)
    if inside is None:
        _records(columns, content, out)
        return
    widths = {index: _width(columns, content, index) for index in inside}
    _line(out, [(_heading(columns[index], "bold"), widths[index], _right(columns[index])) for index in inside])
    for cells, notes in content:
        extra = [note for note in notes if note]
        if out.width >= ENDLESS:
            tail = [(styled("; ".join(extra)), 0, False)] if extra else []
            _line(out, [(cells[i], widths[i], _right(columns[i])) for i in inside] + tail)
            continue
        _line(out, [(cells[index], widths[index], _right(columns[index])) for index in inside])
        for index, cell in enumerate(cells):
            if index not in inside and cell.plain.strip() not in ("", UNKNOWN):
                name = "" if columns[index] in NAMELESS else f"{columns[index]}: "
                below(out, name + cell.plain)
        for note in extra:
            below(out, note)


def below(out: "Console", text: "str | Text", indent: int = INDENT, style: str = "") -> None:
    """A sentence on lines of its own, set off from the row it belongs to."""
    from rich.text import Text  # noqa: PLC0415 - as above

    made = text if isinstance(text, Text) else Text(clean(text), style=style)
    if out.width >= ENDLESS:
        lines = [made]
    else:
        indent = indent if out.width > 4 * indent else 0
        lines = list(made.wrap(out, out.width - indent, overflow="fold"))
    for line in lines:
        line.rstrip()
        out.print(Text(" " * indent).append_text(line), no_wrap=True, overflow="ignore", crop=False)


Content = list[tuple[list["Text"], list[str]]]


def _inside(columns: Sequence[str], content: Content, width: int) -> list[int] | None:
    """The columns that stand side by side; ``None``: not even those that must."""
    inside = list(range(len(columns)))
    widths = [_width(columns, content, index) for index in inside]
    for index in reversed(inside.copy()):
        if not any(cells[index].plain.strip() for cells, _ in content) and columns[index].islower():
            inside.remove(index)  # nobody has anything to say there
    while sum(widths[index] + GAP for index in inside) - GAP > width:
        loose = [index for index in inside if columns[index].islower()]
        if not loose:
            return None
        inside.remove(max(loose, key=lambda index: (widths[index], index)))
    return inside


def _width(columns: Sequence[str], content: Content, index: int) -> int:
    return max(len(columns[index].lstrip(">")), *(cells[index].cell_len for cells, _ in content))


def _heading(name: str, style: str) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - as above

    return Text(name.lstrip(">").upper(), style=style)


def _right(name: str) -> bool:
    return name.startswith(">")


def _line(out: "Console", cells: list[tuple["Text", int, bool]]) -> None:
    from rich.text import Text  # noqa: PLC0415 - as above

    line = Text()
    for number, (cell, width, right) in enumerate(cells):
        gap = " " * GAP if number else ""
        space = " " * max(0, width - cell.cell_len)
        line.append(gap + (space if right else ""))
        line.append_text(cell)
        if not right:
            line.append(space)
    line.rstrip()
    out.print(line, no_wrap=True, overflow="ignore", crop=False)


def _records(columns: Sequence[str], content: Content, out: "Console") -> None:
    from rich.text import Text  # noqa: PLC0415 - as above

    indent = 2 if out.width > 24 else 0
    for (first, *others), notes in content:
        if first.plain.strip():
            first.overflow = "fold"
            out.print(first)
        for name, cell in zip(columns[1:], others, strict=True):
            if cell.plain.strip():
                below(out, Text.assemble(f"{name.lstrip('>').upper()}: ", cell).plain, indent)
        for note in notes:
            if note:
                below(out, note, indent)
