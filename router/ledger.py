"""From finished requests to usage batches that the control plane has taken (TEN-06, STO-03).

Once a second what has finished is written to the spool and the oldest batch is sent, again
and unchanged until it is acknowledged. While the control plane is away batches fill up on
disk; past ``limit`` records the oldest are dropped. Two greenlets: one that writes and never
waits for the network, one that sends.
"""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from gevent.threadpool import ThreadPool

from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.wire.routing import MAX_RECORDS
from router import usage
from router.control import BatchRefused, ControlError
from router.offhub import Result, off_hub
from router.spool import Spool, abandoned, open_spool
from router.sync import Backoff
from router.usage import Done

log = Logger("router.ledger")

INTERVAL = 1.0
RESCAN_SECONDS = 30.0
"""How often it is looked for what processes that died have left."""
SLICE = 250
"""Records encoded at a stretch, half a millisecond's work."""
BREATH = 0.001
MAX_BYTES = 1536 * 1024
"""Size at which a batch is whole although it has fewer than ``MAX_RECORDS``."""
TELL_SECONDS = 60.0
"""How often it is said that records are dropped."""


class Batch:
    """Records under one sequence number. ``base`` (Unix time) is what the latest count from,
    ``parts`` is what the spool's file holds; ``stored`` says that all of it is on disk,
    ``loaded`` that all of it is in memory, ``even`` that there is one base."""

    __slots__ = ("base", "count", "even", "loaded", "parts", "sequence", "size", "spool", "stored")

    def __init__(self, spool: Spool | None, sequence: int) -> None:
        self.spool = spool
        self.sequence = sequence
        self.parts: list[bytes] = []
        self.loaded = True
        self.even = True
        self.count = 0
        self.size = 0
        self.base = 0.0
        self.stored = spool is not None

    def begin(self, base: float) -> bytes:
        """What to put ahead of records that count from ``base``."""
        if self.base == base:
            return b""
        self.even = not self.parts
        self.base = base
        return usage.base_line(base)


class Ledger:
    """Keeps records until they are acknowledged. ``record`` is what the data path calls.

    ``post`` sends the JSON of a batch; it raises ``ControlError``. ``boot`` is this process.
    """

    def __init__(
        self,
        post: Callable[[bytes], None],
        directory: Path,
        *,
        boot: str,
        limit: int,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._post = post
        self._directory = directory
        self._boot = boot
        self._limit = limit
        self._clock = clock
        self._backoff = Backoff(rng)
        self._threads = ThreadPool(1)
        self._done: list[Done] = []
        self.record: Callable[[Done], None] = self._done.append
        self._spool: Spool | None = None
        self._open = Batch(None, 1)
        self._queue: deque[Batch] = deque()  # sealed, oldest first within each boot
        self._sending: Batch | None = None
        self._lock = BoundedSemaphore()
        self._news = Event()
        self._ending = Event()
        self._written = False
        self._failing = False
        self._disk_failing = False
        self._told_at = float("-inf")
        self._told = 0
        self.kept = 0
        """Records written down and not acknowledged yet."""
        self.dropped = 0
        """Records given up because there were too many."""
        self.refused = 0
        """Records in batches that the control plane would not take at all."""
        self._greenlets: list[gevent.Greenlet] = []

    def start(self) -> list[gevent.Greenlet]:
        """Begin; the greenlets end only by an error, or after ``finish``."""
        try:
            self._spool = self._off_hub(open_spool, self._directory, self._boot)
            self._open = Batch(self._spool, 1)
        except OSError as error:
            self._no_disk(error)
        self._greenlets = [gevent.spawn(self._write_on), gevent.spawn(self._send_on)]
        return self._greenlets

    def finish(self, seconds: float) -> None:
        """Write down what is there, and send it if the control plane takes it within
        ``seconds``; the rest waits on disk for the next start."""
        self._ending.set()
        self._news.set()
        gevent.joinall(self._greenlets, timeout=seconds)
        gevent.killall(self._greenlets, timeout=1)
        lost = len(self._done) + sum(batch.count for batch in (*self._queue, self._open) if not batch.stored)
        if lost:
            log.error("usage records are lost: neither the control plane nor the disk took them", count=lost)
        if self.kept > lost:
            log.warning("usage records wait on disk for the next start", count=self.kept - lost)
        if self._spool is not None:
            self._off_hub(self._spool.close)

    # -------------------------------------------------------------- writing down

    def _write_on(self) -> None:
        scan_at = float("-inf")
        while True:
            if self._clock.monotonic() >= scan_at:
                self._adopt()
                scan_at = self._clock.monotonic() + RESCAN_SECONDS
            ending = self._ending.wait(INTERVAL)
            self.write()
            if ending:
                self._written = True
                self._news.set()
                return

    def write(self) -> None:
        """Take down what has finished since the last time."""
        if not self._done:
            return
        with self._lock:
            taken = self._done[:]
            del self._done[: len(taken)]
            base, now = round(self._clock.now().timestamp(), 3), self._clock.monotonic()
            fresh: list[bytes] = []
            for at in range(0, len(taken), SLICE):
                if at:
                    gevent.sleep(BREATH)
                some = taken[at : at + SLICE]
                lines = usage.lines_of(some, now)
                batch = self._open
                if batch.count + len(some) > MAX_RECORDS or (batch.count and batch.size + len(lines) > MAX_BYTES):
                    self._store(fresh)
                    fresh = []
                    self._seal()
                    batch = self._open
                fresh += (batch.begin(base), lines)
                batch.parts += fresh[-2:]
                batch.count += len(some)
                batch.size += len(lines)
                self.kept += len(some)
            self._store(fresh)
            self._drop()
        self._news.set()

    def _store(self, parts: list[bytes]) -> None:
        batch = self._open
        if not parts or not batch.stored or batch.spool is None:
            return
        try:
            self._off_hub(batch.spool.append, batch.sequence, b"".join(parts))
            self._disk_failing = False
        except OSError as error:
            batch.stored = False
            self._no_disk(error)

    def _seal(self) -> None:
        """Nothing more is added to the open batch: it waits to be sent."""
        batch = self._open
        if batch.stored and self._queue:
            batch.parts, batch.loaded = [], False  # others are sent first: the disk keeps it meanwhile
        self._queue.append(batch)
        self._open = Batch(self._spool, batch.sequence + 1)

    def _drop(self) -> None:
        """Give up the oldest batches if there are too many records."""
        while self.kept > self._limit:
            oldest = next((batch for batch in self._queue if batch is not self._sending), None)
            if oldest is None:
                return
            self._forget(oldest)
            self.dropped += oldest.count
            self._told += oldest.count
        if self._told and self._clock.monotonic() >= self._told_at + TELL_SECONDS:
            log.error(
                "usage records dropped, the oldest first: the control plane takes none, and there is room for no more",
                count=self._told,
                kept=self.kept,
            )
            self._told = 0
            self._told_at = self._clock.monotonic()

    def _forget(self, batch: Batch) -> None:
        self._queue.remove(batch)
        self.kept -= batch.count
        spool = batch.spool
        if spool is None:
            return
        try:
            self._off_hub(spool.remove, batch.sequence)
            if spool is not self._spool and all(other.spool is not spool for other in self._queue):
                self._off_hub(spool.close)
        except OSError as error:
            self._no_disk(error)

    def _adopt(self) -> None:
        """Send also what processes that died had not sent, under their own names."""
        if self._spool is None:
            return
        try:
            spools: list[Spool] = self._off_hub(abandoned, self._directory)
            for spool in spools:
                batches = self._off_hub(self._left_by, spool)
                if not batches:
                    self._off_hub(spool.close)
                    continue
                with self._lock:
                    self._queue += batches
                    count = sum(batch.count for batch in batches)
                    self.kept += count
                    self._drop()
                log.info("usage records of a process that ended are sent on", count=count, boot=spool.boot)
        except OSError as error:
            self._no_disk(error)
        self._news.set()

    @staticmethod
    def _left_by(spool: Spool) -> list[Batch]:
        """The batches of a process that died. Runs in a thread."""
        batches = []
        for sequence in spool.sequences():
            lines, base = usage.read_back(spool.read(sequence))
            if not lines:
                spool.remove(sequence)
                continue
            batch = Batch(spool, sequence)
            batch.loaded, batch.even, batch.base, batch.count = False, False, base, len(lines)
            batches.append(batch)
        return batches

    # ------------------------------------------------------------------ sending

    def _send_on(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                if self._written:
                    return
                self._news.wait()
                self._news.clear()
            elif self._send(batch):
                self._backoff.reset()
            elif self._ending.is_set():
                return  # it is on disk
            else:
                self._ending.wait(self._backoff.next())

    def _next(self) -> Batch | None:
        if not self._queue and self._open.count:
            with self._lock:
                if not self._queue and self._open.count:
                    self._seal()
        return self._queue[0] if self._queue else None

    def _send(self, batch: Batch) -> bool:
        """Whether the batch is dealt with."""
        self._sending = batch
        try:
            if not self._posted(batch):
                return False
            with self._lock:
                self._forget(batch)
        finally:
            self._sending = None
        return True

    def _posted(self, batch: Batch) -> bool:
        try:
            records = self._records_of(batch)
            boot = batch.spool.boot if batch.spool is not None else self._boot
            self._post(usage.batch(boot, batch.sequence, self._clock.now().timestamp() - batch.base, records))
        except BatchRefused as error:
            self.refused += batch.count
            log.error("the control plane refused usage records: they are dropped", count=batch.count, why=error)
        except ControlError as error:
            if not self._failing:
                log.warning("usage records are not taken: they are kept and sent again", why=error, count=self.kept)
            self._failing = True
            return False
        except OSError as error:
            self.refused += batch.count
            log.error("usage records cannot be read from disk and are lost", count=batch.count, why=error.strerror)
        else:
            if self._failing:
                log.info("usage records are taken again", count=self.kept)
            self._failing = False
        return True

    def _records_of(self, batch: Batch) -> bytes:
        """The elements of the JSON array of a batch's records, the same each time. Raises
        ``OSError``."""
        if not batch.loaded and batch.spool is not None:
            batch.parts = [self._off_hub(batch.spool.read, batch.sequence)]
            batch.loaded = True
        if batch.even:
            data = b"".join(batch.parts)
            return usage.joined(data[data.find(b"\n") + 1 :])
        lines, made = usage.read_back(b"".join(batch.parts))
        records: list[bytes] = []
        for at in range(0, len(lines), SLICE):
            if at:
                gevent.sleep(BREATH)
            records += usage.shifted(lines[at : at + SLICE], made)
        if len(records) < len(lines):
            log.warning("lines of usage records on disk are damaged and were left out", count=len(lines) - len(records))
        return b",".join(records)

    # ------------------------------------------------------------------ helpers

    def _off_hub(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """The result of blocking ``work``, done in our own thread: a slow disk holds up
        neither requests nor the lookup of names."""
        return off_hub(self._threads, work, *arguments)

    def _no_disk(self, error: OSError) -> None:
        if self._disk_failing:
            return
        self._disk_failing = True
        log.warning(
            "usage records cannot be kept on disk: until that works a crash loses those not sent yet",
            directory=self._directory,
            why=error.strerror or error,
        )
