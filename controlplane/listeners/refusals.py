"""Telling of what is turned away, as often as a log should hear of it."""

from typing import Any

from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

TOLD, PER = 20, 60.0
"""So many refusals for one reason are logged in so many seconds; the others are counted."""

REASONS = 200
"""So many are told apart in that time by whose certificate it was; the others together."""

LONGEST = 1000
"""Characters of a field that are told: it may repeat what the peer sent."""


class Refusals:
    """Logs refusals of one listener: a thousand for one reason are a few lines and a number,
    and hide no other. ``count`` is all of them."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._since = float("-inf")
        self._told: dict[tuple[str, str, str], int] = {}
        self.count = 0

    def tell(self, message: str, *, why: object, code: str = "", certificate: str = "", **fields: Any) -> None:
        """Something was refused. Refusals are told apart by ``message`` and ``code``, which are
        of fixed words, as is ``why`` where there is no code, and by whose ``certificate`` was
        verified. Else ``why`` may repeat what the peer sent, and so may other fields."""
        self.count += 1
        now = self._clock.monotonic()
        if now - self._since >= PER:
            self._since, self._told = now, {}
        reason = message, code or str(why), certificate
        if reason not in self._told and len(self._told) >= REASONS:
            reason = *reason[:2], ""
        told = self._told[reason] = self._told.get(reason, 0) + 1
        if told > TOLD + 1:
            return
        if told <= TOLD:
            fields |= {"certificate": certificate, "code": code, "why": why}
        else:
            fields = {"what": message, "certificate": reason[2], "code": code, "why": "" if code else why}
            message = "more are refused for this reason: for a minute they are only counted"
        self._log.warning(message, **{name: str(value)[:LONGEST] for name, value in fields.items() if value != ""})
