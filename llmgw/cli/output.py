"""What the command writes: JSON, YAML, and the words that tables are made of.

``-`` is unknown; 0 is zero.
"""

import contextlib
import io
import json
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN = "-"
GIB = 1024**3

ENDLESS = 100_000
"""Width without a terminal: a row is a line, for ``grep`` to find."""

SILENT = 2.0
"""Seconds after which a person at a terminal is told what is waited for."""

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


def say(text: str) -> None:
    """A line for people, which may hold words of others."""
    click.echo(folded("\n".join(clean(line) for line in text.split("\n")), sys.stdout))


@contextlib.contextmanager
def waiting_aloud(what: str, after: float = SILENT) -> Iterator[None]:
    """Say on a terminal what is waited for if it takes longer than so many seconds; wiped when
    it is over."""
    stream = sys.stderr
    if not stream.isatty():
        yield
        return
    told = threading.Event()

    def tell() -> None:
        told.set()
        stream.write(f"\r{clean(what)[: shutil.get_terminal_size().columns - 1]}")
        stream.flush()

    timer = threading.Timer(after, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if told.is_set():
            stream.write("\r\x1b[K")
            stream.flush()


def folded(text: str, stream: TextIO, used: int = 0) -> str:
    """``text`` as wide as the terminal that ``stream`` is, broken between words; elsewhere as
    it is. ``used`` columns of the first line are taken."""
    if not stream.isatty():
        return text
    width = max(20, shutil.get_terminal_size().columns)
    lines: list[str] = []
    for line in text.split("\n"):
        words = line.lstrip(" ")
        indent = line[: len(line) - len(words)]
        lines += textwrap.wrap(
            words,
            width,
            initial_indent=indent if lines else " " * used + indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)[used:]


def as_json(data: Any, indent: int | None = 2) -> str:
    """JSON in which nothing steers the terminal."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return _STEERS.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def as_yaml(data: Any) -> str:
    """YAML in which nothing steers the terminal."""
    import yaml  # noqa: PLC0415 - only when asked for

    text = str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    if _STEERS.search(text.replace("\n", "")):
        text = str(yaml.safe_dump(data, sort_keys=False, allow_unicode=False))
    return text


def plain(data: Any, form: str) -> bool:
    """Write ``data`` as JSON or YAML if that is asked for."""
    if form == "json":
        click.echo(as_json(data))
    elif form == "yaml":
        click.echo(as_yaml(data), nl=False)
    return form in ("json", "yaml")


def piped() -> bool:
    """Whether nobody looks: then nothing is folded."""
    return not sys.stdout.isatty() and "COLUMNS" not in os.environ


def console(file: io.StringIO | None = None) -> "Console":
    """Where tables go: standard output, or ``file`` as if it were the terminal."""
    from rich.console import Console  # noqa: PLC0415 - not needed to start a part

    return Console(
        file=file or sys.stdout,
        force_terminal=True if file is not None else None,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
        width=ENDLESS if piped() else None,
    )


def gb(size: float | None) -> str:
    """Bytes as GB of 2**30: one decimal below 100."""
    if size is None:
        return UNKNOWN
    value = size / GIB
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def gb_of(part: float | None, whole: float | None) -> str:
    """Bytes of bytes as GB, both to the same decimal."""
    digits = 0 if whole is not None and whole >= 100 * GIB else 1
    return "/".join(UNKNOWN if size is None else f"{size / GIB:.{digits}f}" for size in (part, whole))


def count(value: float | None) -> str:
    """A number without needless decimals."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}".removesuffix(".0")


def short(value: float | None) -> str:
    """A number in few letters: ``950``, ``12.3k``, ``4.56M``."""
    if value is None:
        return UNKNOWN
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return count(value)


def plural(number: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(words: list[str], most: int = 3) -> str:
    """``a, b, c, … +4``: the first few of many."""
    shown = ", ".join(clean(word) for word in words[:most])
    return f"{shown}, … +{len(words) - most}" if len(words) > most else shown


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


def moment(text: str | None) -> str:
    """A moment of the API in a table, whose moments are all in UTC: ``2030-01-31 12:30:00``."""
    return UNKNOWN if text is None else clean(text)[:19].replace("T", " ")


def utc(text: str | None, absent: str = UNKNOWN) -> str:
    """A moment of the API in a sentence: ``2030-01-31 12:30 UTC``."""
    return absent if text is None else f"{moment(text)[:16]} UTC"


def day(text: str | None, absent: str = UNKNOWN) -> str:
    """The day of a moment."""
    return absent if text is None else clean(text)[:10]
