"""How the rest of the control plane reaches the store: from greenlets, off the hub.

Two native threads, each with a connection of its own: one writes, one only reads, so
that a long report holds up no change. A slow or locked database holds up nobody but
those who wait for it: never the hub, heartbeats or the router (STO-03). Results return
to greenlets through the hub's thread-safe wake-up. A call whose caller gave up is not
begun, or is rolled back before its commit.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import gevent
from gevent import monkey
from gevent.event import AsyncResult

from controlplane.store.database import Database
from controlplane.store.errors import NotLeading, StoreUnavailable
from controlplane.store.port import Transaction
from llmgw.runtime.logs import Logger

log = Logger("llmgw.store")
_start_thread = monkey.get_original("_thread", "start_new_thread")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_Queue = monkey.get_original("queue", "SimpleQueue")

T = TypeVar("T")

PROBE = 5.0
"""Seconds after which a store that failed is asked again, though nobody needs it just then."""

CAPACITY = 256
"""Calls that may wait at once, for each of the two threads."""

STUCK = 45.0
"""Seconds after which a call that nobody waits for any more is broken off: longer than the
database's own limits, so that it does not answer at all."""

COMMIT_ALLOWANCE = 10.0
"""Seconds a commit that has begun is waited for beyond the caller's limit."""


class StoreAccess(Protocol):
    """What services are handed."""

    @property
    def failing(self) -> str:
        """Why the last call failed; empty if it did not."""
        ...

    @property
    def failing_for(self) -> float | None:
        """Seconds since the first of the calls that failed in a row; ``None`` if the last
        did not."""
        ...

    def write(self, work: Callable[[Transaction], T], timeout: float | None = None) -> T:
        """Run ``work`` in one transaction and return its result, durable.

        What ``work`` raises rolls the transaction back and is raised here. Raises
        ``StoreUnavailable`` if the store refused, if too many calls wait, or if there is no
        answer within ``timeout`` seconds (default: the setting ``store.timeout``).
        """
        ...

    def read(self, work: Callable[[Transaction], T], timeout: float | None = None) -> T:
        """The same for queries only, on the reading connection."""
        ...


class StoreThreads:
    """``StoreAccess`` over a database. ``writer`` and ``reader`` make the two connections,
    each in its own thread; without a reader the writer reads too. ``guard`` is called at the
    beginning of each writing transaction.

    ``failures`` counts calls that ended in ``StoreUnavailable``.
    """

    def __init__(
        self,
        writer: Callable[[], Database],
        reader: Callable[[], Database] | None,
        timeout: float = 5.0,
        guard: Callable[[Transaction], None] | None = None,
    ) -> None:
        self._timeout = timeout
        self._guard = guard
        self._writer = _Thread(writer)
        self._reader = self._writer if reader is None else _Thread(reader)
        self._probing: dict[_Thread, gevent.Greenlet[..., None]] = {}
        self._closed = False
        self.failures = 0

    @property
    def failing(self) -> str:
        """Why the last write failed, else why the last read did; empty if neither."""
        return self._writer.failing or self._reader.failing

    @property
    def failing_for(self) -> float | None:
        """See ``StoreAccess``; of the two the one that fails for longer."""
        since = [thread.since for thread in (self._writer, self._reader) if thread.since is not None]
        return time.monotonic() - min(since) if since else None

    @property
    def waiting(self) -> int:
        """Calls not finished yet."""
        return sum(thread.waiting for thread in {self._writer, self._reader})

    def start(self) -> "StoreThreads":
        """Open the store: the writer first, which makes and upgrades the tables. Raises
        ``StoreError``, or ``StoreUnavailable``: then another ``StoreThreads`` may succeed."""
        self._writer.start()
        if self._reader is self._writer:
            return self
        try:
            self._reader.start()
        except BaseException:
            self._writer.close(timeout=1.0)
            raise
        return self

    def write(self, work: Callable[[Transaction], T], timeout: float | None = None) -> T:
        """See ``StoreAccess``."""
        return self._call(self._writer, _guarded(work, self._guard), timeout)

    def read(self, work: Callable[[Transaction], T], timeout: float | None = None) -> T:
        """See ``StoreAccess``."""
        return self._call(self._reader, work, timeout)

    def close(self, timeout: float = 1.0) -> None:
        """Finish what waits and let go of the database, within ``timeout`` seconds. Whoever
        asks from now on is told that we lead no more."""
        self._closed = True
        gevent.killall(list(self._probing.values()))
        for ending in [gevent.spawn(thread.close, timeout) for thread in {self._writer, self._reader}]:
            ending.join()

    def _call(self, thread: "_Thread", work: Callable[[Transaction], T], timeout: float | None) -> T:
        if self._closed:
            raise NotLeading("this control plane lets go of its store: nothing was changed")
        try:
            result: T = thread.submit(work, self._timeout if timeout is None else timeout)
        except NotLeading:
            raise  # the store is well
        except StoreUnavailable as error:
            self.failures += 1
            thread.failed(error)
            if thread not in self._probing:
                self._probing[thread] = gevent.spawn(self._probe, thread)
            raise
        thread.succeeded()
        return result

    def _probe(self, thread: "_Thread") -> None:
        """Find out when it is back: else it would be said to be away until somebody asks."""
        work = _try_to_read if thread is self._reader else _try_to_write
        while thread.failing:
            gevent.sleep(PROBE)
            try:
                thread.submit(work, self._timeout)
            except StoreUnavailable as error:
                thread.failed(error)
            except Exception as error:
                log.exception("the store cannot be asked whether it is back")
                thread.failed(error)
            else:
                thread.succeeded()
        del self._probing[thread]


def _try_to_read(tx: Transaction) -> None:
    tx.settings.all()


def _try_to_write(tx: Transaction) -> None:
    tx.leadership.probe()


def _guarded(
    work: Callable[[Transaction], T], guard: Callable[[Transaction], None] | None
) -> Callable[[Transaction], T]:
    if guard is None:
        return work

    def guarded(tx: Transaction) -> T:
        guard(tx)
        return work(tx)

    return guarded


class _Abandoned(Exception):
    """The caller gave up before the commit."""


class _Job:
    """One call. Its phase moves ``waiting -> running -> committing``, or to
    ``abandoned``; the lock decides the race between the caller's patience and the commit."""

    __slots__ = ("_lock", "call", "phase", "result")

    def __init__(self, call: Callable[[Transaction], Any]) -> None:
        self.call = call
        self.result: AsyncResult[Any] = AsyncResult()
        self.phase = "waiting"
        self._lock = _allocate_lock()

    def advance(self, phase: str) -> None:
        """Enter ``phase``. Raises ``_Abandoned`` if the caller gave up."""
        with self._lock:
            if self.phase == "abandoned":
                raise _Abandoned
            self.phase = phase

    def abandon(self) -> bool:
        """Give up; false if the commit has begun."""
        with self._lock:
            if self.phase == "committing":
                return False
            self.phase = "abandoned"
            return True


class _Thread:
    """Runs calls on one ``Database`` in a native thread."""

    def __init__(self, make: Callable[[], Database]) -> None:
        self._make = make
        self._jobs: Any = _Queue()
        self._done: deque[tuple[AsyncResult[Any], Any, BaseException | None, int]] = deque()
        self._async = gevent.get_hub().loop.async_()
        self._ended: AsyncResult[None] = AsyncResult()
        self._database: Database | None = None
        self._began: float | None = None
        self.waiting = 0
        self.failing = ""
        self.since: float | None = None

    def failed(self, why: Exception) -> None:
        """A call failed."""
        self.failing = str(why) or type(why).__name__
        self.since = time.monotonic() if self.since is None else self.since

    def succeeded(self) -> None:
        """A call did not fail."""
        self.failing, self.since = "", None

    def start(self) -> None:
        """Open the database. Raises what that raises."""
        self._async.start(self._deliver)
        opened: AsyncResult[None] = AsyncResult()
        _start_thread(self._run, (opened,))
        try:
            opened.get()
        except BaseException:
            self._release()
            raise

    def submit(self, work: Callable[[Transaction], Any], limit: float) -> Any:
        """Run ``work`` and wait for its result. Raises ``StoreUnavailable``."""
        if self.waiting >= CAPACITY:
            raise StoreUnavailable(f"{self.waiting} calls wait for the store already: nothing was changed")
        job = _Job(work)
        self.waiting += 1
        self._jobs.put(job)
        try:
            return job.result.get(timeout=limit)
        except gevent.Timeout:
            self._break_off_if_stuck()
            if job.abandon():
                raise StoreUnavailable(f"the store did not answer within {limit:g} s: nothing was changed") from None
        except BaseException:  # the waiting greenlet is killed: nobody wants the result
            job.abandon()
            raise
        try:
            return job.result.get(timeout=COMMIT_ALLOWANCE)
        except gevent.Timeout:
            raise StoreUnavailable(
                "the store does not finish its commit: whether the change was kept is not known yet", uncertain=True
            ) from None

    def _break_off_if_stuck(self) -> None:
        began, database = self._began, self._database
        if began is not None and database is not None and time.monotonic() - began > STUCK:
            log.warning("the store does not answer at all: the connection is given up", seconds=STUCK)
            self._began = None  # once is enough
            database.break_off()

    def close(self, timeout: float) -> None:
        """Finish what waits, then let go of the database."""
        self._jobs.put(None)
        if not self._ended.wait(timeout) and not self._ended.ready():
            log.warning("the store did not close in time", seconds=timeout)
            return  # its thread may still want to say something
        self._release()

    def _release(self) -> None:
        self._async.stop()
        self._async.close()

    def _run(self, opened: "AsyncResult[None]") -> None:
        try:
            database = self._make().open()
        except Exception as error:  # noqa: BLE001 - delivered to the caller of start
            self._finish(opened, None, error)
            return
        self._database = database
        self._finish(opened, None, None)
        while (job := self._jobs.get()) is not None:
            self._perform(database, job)
        database.close()
        self._finish(self._ended, None, None)

    def _perform(self, database: Database, job: _Job) -> None:
        self._began = time.monotonic()
        try:
            job.advance("running")
            result = database.transact(job.call, lambda: job.advance("committing"), lambda: job.phase != "abandoned")
        except Exception as error:  # noqa: BLE001 - delivered to the caller
            self._finish(job.result, None, error, jobs=1)
        else:
            self._finish(job.result, result, None, jobs=1)
        finally:
            self._began = None

    def _finish(self, result: "AsyncResult[Any]", value: Any, error: BaseException | None, *, jobs: int = 0) -> None:
        self._done.append((result, value, error, jobs))
        self._async.send()

    def _deliver(self) -> None:
        while self._done:
            result, value, error, jobs = self._done.popleft()
            self.waiting -= jobs
            if error is not None:
                result.set_exception(error)
            else:
                result.set(value)
