"""What the simulated engine computes: slots, queue, KV tokens, tokens in time, counters.

Runs on a gevent hub. Knows no HTTP and no dialect.
"""

import os
import resource
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import gevent
from gevent.event import Event

from llmgw.sim.engine_options import Options

BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)


class ClientGone(Exception):
    """The client closed its connection; its slot is free again."""


class Cancelled(Exception):
    """The engine is stopping and gave up this request."""


class QueueFull(Exception):
    """More requests wait than ``queue_limit`` allows."""


@dataclass
class Histogram:
    """Counts of observed seconds by bucket, as Prometheus has them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.total += seconds
        self.counts[sum(seconds > bound for bound in BUCKETS)] += 1


class Call:
    """One request for tokens. Its waits end early when the client leaves or the
    engine cancels it."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.running = False
        self._gone = False
        self._cancelled = False
        self._wake = Event()

    def client_left(self) -> None:
        """The client closed its connection."""
        self._gone = True
        self._wake.set()

    def cancel(self) -> None:
        """The engine gives the request up."""
        self._cancelled = True
        self._wake.set()

    def grant(self) -> None:
        """The request got its slot."""
        self.running = True
        self._wake.set()

    def wait_for_slot(self) -> None:
        """Until ``grant``. Raises ``ClientGone`` or ``Cancelled``."""
        while not self.running:
            self.check()
            self._wake.wait()
            self._wake.clear()

    def sleep(self, seconds: float) -> None:
        """``seconds``, or until the request is over by another hand."""
        until = time.monotonic() + seconds
        while True:
            self.check()
            left = until - time.monotonic()
            if left <= 0:
                return
            self._wake.wait(left)
            self._wake.clear()

    def wait_gone(self, seconds: float | None = None) -> bool:
        """Whether the client left within ``seconds`` (``None`` = however long)."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._gone:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._wake.wait(left)
            self._wake.clear()
        return True

    def check(self) -> None:
        """Raises ``ClientGone`` or ``Cancelled`` if the request is over."""
        if self._gone:
            raise ClientGone
        if self._cancelled:
            raise Cancelled


class Core:
    """The engine's state. Read the attributes; change them by the methods."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ready = Event()
        self.broken = False
        self.running: list[Call] = []
        self.waiting: deque[Call] = deque()
        self.kv_used = 0
        self.requests = 0
        self.answered = 0
        self.aborted = 0
        self.rejected = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.finished: Counter[str] = Counter()
        self.time_to_first = Histogram()
        self.between_tokens = Histogram()
        self.end_to_end = Histogram()
        self.drained = Event()
        self.drained.set()
        self._words = options.reply.split()

    def arrive(self, prompt: int, limit: int) -> Call:
        """A request of ``prompt`` tokens that may produce ``limit``. Raises ``QueueFull``."""
        self.requests += 1
        self._die_if_told("crash-on-request")
        call = Call(prompt + (limit if self.options.loop else min(limit, len(self._words))))
        queue_limit = self.options.queue_limit
        if queue_limit is not None and not self._fits(call) and len(self.waiting) >= queue_limit:
            self.rejected += 1
            raise QueueFull
        self.waiting.append(call)
        self.drained.clear()
        self._admit()
        return call

    def tokens(self, call: Call, prompt: int, limit: int) -> Iterator[str]:
        """The words of the answer, each when its time has come. Raises ``ClientGone``
        or ``Cancelled``; ``leave`` must follow in any case."""
        arrived = time.monotonic()
        if "hang-on-request" in self.options.failures:
            call.wait_gone()
        call.wait_for_slot()
        started = time.monotonic()
        rate = self.options.prefill_rate
        call.sleep(self.options.ttft + (prompt / rate if rate else 0.0))
        self.prompt_tokens += prompt
        self.prefill_seconds += time.monotonic() - started
        last = time.monotonic()
        self.time_to_first.observe(last - arrived)
        gap = 1.0 / self.options.decode_rate if self.options.decode_rate else 0.0
        due = last
        for index in range(limit if self.options.loop else min(limit, len(self._words))):
            if index:
                due += gap
                call.sleep(due - time.monotonic())
                now = time.monotonic()
                self.between_tokens.observe(now - last)
                self.decode_seconds += now - last if gap else 0.0
                last = now
            if not gap and index % 64 == 63:
                gevent.sleep(0)  # a request without delay must not hold up the hub
            self.generated_tokens += 1
            yield (" " if index else "") + self._words[index % len(self._words)]
        self.end_to_end.observe(time.monotonic() - arrived)

    def finish_reason(self, limit: int) -> str:
        """``stop`` if the reply fits into ``limit`` tokens, else ``length``."""
        return "length" if self.options.loop or limit < len(self._words) else "stop"

    def leave(self, call: Call, reason: str) -> None:
        """The request is over for ``reason``: its slot goes to the next."""
        if call.running:
            self.running.remove(call)
            self.kv_used -= call.tokens
        else:
            self.waiting.remove(call)
        self.finished[reason] += 1
        self.answered += reason in ("stop", "length")
        self.aborted += reason == "client-gone"
        self._admit()
        if not self.running and not self.waiting:
            self.drained.set()
        if self.answered >= self.options.failures.get("crash-after", float("inf")):
            # The last answer must leave before the process does.
            gevent.spawn_later(0.05, abort)

    def cancel_all(self) -> None:
        """Give up every request, running or waiting."""
        for call in [*self.running, *self.waiting]:
            call.cancel()

    def _die_if_told(self, failure: str) -> None:
        if failure in self.options.failures:
            abort()

    def _fits(self, call: Call) -> bool:
        limit = self.options.kv_tokens
        # A request larger than the whole cache runs alone rather than never.
        room = limit is None or self.kv_used + call.tokens <= limit or not self.running
        return len(self.running) < self.options.slots and room

    def _admit(self) -> None:
        while self.waiting and self._fits(self.waiting[0]):
            call = self.waiting.popleft()
            self.running.append(call)
            self.kv_used += call.tokens
            call.grant()


def abort() -> None:
    """Die as a failed assertion does, without a core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGABRT)
