"""The writer greenlet: feeds the loop, runs its passes, carries its effects out.

Decides nothing. Events are taken between the slices of a pass, so that a long pass
holds up neither heartbeats nor the hub. A fault in handling one event is logged and
ends neither the loop nor the process.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import gevent

from controlplane.events import Commit, Effect, Event, Send
from controlplane.inbox import Inbox
from controlplane.loop import Loop
from controlplane.planning.work import LONG
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.loop")

SLICE = 0.001
"""Seconds slept between slices: more than zero, or only this greenlet's peers run."""

BATCH = 64
"""Events handled in a row before others may run, unless that takes longer than ``LONG``."""

REST, SHORT_REST, LONGEST_REST = 3.0, 0.5, 1.0
"""After a pass others have the processor for so many times as long as it worked, for fewer if
it decided something, at most for so many seconds: while thousands of nodes register,
something has always changed."""

RETRY = 1.0
"""Wait after a pass that failed unexpectedly."""

Pass = Generator[None, float | None, list[Effect]]


class Driver:
    """Drives one ``Loop``. ``carriers`` maps an effect's type to what carries it out.

    Figures for the metrics: ``passes``, ``pass_seconds`` (of the last pass),
    ``pass_seconds_total``, ``faults`` (unexpected exceptions), ``late`` (commands that were
    not sent because the lease came in doubt).
    """

    def __init__(
        self, loop: Loop, inbox: Inbox, clock: Clock, carriers: Mapping[type[Any], Callable[[Any], None]]
    ) -> None:
        self._loop = loop
        self._inbox = inbox
        self._clock = clock
        self._carriers = carriers
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._pass: Pass | None = None
        self._pass_began = 0.0
        self._worked = 0.0
        self._begun = False
        self._not_before = 0.0
        self.passes = 0
        self.pass_seconds = 0.0
        self.pass_seconds_total = 0.0
        self.faults = 0
        self.late = 0

    def start(self) -> "Driver":
        """Begin to take events."""
        self._greenlet = gevent.spawn(self._run)
        return self

    def stop(self) -> None:
        """Take no more events."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def _run(self) -> None:
        while True:
            handled = self._take_events()
            if self._pass is None and self._due():
                self._pass_began = self._clock.monotonic()
                self._worked = 0.0
                self._pass = self._loop.run_pass(self._pass_began)
            if self._pass is not None:
                self._slice(self._pass)
                gevent.sleep(SLICE)
            elif handled == BATCH:
                gevent.sleep(SLICE)
            else:
                self._inbox.wait(self._idle())

    def _idle(self) -> float:
        """Seconds until a pass is due if no event comes."""
        now = self._clock.monotonic()
        wake = now if self._loop.dirty else self._loop.next_wake
        return max(SLICE, max(wake, self._not_before) - now)

    def _due(self) -> bool:
        now = self._clock.monotonic()
        return now >= self._not_before and (self._loop.dirty or now >= self._loop.next_wake)

    def _take_events(self) -> int:
        began = self._clock.monotonic()
        for handled in range(BATCH):
            event = self._inbox.take()
            if event is None:
                return handled
            # One table for all of them: making it costs more than handling an event.
            more = handled + 1 < BATCH and len(self._inbox) > 0
            self._handle(event, more=more)
            if more and self._clock.monotonic() - began > LONG:
                break  # the rest comes after the others' turn, and the table with it
        return BATCH

    def _handle(self, event: Event, *, more: bool) -> None:
        try:
            effects = self._loop.handle(event, self._clock.monotonic(), more=more)
        except Exception:
            self.faults += 1
            log.exception("an event could not be handled", event_kind=type(event).__name__)
            return
        self._carry_out(effects)

    def _slice(self, current: Pass) -> None:
        began = self._clock.monotonic()
        try:
            # The first time there is nobody yet to take the time.
            current.send(began if self._begun else None)
            self._begun = True
            self._worked += self._clock.monotonic() - began
            return
        except StopIteration as end:
            effects: list[Effect] = end.value
            now = self._clock.monotonic()
            rest = SHORT_REST if any(isinstance(effect, Commit) for effect in effects) else REST
            self._not_before = now + min(rest * (self._worked + now - began), LONGEST_REST)
        except Exception:
            self.faults += 1
            self._not_before = self._clock.monotonic() + RETRY
            effects = []
            log.exception("a pass failed")
        self._pass = None
        self._begun = False
        self.passes += 1
        self.pass_seconds = self._clock.monotonic() - self._pass_began
        self.pass_seconds_total += self.pass_seconds
        self._carry_out(effects)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and self._clock.monotonic() >= effect.before:
                self.late += 1  # a clock read per command: between deciding and sending the process may have slept
                continue
            try:
                self._carriers[type(effect)](effect)
            except Exception:
                self.faults += 1
                log.exception("an effect could not be carried out", effect_kind=type(effect).__name__)
