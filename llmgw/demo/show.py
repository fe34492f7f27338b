"""What the person at the terminal sees: steps with their times, plain lines where there is no terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

WIDTH = 46


class Step:
    """A step in progress. ``detail`` is said when it is done."""

    def __init__(self) -> None:
        self.detail = ""


class Show:
    """The demo's voice. Results go to standard output, everything as it happens."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
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
                self.console.print(f"     {title} ...", markup=False)
                yield step
        except BaseException:
            self._line("failed", "red", title, time.monotonic() - begin, "")
            raise
        self.times[title] = time.monotonic() - begin
        self._line("ok", "green", title, self.times[title], step.detail)

    def say(self, text: str = "") -> None:
        """A line of text."""
        self.console.print(text, markup=False)

    def heading(self, text: str) -> None:
        """A line that begins something."""
        self.console.print(f"\n{text}", style="bold", markup=False)

    def piece(self, text: str) -> None:
        """A part of a line, at once."""
        self.console.print(text, end="", markup=False)
        self.console.file.flush()

    def failure(self, message: str, remedy: str, tail: str) -> None:
        """What went wrong, what to do, and the end of the log that knows more."""
        self.console.print(f"\nThe demo stopped: {message}", style="bold red", markup=False)
        if remedy:
            self.say(remedy)
        if tail:
            self.say("The log's last lines:")
            self.say("\n".join(f"  | {line}" for line in tail.splitlines()))

    def _line(self, word: str, style: str, title: str, seconds: float, detail: str) -> None:
        self.console.print(f"{word:>6}", style=style, end="")
        self.console.print(f" {title:{WIDTH}} {seconds:6.1f} s  {detail}".rstrip(), markup=False)
