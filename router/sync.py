"""Keeping the route table current (RTR-03): a long poll, and the last table on disk so
that a router starts while no control plane answers. With it is kept which leader's it is:
no table of an earlier one is taken, also after a restart (HA-01)."""

import fcntl
import os
import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import gevent
import msgspec
from gevent.event import Event
from gevent.hub import get_hub

from llmgw.runtime.files import open_regular, write_atomic
from llmgw.runtime.logs import Logger
from llmgw.wire import epochs
from llmgw.wire.routing import MAX_TABLE, RouteTable, decode_table, encode
from router.control import Control, ControlError
from router.offhub import off_hub
from router.table import settle

log = Logger("router.sync")

WAIT_SECONDS = 25.0
FIRST_BACKOFF = 0.25
LONGEST_BACKOFF = 10.0
WITHOUT_TABLE = 0.5
EARLY_SECONDS = 0.2
"""An answer without news that comes sooner than this was no long poll."""
SAY_AGAIN = 60.0
"""After which it is said again that there is no news from any control plane."""
PAUSE_SECONDS = 0.02
"""Between two tables: many changes at once cost one table, and a control plane that always
has another does not keep a worker busy."""


class Backoff:
    """Jittered exponential waits, in seconds. PURE but for the generator it is given."""

    def __init__(self, rng: random.Random, first: float = FIRST_BACKOFF, longest: float = LONGEST_BACKOFF) -> None:
        self._rng = rng
        self._first = first
        self._longest = longest
        self._failures = 0

    def next(self) -> float:
        """How long to wait after one more failure."""
        limit = min(self._longest, self._first * 2.0**self._failures)
        self._failures = min(self._failures + 1, 30)
        return limit * (0.5 + self._rng.random() / 2)

    def reset(self) -> None:
        """Something worked."""
        self._failures = 0


class Sync:
    """Polls the control plane and hands each new table to ``use``. ``asked`` is set once
    the first poll was answered, or failed while an earlier table is in use."""

    def __init__(self, control: Control, file: Path, use: Callable[[RouteTable], None]) -> None:
        self._control = control
        self._file = file
        self._use = use
        self._table: RouteTable | None = None
        self._backoff = Backoff(random.Random())  # noqa: S311 - spreads load
        self._said = ("", float("-inf"))
        self.failing = False
        self.asked = Event()

    def restore(self) -> None:
        """Use the table on disk, if there is one. A damaged one is ignored and logged."""
        try:
            with open_regular(self._file) as stream:
                data = stream.read(MAX_TABLE + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("the last route table cannot be read", file=self._file, why=error.strerror)
            return
        try:
            if len(data) > MAX_TABLE:
                raise ValueError(f"it is larger than {MAX_TABLE} bytes")
            table = decode_table(data)
        except ValueError as error:
            log.warning("the last route table is damaged and was ignored", file=self._file, why=error)
            return
        self._table = table
        self._control.follow(table)
        self._use(table)
        log.info("using the last route table until the control plane answers", models=len(table.models))

    def _pause(self) -> float:
        """How long to wait after a failed poll: not long while there is no table at all,
        since until then everybody is refused."""
        pause = self._backoff.next()
        return pause if self._table is not None else min(pause, WITHOUT_TABLE)

    def run(self) -> None:
        """Poll for ever."""
        asked = ""  # the first answer is a whole table, also if the one on disk is current
        while True:
            began = monotonic()
            try:
                fresh = self._control.table(asked, WAIT_SECONDS)
            except ControlError as error:
                self._say(str(error))
                self.failing = True
                if self._table is not None:
                    self.asked.set()
                self._control.moved.wait(self._pause())  # a report may find the new leader meanwhile
                self._control.moved.clear()
                continue
            if self.failing:
                log.info("the control plane answers again")
            self.failing = False
            self._said = ("", float("-inf"))
            news = fresh is not None and fresh.generation != asked
            if fresh is not None:
                asked = fresh.generation
                self._take(fresh)
            self.asked.set()
            if not news and monotonic() - began < EARLY_SECONDS:
                gevent.sleep(self._backoff.next())
                continue
            self._backoff.reset()
            if news:
                gevent.sleep(PAUSE_SECONDS)

    def _say(self, why: str) -> None:
        said, at = self._said
        now = monotonic()
        if now >= at + (SAY_AGAIN if why == said else LONGEST_BACKOFF):
            log.warning("no route table", why=why)
            self._said = why, now

    def _take(self, fresh: RouteTable) -> None:
        table = settle(self._table, fresh)
        changed = table != self._table
        self._table = table
        self._use(table)
        if changed:
            log.info("route table", generation=table.generation, models=len(table.models), settling=table.settling)
            try:
                off_hub(get_hub().threadpool, keep, self._file, table)
            except OSError as error:
                log.warning("the route table cannot be kept on disk", file=self._file, why=error.strerror)


class _Kept(msgspec.Struct):
    """What of a table on disk says whose it is."""

    epoch: int = 0
    leader: str = ""


def keep(file: Path, table: RouteTable) -> None:
    """Write a table down, unless what a sibling wrote is of a later leader. Blocks. Raises
    ``OSError``."""
    lock = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        there = _whose(file)
        if not epochs.objection(there.epoch, there.leader, table.epoch, table.leader):
            write_atomic(file, encode(table))
    finally:
        os.close(lock)


def _whose(file: Path) -> _Kept:
    try:
        with open_regular(file) as stream:
            return msgspec.json.decode(stream.read(MAX_TABLE + 1), type=_Kept)
    except (OSError, ValueError, RecursionError):
        return _Kept()  # none, or a damaged one: anything is better
