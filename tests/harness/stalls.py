"""How long a process of ours held its event loop, by its own word, less the time in which
it had no processor: on a busy machine that is not its fault."""

import re
import threading
import time
from datetime import datetime
from pathlib import Path

_HELD = re.compile(r"^(\S+) warning +llmgw\.stall: the event loop was held seconds=([0-9.]+)(.*)$", re.MULTILINE)
_EVERY = 0.02


class Stalls:
    """Watches process ``pid``, which logs to ``log``, while it is entered."""

    def __init__(self, pid: int, log: Path) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._log = log
        self._begin = 0
        self._waited: list[tuple[float, float]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.found: list[tuple[float, str]] = []

    def __enter__(self) -> "Stalls":
        self._begin = self._log.stat().st_size
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ending.set()
        self._thread.join()
        with self._log.open("rb") as stream:
            stream.seek(self._begin)
            said = stream.read().decode()
        for moment, seconds, stack in _HELD.findall(said):
            end = datetime.fromisoformat(moment).timestamp()
            held = float(seconds)
            self.found.append((held - self._without_processor(end - held, end), f"{held} s at {moment}{stack}"))

    @property
    def longest(self) -> tuple[float, str]:
        """Seconds of the longest, and what was said of it; no time at all if there was none."""
        return max(self.found, default=(0.0, ""))

    def _watch(self) -> None:
        while not self._ending.wait(_EVERY):
            self._waited.append((time.time(), self._total()))

    def _total(self) -> float:
        """Seconds that its threads waited for a processor so far: whoever has Python's lock may be the one."""
        waited = 0.0
        try:
            for task in self._tasks.iterdir():
                waited += int((task / "schedstat").read_text().split()[1]) / 1e9
        except OSError:
            return waited  # a thread has just ended
        return waited

    def _without_processor(self, begin: float, end: float) -> float:
        before = max((total for at, total in self._waited if at <= begin), default=0.0)
        after = min((total for at, total in self._waited if at >= end), default=before)
        return max(after - before, 0.0)
