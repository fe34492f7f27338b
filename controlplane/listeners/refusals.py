"""Telling of what is turned away, as often as a log should hear of it."""

from typing import Any

from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

TOLD, PER = 20, 60.0
"""So many refusals for one reason are logged in so many seconds; the others are counted."""

REASONS = 200
"""So many reasons are told apart in that time."""


class Refusals:
    """Logs refusals of one listener: a thousand for one reason are a few lines and a number,
    and hide no other. ``count`` is all of them."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._since = float("-inf")
        self._told: dict[str, int] = {}
        self.count = 0

    def tell(self, message: str, *, why: object, **fields: Any) -> None:
        """A connection was refused. ``why`` is the same for all that are refused for it."""
        self.count += 1
        now = self._clock.monotonic()
        if now - self._since >= PER:
            self._since, self._told = now, {}
        reason = str(why)
        told = self._told.get(reason, 0)
        if reason not in self._told and len(self._told) >= REASONS:
            return
        self._told[reason] = told + 1
        if told < TOLD:
            self._log.warning(message, **fields, why=reason)
        elif told == TOLD:
            self._log.warning("more are refused for this reason: for a minute they are only counted", why=reason)
