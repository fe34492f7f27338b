"""The command in a terminal of its own."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from types import TracebackType

DEADLINE = 20.0


class Terminal:
    """``llmgw ARGUMENTS`` in a pseudo-terminal. ``text`` is all it wrote so far."""

    def __init__(self, *arguments: str, columns: int = 100, lines: int = 40, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self._size(columns, lines)
        keep = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llmgw.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**keep, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.text = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int = 40) -> None:
        """As a person drags the window's corner."""
        self._size(columns, lines)
        os.kill(self.process.pid, signal.SIGWINCH)

    def until(self, condition: Callable[[str], bool], what: str) -> str:
        """Read until what came since the last call fulfils the condition; that part."""
        begin, deadline = len(self.text), time.monotonic() + DEADLINE
        while not condition(self.text[begin:]):
            assert time.monotonic() < deadline, f"{what} did not come: {self.text[begin:][-2000:]!r}"
            self._read()
        return self.text[begin:]

    def _read(self) -> None:
        try:
            self.text += os.read(self._ours, 65536).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # the other end is closed
            time.sleep(0.01)

    def type(self, text: str) -> None:
        """As a person types it."""
        os.write(self._ours, text.encode())

    def ends(self) -> int:
        """Its exit status."""
        deadline = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end: {self.text[-2000:]!r}"
            self._read()
        self._read()
        return self.process.returncode
