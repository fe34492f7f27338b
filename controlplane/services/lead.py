"""Who leads, as people see it (HA-01)."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from controlplane.leadership.driver import Leadership
from controlplane.planning.words import IN_DOUBT, seconds
from controlplane.services.status import Problem

Plain = dict[str, Any]


class Lead:
    """Reads of the lease of the control plane that leads: this one. ``ha``: others stand by,
    or may."""

    def __init__(self, leadership: Leadership, *, ha: bool) -> None:
        self._leadership = leadership
        self._ha = ha

    def read(self) -> Plain:
        """Its name, and how the lease stands. Without others to lead there is no end to it."""
        leadership = self._leadership
        remaining = leadership.remaining if isfinite(leadership.until) else None
        return {
            "name": leadership.holder.name,
            "ha": self._ha,
            "sure": leadership.sure,
            "remaining_seconds": remaining,
            "failing": leadership.failing or None,
        }

    def problems(self) -> Iterator[Problem]:
        """What a person should know, and the remedy."""
        leadership = self._leadership
        if not leadership.sure:
            since = seconds(max(0.0, -leadership.remaining))
            why = f" ({leadership.failing})" if leadership.failing else ""
            words = f"is in doubt for {since}{why}: {IN_DOUBT}"
            yield Problem("lease", leadership.holder.name, words)
