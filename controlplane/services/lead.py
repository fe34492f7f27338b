"""Who leads, as people see it (HA-01)."""

from collections.abc import Callable, Iterator
from math import isfinite

from controlplane.fleet.lead import MAX_EPOCH_STEP, ahead
from controlplane.leadership.driver import NAMESAKE, Leadership
from controlplane.planning.view import FleetView
from controlplane.planning.words import IN_DOUBT, listing, plural, seconds
from controlplane.services.fleet import Plain
from controlplane.services.status import REMEDY, TOLD, Problem, harmless
from controlplane.store.access import StoreAccess
from llmgw.runtime.clock import Clock


class Lead:
    """Reads of the lease of the control plane that leads: this one. ``ha``: others stand by,
    or may."""

    def __init__(
        self,
        leadership: Leadership,
        view: Callable[[], FleetView],
        clock: Clock,
        *,
        store: StoreAccess,
        ha: bool,
    ) -> None:
        self._leadership = leadership
        self._store = store
        self._view = view
        self._clock = clock
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
        if not leadership.sure and not self._store.failing:  # else that problem tells it too
            why = f" ({harmless(leadership.failing)})" if leadership.failing else ""
            words = f"is in doubt for {seconds(max(0.0, -leadership.remaining))}{why}: {IN_DOUBT}; {REMEDY}"
            yield Problem("lease", leadership.holder.name, words)
        if leadership.namesake is not None:
            where = leadership.namesake.addresses.get("admin") or "address unknown"
            words = f"led before this one ({where}): {NAMESAKE}; this stays until the lead changes once more"
            yield Problem("name", leadership.holder.name, words)
        obeyed = ahead(self._view(), leadership.epoch, self._clock.monotonic())
        if obeyed:
            words = (
                f"its epoch is {leadership.epoch}, and {plural(len(obeyed), 'peer')} obeyed up to epoch "
                f"{max(obeyed.values())} ({listing(sorted(obeyed), TOLD)}) and obey nothing lower: it catches up by "
                f"{MAX_EPOCH_STEP} at a time, as after an older store was put in place; a single peer that goes on "
                "saying so may be lying: revoke its certificate"
            )
            yield Problem("lease", leadership.holder.name, words)
