"""What the person at the terminal sees: steps with their times, plain lines where there is no terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

WIDTH = 37


class Step:
    """A step in progress. ``detail`` is said when it is done."""

    def __init__(self) -> None:
        self.detail = ""


class _Console(Console):
    """Falls silent when nobody reads any more: the demo must still stop what it started."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Show:
    """The demo's voice. Results go to standard output, everything as it happens."""

    def __init__(self, file: TextIO | None = None) -> None:
        self.console: Console = _Console(file=file, highlight=False, soft_wrap=True)
        self.times: dict[str, float] = {}

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step while the block runs, then its time and detail; or that it failed."""
        step = Step()
        begin = time.monotonic()
        try:
            if self.console.is_terminal:
                columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
                with Progress(*columns, console=self.console, transient=True) as progress:
                    progress.add_task(title, total=None)
                    yield step
            else:
                self._print(f"     {title} ...")
                yield step
        except KeyboardInterrupt:
            self._line("halted", "yellow", title, time.monotonic() - begin, "")
            raise
        except BaseException:
            self._line("failed", "red", title, time.monotonic() - begin, "")
            raise
        self.times[title] = time.monotonic() - begin
        self._line("ok", "green", title, self.times[title], step.detail)

    def say(self, text: str = "") -> None:
        """A line of text."""
        self._print(text)

    def heading(self, text: str) -> None:
        """A line that begins something."""
        self._print(f"\n{text}", style="bold")

    def piece(self, text: str) -> None:
        """A part of a line, at once."""
        self._print(text, end="")

    def failure(self, message: str, remedy: str, tail: str) -> None:
        """What went wrong, what to do, and the end of the log that knows more."""
        self._print(f"\nThe demo stopped: {message}", style="bold red")
        if remedy:
            self.say(remedy)
        if tail:
            self.say("The log's last lines:")
            self.say("\n".join(f"  | {line}" for line in tail.splitlines()))

    def _line(self, word: str, style: str, title: str, seconds: float, detail: str) -> None:
        self._print(f"{word:>6}", style=style, end="")
        text = f" {title:{WIDTH}} {seconds:5.1f} s"
        wide = 6 + len(text) + 2 + len(detail) > self.console.width
        gap = "\n       " if wide and self.console.is_terminal else "  "
        self._print(f"{text}{gap}{detail}" if detail else text)

    def _print(self, text: str, style: str | None = None, end: str = "\n") -> None:
        try:
            self.console.print(text, style=style, end=end, markup=False)
        except OSError:  # the terminal is gone
            self.console.quiet = True
