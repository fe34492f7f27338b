"""Telling of what happens again and again, as often as a log should hear of it."""

import math
from collections.abc import Callable

AGAIN = 60.0
"""Seconds after which the same is told again."""

REASONS = 100
"""So many reasons are told apart."""


class Repeated:
    """Tells ``message`` by ``tell`` at once, and each ``why`` again after ``AGAIN``, with how
    often it happened since, until it is over."""

    def __init__(self, tell: Callable[..., None], message: str) -> None:
        self._tell = tell
        self._message = message
        self._told: dict[str, tuple[float, int]] = {}

    def happened(self, now: float, why: object = "", **fields: object) -> None:
        """It happened, at ``now`` (monotonic)."""
        reason = str(why)
        at, since = self._told.get(reason, (-math.inf, 0))
        if now < at + AGAIN:
            self._told[reason] = at, since + 1
            return
        if len(self._told) >= REASONS:
            self._told = {}
        self._told[reason] = now, 0
        if reason:
            fields["why"] = reason
        if since:
            fields["times"] = since + 1
        self._tell(self._message, **fields)

    def over(self) -> bool:
        """It happens no more. Whether it did."""
        told, self._told = self._told, {}
        return bool(told)
