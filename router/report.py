"""What this process has in flight, told to the control plane once a second (DEM-01)."""

import os
from collections.abc import Callable
from time import monotonic

import gevent

import llmgw
from llmgw.runtime.logs import Logger
from llmgw.wire.routing import EndpointLoad, Report
from router.control import Control, ControlError
from router.table import Live, Routes

log = Logger("router.report")

INTERVAL = 1.0

MAX_SAID = 16
"""Reasons that are told while the control plane takes no report."""


class Reporter:
    """Sends reports. ``boot`` is this process, so that nothing counts twice."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._boot = os.urandom(8).hex()
        self._sequence = 0
        self._said: set[str] = set()
        """Why reports were not taken of late, so that each reason is told once."""

    def run(self, routes: Callable[[], Routes | None]) -> None:
        """Report for ever what ``routes()`` holds."""
        while True:
            gevent.sleep(INTERVAL)
            current = routes()
            if current is None:
                continue
            lives = [*current.live.values(), *current.leaving]
            failures = {live.endpoint.id: live.failures for live in lives}
            self._sequence += 1
            try:
                self._control.report(build(current, self._boot, self._sequence, monotonic()))
            except ControlError as error:
                why = str(error)
                if why not in self._said and len(self._said) < MAX_SAID:
                    log.warning("report not taken", why=why)
                    self._said.add(why)
                continue
            if self._said:
                log.info("reports are taken again")
                self._said = set()
            for live in lives:
                live.failures -= failures[live.endpoint.id]


def build(routes: Routes, boot: str, sequence: int, now: float) -> Report:
    """The report of one moment: every endpoint of the table, and those that left it with
    requests still running (REC-06). ``now`` is monotonic seconds."""
    leaving = [live for live in routes.leaving if live.inflight]
    return Report(
        boot=boot,
        sequence=sequence,
        version=llmgw.__version__,
        generation=routes.table.generation,
        endpoints=tuple(_load(live, now) for live in (*routes.live.values(), *leaving)),
    )


def _load(live: Live, now: float) -> EndpointLoad:
    return EndpointLoad(
        id=live.endpoint.id,
        inflight=live.inflight,
        idle_seconds=None if live.used_at is None else round(now - live.used_at, 3),
        answered_seconds=None if live.answered_at is None else round(now - live.answered_at, 3),
        failures=live.failures,
    )
