"""Nodes that went silent together, and the word of a person that they are lost (REC-11)."""

from collections.abc import Callable, Iterator
from typing import Any

from controlplane.events import LossAccepted
from controlplane.inbox import Inbox
from controlplane.planning.view import FleetView
from controlplane.planning.words import listing, plural, seconds
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import busy, conflict
from controlplane.services.status import Problem
from llmgw.runtime.clock import Clock

Plain = dict[str, Any]

MAX_AUDITED = 500
"""Most nodes that the audit names of one acceptance."""

TOLD = 5


class Losses:
    """Reads of a mass loss, and its acceptance."""

    def __init__(self, view: Callable[[], FleetView], *, inbox: Inbox, changes: Changes, clock: Clock) -> None:
        self._view = view
        self._inbox = inbox
        self._changes = changes
        self._clock = clock

    def accept(self, asked: Asked) -> Plain:
        """Declare the nodes lost that went silent together; they, in order. It can be done
        while the store is away; the loop carries it out once the lease is beyond doubt.
        Raises ``Refused``."""

        def work() -> Changed[Plain]:
            loss = self._view().mass_loss
            if loss is None:
                raise conflict("no mass loss is on: silent nodes are declared lost by themselves, a few at a time")
            nodes = sorted(loss.nodes)
            if not self._inbox.offer(LossAccepted(asked.actor)):
                raise busy()
            return Changed({"nodes": nodes}, "accept-loss", "nodes", None, {"nodes": nodes[:MAX_AUDITED]})

        return self._changes.carry_out(asked, work)

    def lost(self) -> Plain:
        """The nodes that are lost now."""
        return {"nodes": sorted(node.id for node in self._view().nodes.values() if node.status == "lost")}

    def problems(self) -> Iterator[Problem]:
        """What a person should know, and the remedy."""
        loss = self._view().mass_loss
        if loss is not None:
            since = seconds(self._clock.monotonic() - loss.since)
            words = (
                f"{plural(len(loss.nodes), 'node')} went silent together and are not back for {since} "
                f"({listing(sorted(loss.nodes), TOLD)}): the fault may be this control plane's network, so nothing is "
                "rebuilt; if they are gone for good: llmgw ctl nodes accept-loss"
            )
            yield Problem("mass-loss", "nodes", words)
