"""Nodes that went silent together, and the word of a person that they are lost (REC-11)."""

from collections.abc import Callable, Iterator, Sequence

from controlplane.events import LossAccepted
from controlplane.inbox import Inbox
from controlplane.planning.view import FleetView
from controlplane.planning.words import listing, plural, seconds
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import Refused, busy, conflict
from controlplane.services.fleet import Plain
from controlplane.services.status import TOLD, Problem
from llmgw.runtime.clock import Clock
from llmgw.runtime.settings import Fault

MAX_AUDITED = 500
"""Most nodes that the audit names of one acceptance."""


class Losses:
    """Reads of a mass loss, and its acceptance."""

    def __init__(self, view: Callable[[], FleetView], *, inbox: Inbox, changes: Changes, clock: Clock) -> None:
        self._view = view
        self._inbox = inbox
        self._changes = changes
        self._clock = clock

    def accept(self, asked: Asked, nodes: Sequence[str] | None = None) -> Plain:
        """Declare nodes lost that went silent together: those of ``nodes`` that are silent
        still, or all that are now; they, in order, and those that are silent as well. It can be
        done while the store is away; the loop carries it out once the lease is beyond doubt.
        Raises ``Refused``."""

        def work() -> Changed[Plain]:
            view = self._view()
            unknown = [
                Fault(f"nodes[{index}]", f"there is no node {name!r}")
                for index, name in enumerate(nodes or ())
                if name not in view.nodes
            ]
            if unknown:
                raise Refused("validation_failed", "the request has faults", status=422, faults=unknown)
            if view.mass_loss is None:
                raise conflict("no mass loss is on: silent nodes are declared lost by themselves, a few at a time")
            silent = view.mass_loss.nodes
            accepted = silent if nodes is None else silent.intersection(nodes)
            if not accepted:
                raise conflict("none of these nodes is of the mass loss any more: see llmgw ctl status")
            if not self._inbox.offer(LossAccepted(accepted, asked.actor)):
                raise busy()
            told = sorted(accepted)
            answer = {"nodes": told, "silent": sorted(silent - accepted)}
            return Changed(answer, "accept-loss", "nodes", None, {"nodes": told[:MAX_AUDITED]})

        return self._changes.carry_out(asked, work)

    def lost(self) -> Plain:
        """The nodes that are lost now, and those of a mass loss."""
        view = self._view()
        silent = view.mass_loss.nodes if view.mass_loss is not None else ()
        return {
            "nodes": sorted(node.id for node in view.nodes.values() if node.status == "lost"),
            "silent": sorted(silent),
        }

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
