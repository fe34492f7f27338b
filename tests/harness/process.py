"""One process of a test, with its output in a file."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path


class Process:
    """Starts at once, as a session of its own. ``restart`` starts it again with the same
    command; the output goes on in the same file."""

    def __init__(self, name: str, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.environment = {**os.environ, **environment}
        self.starts = 0
        self.process: subprocess.Popen[bytes]
        self.restart()

    def restart(self) -> None:
        """Start it (again); it must not be running."""
        assert self.starts == 0 or self.process.poll() is not None, f"{self.name} is still running"
        self.starts += 1
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the latest start."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """Everything it wrote, over all starts."""
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    def pause(self) -> None:
        """Stop it where it is, with the processes of its session, as a machine that hangs does."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End ``pause``."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """``kill -9``, and wait for its end."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 15.0) -> int:
        """SIGTERM; returns the exit status. Fails when it does not end in time."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {seconds:g} s of SIGTERM:\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        """The last lines of its output."""
        return "\n".join(self.output.splitlines()[-lines:])
