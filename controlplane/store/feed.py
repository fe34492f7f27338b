"""From a log on disk to the store, in the background (STO-03).

``Appender`` makes records durable for many greenlets with one sync. ``Feeder`` hands them
to the store, in order, in bounded transactions, and drops them once those are committed.
A store that is away is waited for. What is handed over twice, after a crash between
commit and drop, the store must notice.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import gevent
from gevent.event import AsyncResult, Event

from controlplane.offhub import off_hub
from controlplane.store.access import StoreAccess
from controlplane.store.errors import StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.spool import Chunk, Position, Spool, SpoolFull
from llmgw.runtime.logs import Logger

log = Logger("llmgw.spool")

T = TypeVar("T")

MAX_RECORDS = 64
"""Records in one transaction."""

MAX_BYTES = 1024 * 1024
"""Bytes of records in one transaction, beyond the first."""

MOST_WIDER = 64
"""How many times as many bytes are read where the store refuses all of a few."""

MAX_PENDING = 32 * 1024 * 1024
"""Bytes that may wait for a slow disk."""

APPEND_LIMIT = 10.0
"""Seconds a record may take to become durable."""

PAUSE = 0.01
"""Seconds between two transactions while there is more, in which others get their turn."""

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0


class Source(Protocol):
    """A log to read from. All of it blocks, and runs in the threadpool."""

    def read(self, max_records: int, max_bytes: int) -> Chunk | None:
        """The oldest records, ``None`` if there are none. Raises ``OSError``."""
        ...

    def drop(self, end: Position) -> None:
        """Forget those before ``end``. Raises ``OSError``."""
        ...

    def set_aside(self, record: bytes) -> None:
        """Keep a record that the store will never take."""
        ...


class Appender:
    """Appends to a spool from one greenlet. ``on_durable`` is called after each sync.

    ``failing`` says why the last append failed; empty once one succeeds.
    """

    def __init__(self, spool: Spool, on_durable: Callable[[], None]) -> None:
        self._spool = spool
        self._on_durable = on_durable
        self._pending: list[tuple[bytes, AsyncResult[None]]] = []
        self._bytes = 0
        self._wake = Event()
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self.failing = ""

    def start(self) -> "Appender":
        """Begin."""
        self._greenlet = gevent.spawn(self._run)
        return self

    def stop(self) -> None:
        """End; whoever waits for a record is told that it is not durable."""
        if self._greenlet is not None:
            self._greenlet.kill()
        self._answer(self._take(), SpoolFull("the control plane is stopping"))

    def append(self, record: bytes, timeout: float = APPEND_LIMIT) -> None:
        """Return once ``record`` is durable. Raises ``SpoolFull``, which is also what a
        disk that refuses or does not answer is: the sender keeps the record."""
        if self._bytes + len(record) > MAX_PENDING:
            raise SpoolFull(f"{self._bytes} bytes wait for the disk already")
        result: AsyncResult[None] = AsyncResult()
        self._pending.append((record, result))
        self._bytes += len(record)
        self._wake.set()
        try:
            result.get(timeout=timeout)
        except gevent.Timeout:
            raise SpoolFull(f"the disk did not answer within {timeout:g} s") from None
        except OSError as error:
            raise SpoolFull(f"the disk refuses: {error.strerror or error}") from error

    def _take(self) -> list[tuple[bytes, "AsyncResult[None]"]]:
        taken, self._pending, self._bytes = self._pending, [], 0
        return taken

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            taken = self._take()
            if not taken:
                continue
            try:
                off_hub(self._spool.append, [record for record, _ in taken])
            except (OSError, SpoolFull) as error:
                if not self.failing:
                    log.error("nothing can be spooled: those who send must keep it", why=error)
                self.failing = str(error)
                self._answer(taken, error)
            else:
                self.failing = ""
                self._answer(taken, None)
                self._on_durable()

    @staticmethod
    def _answer(taken: Sequence[tuple[bytes, "AsyncResult[None]"]], error: Exception | None) -> None:
        for _, result in taken:
            if error is None:
                result.set(None)
            else:
                result.set_exception(error)


def ignore(_result: object) -> None:
    """Nobody wants to know."""


class Feeder:
    """Feeds one source into the store. ``put`` writes records, in a transaction; once that is
    committed ``written`` hears what it returned.

    ``linger`` is how many seconds records gather before they are written, ``pause`` how many
    pass between two transactions. ``failing`` says why the last try failed (empty once one
    succeeds), ``refused`` counts records that were set aside because the store will never
    take them.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        store: StoreAccess,
        put: Callable[[Transaction, Sequence[bytes]], T],
        *,
        written: Callable[[T], Any] = ignore,
        linger: float = 1.0,
        pause: float = PAUSE,
        max_records: int = MAX_RECORDS,
    ) -> None:
        self._name = name
        self._source = source

        def write(records: Sequence[bytes]) -> None:
            written(store.write(lambda tx: put(tx, records)))

        self._write_all = write
        self._linger = linger
        self._pause = pause
        self._max_records = max_records
        self._wider = 1
        self._hurry = Event()
        self._wake = Event()
        self._wake.set()  # an earlier process may have left something
        self._idle = Event()
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self.failing = ""
        self.refused = 0

    def start(self) -> "Feeder":
        """Begin with what an earlier process left."""
        self._greenlet = gevent.spawn(self._run)
        return self

    def wake(self) -> None:
        """There is something new."""
        self._idle.clear()
        self._wake.set()

    def drain(self, timeout: float) -> bool:
        """Wait until all of it is in the store; whether it was in time."""
        return bool(self._idle.wait(timeout))

    def stop(self, timeout: float = 0.5) -> None:
        """Hand over what waits, for at most ``timeout`` seconds; the rest stays on disk."""
        self._hurry.set()
        if not self.failing:
            self.drain(timeout)
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._hurry.wait(self._linger)
            self._wake.clear()
            while self._step():
                gevent.sleep(self._pause)
            if not self._wake.is_set():
                self._idle.set()

    def _step(self) -> bool:
        """Hand the oldest records over; whether there were any."""
        chunk = self._patiently(self._attempt)
        if chunk is None:
            return False
        self._patiently(lambda: off_hub(self._source.drop, chunk.end))
        return True

    def _attempt(self) -> Chunk | None:
        chunk = off_hub(self._source.read, self._max_records, MAX_BYTES * self._wider)
        if chunk is not None:
            self._hand_over(chunk.records)
        return chunk

    def _patiently(self, work: Callable[[], T]) -> T:
        wait = _FIRST_WAIT
        while True:
            try:
                result = work()
            except (StoreUnavailable, OSError, _Stuck) as error:
                if not self.failing:
                    log.warning("what is spooled waits", what=self._name, why=error)
                self.failing = str(error) or type(error).__name__
                gevent.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)
            else:
                if self.failing:
                    log.info("what was spooled is handed over again", what=self._name)
                self.failing = ""
                return result

    def _hand_over(self, records: Sequence[bytes]) -> None:
        try:
            self._write(records)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one record may be what the store cannot take
            self._one_by_one(records, error)

    def _write(self, records: Sequence[bytes]) -> None:
        if records:
            self._write_all(records)

    def _one_by_one(self, records: Sequence[bytes], error: Exception) -> None:
        """Only if the store takes another record is one that it refuses itself at fault."""
        refused: list[tuple[bytes, Exception]] = []
        for record in records:
            try:
                self._write((record,))
            except StoreUnavailable:
                raise
            except Exception as why:  # noqa: BLE001 - judged below
                refused.append((record, why))
        if len(refused) == len(records):
            log.failure("the store refuses everything that is spooled", error, what=self._name)
            # A record so large that it comes alone shall have others to be compared with.
            self._wider = min(self._wider * 2, MOST_WIDER)
            raise _Stuck(f"the store refuses what is spooled: {error}")
        self._wider = 1
        for record, fault in refused:
            self.refused += 1
            log.error("the store refuses a record: it was set aside", what=self._name, why=fault)
            off_hub(self._source.set_aside, record)


class _Stuck(Exception):
    """Nothing can be handed over, for no fault of the store's connection."""
