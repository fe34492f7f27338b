"""The one thread that touches the store.

A native thread takes jobs from a queue, so that a slow or locked database holds up
nobody but those who wait for it: never the hub, heartbeats or the router (STO-03).
Results return to greenlets through the hub's thread-safe wake-up. A job whose caller
gave up is not begun, or is rolled back before its commit.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
from gevent import monkey
from gevent.event import AsyncResult

from controlplane.store.port import Store, StoreUnavailable
from llmgw.runtime.logs import Logger

log = Logger("llmgw.store")
_start_thread = monkey.get_original("_thread", "start_new_thread")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_Queue = monkey.get_original("queue", "SimpleQueue")

T = TypeVar("T")

CAPACITY = 256
"""Jobs that may wait at once."""

COMMIT_ALLOWANCE = 10.0
"""Seconds a commit that has begun is waited for beyond the caller's limit."""


class _Abandoned(Exception):
    """The caller gave up before the commit."""


class _Job:
    """One call. Its phase moves ``waiting -> running -> committing``, or to
    ``abandoned``; the lock decides the race between the caller's patience and the commit."""

    __slots__ = ("_lock", "call", "phase", "result")

    def __init__(self, call: Callable[[Store], Any]) -> None:
        self.call = call
        self.result: AsyncResult[Any] = AsyncResult()
        self.phase = "waiting"
        self._lock = _allocate_lock()

    def advance(self, phase: str) -> bool:
        """Enter ``phase`` unless the caller gave up."""
        with self._lock:
            if self.phase == "abandoned":
                return False
            self.phase = phase
            return True

    def abandon(self) -> bool:
        """Give up; false if the commit has begun."""
        with self._lock:
            if self.phase == "committing":
                return False
            self.phase = "abandoned"
            return True


class StoreWriter:
    """Runs calls on the store in its own thread.

    ``make`` builds the store in that thread. ``failures`` counts calls that ended in
    ``StoreUnavailable``; ``failing`` says why the last call did (empty if it did not).
    """

    def __init__(self, make: Callable[[], Store], timeout: float = 5.0) -> None:
        self._make = make
        self._timeout = timeout
        self._jobs: Any = _Queue()
        self._waiting = 0
        self._done: deque[tuple[AsyncResult[Any], Any, BaseException | None, int]] = deque()
        self._async = gevent.get_hub().loop.async_()
        self._ended: AsyncResult[None] = AsyncResult()
        self.failures = 0
        self.failing = ""

    @property
    def waiting(self) -> int:
        """Jobs not finished yet."""
        return self._waiting

    def start(self) -> "StoreWriter":
        """Open the store. Raises ``StoreError`` if that fails."""
        self._async.start(self._deliver)
        opened: AsyncResult[None] = AsyncResult()
        _start_thread(self._run, (opened,))
        opened.get()
        return self

    def call(self, work: Callable[[Store], T], timeout: float | None = None) -> T:
        """Run ``work`` on the store and return its result.

        Raises ``StoreUnavailable`` if the store refused, if too many calls wait, or
        if there is no answer within ``timeout`` seconds.
        """
        try:
            result: T = self._submit(work, self._timeout if timeout is None else timeout)
        except StoreUnavailable as error:
            self.failures += 1
            self.failing = str(error)
            raise
        self.failing = ""
        return result

    def close(self, timeout: float = 1.0) -> None:
        """Finish what waits and let go of the database, within ``timeout`` seconds."""
        self._jobs.put(None)
        if not self._ended.wait(timeout) and not self._ended.ready():
            log.warning("the store did not close in time", seconds=timeout)
        self._async.stop()
        self._async.close()

    def _submit(self, work: Callable[[Store], Any], limit: float) -> Any:
        if self._waiting >= CAPACITY:
            raise StoreUnavailable(f"{self._waiting} calls wait for the store already: nothing was changed")
        job = _Job(work)
        self._waiting += 1
        self._jobs.put(job)
        return self._await(job, limit)

    def _await(self, job: _Job, limit: float) -> Any:
        try:
            return job.result.get(timeout=limit)
        except gevent.Timeout:
            if job.abandon():
                raise StoreUnavailable(f"the store did not answer within {limit:g} s: nothing was changed") from None
        try:
            return job.result.get(timeout=COMMIT_ALLOWANCE)
        except gevent.Timeout:
            raise StoreUnavailable(
                "the store does not finish its commit: whether the change was kept is not known yet", uncertain=True
            ) from None

    def _run(self, opened: "AsyncResult[None]") -> None:
        try:
            store = self._make()
        except Exception as error:  # noqa: BLE001 - delivered to the caller of start
            self._finish(opened, None, error)
            return
        self._finish(opened, None, None)
        while (job := self._jobs.get()) is not None:
            self._perform(store, job)
        store.close()
        self._finish(self._ended, None, None)

    def _perform(self, store: Store, job: _Job) -> None:
        def gate() -> None:
            if not job.advance("committing"):
                raise _Abandoned

        store.before_commit = gate
        try:
            if not job.advance("running"):
                raise _Abandoned
            self._finish(job.result, job.call(store), None, jobs=1)
        except Exception as error:  # noqa: BLE001 - delivered to the caller
            self._finish(job.result, None, error, jobs=1)

    def _finish(self, result: "AsyncResult[Any]", value: Any, error: BaseException | None, *, jobs: int = 0) -> None:
        self._done.append((result, value, error, jobs))
        self._async.send()

    def _deliver(self) -> None:
        while self._done:
            result, value, error, jobs = self._done.popleft()
            self._waiting -= jobs
            if error is not None:
                result.set_exception(error)
            else:
                result.set(value)
