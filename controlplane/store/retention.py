"""Forgets what is older than the cluster settings want kept (API-06).

In transactions of at most ``BATCH`` rows with pauses between them, so that changes that
people make are never held up.

A clock that is wrong must not empty the store. Age counts from ``GAP`` after the newest
entry of its kind at the latest, whatever the clock says; and for ``HOLD`` seconds after
the clock jumped ahead, or was found that far ahead of all that is in the store, nothing is
forgotten.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent

from controlplane.store.access import StoreAccess
from controlplane.store.errors import StoreUnavailable
from controlplane.store.port import Dated, Transaction
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.retention")

BATCH = 2000
"""Rows in one transaction."""

IDEMPOTENCY = 86_400.0
"""Seconds for which a repeated Idempotency-Key is recognised."""

JOIN_TOKENS = 86_400.0
"""Seconds for which a join token is shown, used or not."""

EVERY = 600.0
"""Seconds between two rounds."""

AGAIN = 15.0
"""Seconds after which a round that failed is begun again."""

PAUSE = 0.1
"""Seconds between two transactions of a round."""

HOLD = 3600.0
"""Seconds for which nothing is forgotten by a clock that jumped: time to set it right."""

JUMP = 60.0
"""Seconds by which the clock may get ahead between two rounds."""

GAP = 86_400.0
"""Seconds by which the clock may be ahead of the store's newest entry: more is a control
plane that was off for long, or a clock that is wrong."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is dropped: at most so many rows before a moment, by age in seconds. ``newest``
    is the moment of the newest, ``None`` if there is none."""

    name: str
    age: Callable[[Callable[[str], Any]], float]
    drop: Callable[[Transaction, float, int], int]
    newest: Callable[[Transaction], float | None]

    def forget(self, tx: Transaction, now: float, age: float) -> int:
        """Drop up to ``BATCH`` that are too old."""
        newest = self.newest(tx)
        return 0 if newest is None else self.drop(tx, min(now, newest + GAP) - age, BATCH)


def _by(setting: str) -> Callable[[Callable[[str], Any]], float]:
    return lambda value: float(value(setting))


def _dated(name: str, age: Callable[[Callable[[str], Any]], float], of: Callable[[Transaction], Dated]) -> _Kind:
    return _Kind(name, age, lambda tx, before, most: of(tx).drop_before(before, most), lambda tx: of(tx).newest())


KINDS = (
    _Kind(
        "requests",
        _by("requests.retention"),
        lambda tx, before, most: tx.usage.drop_requests(before, most),
        lambda tx: tx.usage.newest_request(),
    ),
    _Kind(
        "usage",
        _by("usage.retention"),
        lambda tx, before, most: tx.usage.drop_usage(before, most),
        lambda tx: tx.usage.newest(),
    ),
    _dated("audit", _by("audit.retention"), lambda tx: tx.audit),
    _dated("events", _by("events.retention"), lambda tx: tx.events),
    _dated("idempotency", lambda _: IDEMPOTENCY, lambda tx: tx.idempotency),
    _Kind(
        "join tokens",
        lambda _: JOIN_TOKENS,
        lambda tx, before, most: tx.identities.drop_tokens(before, most),
        lambda tx: tx.identities.newest_token(),
    ),
)


class Retention:
    """Runs rounds in a greenlet. ``setting`` gives a cluster setting's value, for the
    ``*.retention`` ones in seconds.

    ``dropped`` counts rows by kind; ``failing`` says why the last round ended early.
    """

    def __init__(
        self,
        store: StoreAccess,
        setting: Callable[[str], Any],
        clock: Clock,
        every: float = EVERY,
        pause: float = PAUSE,
    ) -> None:
        self._store = store
        self._setting = setting
        self._clock = clock
        self._every = every
        self._pause = pause
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self.dropped = {kind.name: 0 for kind in KINDS}
        self.failing = ""
        self._ahead: float | None = None  # the clock of the wall less the monotonic one, in the last round
        self._hold_until = float("-inf")
        self._held_for = ""

    @property
    def holding(self) -> str:
        """Why nothing is forgotten just now; empty if it is."""
        left = self._hold_until - self._clock.monotonic()
        return f"{self._held_for}: set it right within {left / 60:.0f} min if it is wrong" if left > 0 else ""

    def start(self) -> "Retention":
        """Begin, with the first round at once: a process may not live for a whole interval."""
        self._greenlet = gevent.spawn(self._run)
        return self

    def stop(self) -> None:
        """End, between two transactions."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def round(self) -> None:
        """Forget everything that is too old now. Raises ``StoreUnavailable``."""
        self._look_at_the_clock()
        if self.holding:
            return
        now = self._clock.now().timestamp()
        for kind in KINDS:
            age = kind.age(self._setting)
            gone = 0
            while True:
                batch = self._store.write(lambda tx, kind=kind, age=age: kind.forget(tx, now, age))  # type: ignore[misc]
                gone += batch
                self.dropped[kind.name] += batch
                if batch < BATCH:
                    break
                gevent.sleep(self._pause)
            if gone:
                log.info("what is too old was forgotten", what=kind.name, rows=gone)

    def _look_at_the_clock(self) -> None:
        now = self._clock.now().timestamp()
        ahead = now - self._clock.monotonic()
        if self._ahead is None:
            newest = self._store.read(_newest)
            gap = 0.0 if newest is None else now - newest
            self._hold(gap > GAP, f"the clock is {gap / 86_400:.1f} days ahead of the newest entry in the store")
        else:
            jump = ahead - self._ahead
            self._hold(jump > JUMP, f"the clock jumped {jump / 3600:.1f} h ahead")
        self._ahead = ahead

    def _hold(self, doubtful: bool, words: str) -> None:
        if doubtful:
            self._hold_until, self._held_for = self._clock.monotonic() + HOLD, words
            log.warning("nothing is forgotten for an hour", why=words)

    def _run(self) -> None:
        while True:
            try:
                self.round()
            except StoreUnavailable as error:
                self.failing = str(error)
                log.warning("old rows stay for now", why=error)
            except Exception as error:  # the next round may fare better
                self.failing = str(error)
                log.exception("old rows could not be forgotten")
            else:
                self.failing = ""
            gevent.sleep(min(self._every, AGAIN) if self.failing else self._every)


def _newest(tx: Transaction) -> float | None:
    """When the newest entry of any kind was made."""
    return max((at for kind in KINDS if (at := kind.newest(tx)) is not None), default=None)
