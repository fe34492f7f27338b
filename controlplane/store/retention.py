"""Forgets what is older than the cluster settings want kept (API-06).

In transactions of at most ``BATCH`` rows with pauses between them, so that changes that
people make are never held up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent

from controlplane.store.access import StoreAccess
from controlplane.store.port import StoreUnavailable, Transaction
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.retention")

BATCH = 2000
"""Rows in one transaction."""

IDEMPOTENCY = 86_400.0
"""Seconds for which a repeated Idempotency-Key is recognised."""

EVERY = 600.0
"""Seconds between two rounds."""

PAUSE = 0.1
"""Seconds between two transactions of a round."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is dropped: at most so many rows before a moment, by age in seconds."""

    name: str
    age: Callable[[Callable[[str], Any]], float]
    drop: Callable[[Transaction, float, int], int]


KINDS = (
    _Kind("requests", lambda setting: setting("requests.retention"), lambda tx, t, n: tx.usage.drop_requests(t, n)),
    _Kind("usage", lambda setting: setting("usage.retention"), lambda tx, t, n: tx.usage.drop_usage(t, n)),
    _Kind("audit", lambda setting: setting("audit.retention"), lambda tx, t, n: tx.audit.drop_before(t, n)),
    _Kind("events", lambda setting: setting("events.retention"), lambda tx, t, n: tx.events.drop_before(t, n)),
    _Kind("idempotency", lambda _: IDEMPOTENCY, lambda tx, t, n: tx.idempotency.drop_before(t, n)),
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
        now = self._clock.now().timestamp()
        for kind in KINDS:
            before = now - kind.age(self._setting)
            gone = 0
            while True:
                batch = self._store.write(lambda tx, kind=kind, before=before: kind.drop(tx, before, BATCH))  # type: ignore[misc]
                gone += batch
                self.dropped[kind.name] += batch
                if batch < BATCH:
                    break
                gevent.sleep(self._pause)
            if gone:
                log.info("what is too old was forgotten", what=kind.name, rows=gone)

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
            gevent.sleep(self._every)
