"""Hub-stall detector: how long the gevent hub was held, as a metric and a log line.

A greenlet sleeps a short interval; the time it oversleeps is time the hub could not
run it. A native thread, which the hub cannot hold up, takes the stack of whatever
holds it, so that the log says where (architecture: fails CI above 100 ms).
"""

import sys
import time
import traceback

import gevent
from gevent import monkey

from llmgw.runtime.logs import Logger

log = Logger("llmgw.stall")
_sleep = monkey.get_original("time", "sleep")
_start_thread = monkey.get_original("_thread", "start_new_thread")
_get_ident = monkey.get_original("_thread", "get_ident")


class StallDetector:
    """Watches the hub of the thread that starts it.

    ``longest`` and ``total`` are seconds of stalls longer than ``threshold``;
    ``count`` is how many there were. The log says how much of a stall was our own work: the
    rest is a machine that ran something else meanwhile.
    """

    def __init__(self, threshold: float = 0.1, interval: float = 0.02) -> None:
        self.threshold = threshold
        self.interval = interval
        self.longest = 0.0
        self.total = 0.0
        self.count = 0
        self._beat = time.monotonic()
        self._worked = time.thread_time()
        self._thread_id = _get_ident()
        self._stack: str | None = None
        self._running = False

    def start(self) -> "StallDetector":
        """Begin to watch."""
        self._running = True
        self._beat, self._worked = time.monotonic(), time.thread_time()
        gevent.spawn(self._pulse)
        _start_thread(self._watch, ())
        return self

    def stop(self) -> None:
        """Stop watching."""
        self._running = False

    def _pulse(self) -> None:
        while self._running:
            gevent.sleep(self.interval)
            now, worked = time.monotonic(), time.thread_time()
            stall, cpu = now - self._beat - self.interval, worked - self._worked
            self._beat, self._worked = now, worked
            if stall > self.threshold:
                self.count += 1
                self.total += stall
                self.longest = max(self.longest, stall)
                log.warning(
                    "the event loop was held",
                    seconds=round(stall, 3),
                    cpu_seconds=round(cpu, 3),
                    stack=self._stack or "-",
                )
            self._stack = None

    def _watch(self) -> None:
        while self._running:
            _sleep(self.threshold / 2)
            if self._stack is None and time.monotonic() - self._beat > self.interval + self.threshold:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._stack = "".join(traceback.format_stack(frame, limit=12))
