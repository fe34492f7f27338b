"""When silence becomes loss, as a pure machine (REC-10, REC-11).

A node that is silent for long is *lost*: its replicas are rebuilt elsewhere. That is the
most that this control plane does by itself, so it is slow to: only a tenth of the fleet
within five minutes, and nobody at all once more than half of what was there fell silent
within a minute. Then it is far likelier that we ourselves are cut off, and a person must
say otherwise. Nodes that were never heard since the start fell silent at the start.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.planning.drains import Routers

SHARE = 0.1
"""Part of the fleet that may be declared lost within ``WINDOW``; at least one node."""

WINDOW = 300.0
"""Seconds over which declarations are counted."""

TOGETHER = 60.0
"""Seconds within which silences count as one event."""

LEAST = 3
"""Fewer nodes are no mass loss: a fleet of two must be able to lose one."""

WITNESS = 60.0
"""Seconds for which an answer to a router vouches for an endpoint."""

AT_A_TIME = 100
"""Nodes given up in one go after a person accepted their loss; the rest follow in the next pass."""


def together(silent: Mapping[str, float], total: int) -> set[str]:
    """The nodes that fell silent with so many others that it is a mass loss: some
    ``TOGETHER`` seconds hold at least ``LEAST`` of the moments in ``silent`` and more than
    half of ``total`` nodes."""
    if len(silent) < LEAST or 2 * len(silent) <= total:
        return set()
    order = sorted((since, node_id) for node_id, since in silent.items())
    found: set[str] = set()
    first = told = 0
    for last, (since, _) in enumerate(order):
        while since - order[first][0] > TOGETHER:
            first += 1
        count = last - first + 1
        if count >= LEAST and 2 * count > total:
            found.update(node_id for _, node_id in order[max(first, told) : last + 1])
            told = last + 1
    return found


@dataclass(slots=True)
class NodeLife:
    """Decides who is lost. ``silent`` maps each node that is out of sight, and not lost
    yet, to the moment from which on nothing was heard of it; whoever calls keeps all else.
    """

    lost_after: float
    frozen: dict[str, float] = field(default_factory=dict)
    """The nodes of a mass loss that have not come back, and since when each is silent."""
    frozen_since: float | None = None
    """When nothing was declared lost any more; ``None``: no mass loss is on."""
    accepted: dict[str, float] = field(default_factory=dict)
    """Those whose loss a person accepted, until they are lost or back."""
    resumed: float = float("-inf")
    """When this process went on after it had stood still: silence before is our own."""
    late: tuple[str, ...] = ()
    """Those that would be lost if the rate allowed."""
    _losses: deque[float] = field(default_factory=deque)

    def allowed(self, fleet: int, now: float) -> int:
        """How many more nodes of a fleet may be declared lost now."""
        while self._losses and now - self._losses[0] > WINDOW:
            self._losses.popleft()
        return max(1, int(SHARE * fleet)) - len(self._losses)

    def known(self, node_id: str, since: float) -> bool:
        """Whether a node is one of a mass loss and was not heard of since: it stays in sight
        as such, whatever a pause of ours makes of its silence."""
        return since in (self.frozen.get(node_id), self.accepted.get(node_id))

    def accept(self, nodes: Container[str]) -> frozenset[str]:
        """A person says that these nodes are lost: those of the mass loss are, at once, unless
        they come back before. It goes on for its others."""
        accepted = {node_id: since for node_id, since in self.frozen.items() if node_id in nodes}
        self.accepted |= accepted
        self.frozen = {node_id: since for node_id, since in self.frozen.items() if node_id not in accepted}
        if not self.frozen:
            self.frozen_since = None
        return frozenset(accepted)

    def tick(self, silent: Mapping[str, float], fleet: int, total: int, now: float, *, hold: bool) -> list[str]:
        """Who is declared lost now, the longest silent first. ``fleet`` is how many nodes are
        enrolled, ``total`` how many of them are not lost. ``hold``: nobody is, for now."""
        self.frozen = {node_id: since for node_id, since in self.frozen.items() if silent.get(node_id) == since}
        self.accepted = {node_id: since for node_id, since in self.accepted.items() if silent.get(node_id) == since}
        others = {node_id: since for node_id, since in silent.items() if node_id not in self.accepted}
        for node_id in together(others, total - len(self.accepted)):
            self.frozen[node_id] = silent[node_id]
        if not self.frozen:
            self.frozen_since = None
        elif self.frozen_since is None:
            self.frozen_since = now
        self.late = ()
        if hold:
            return []
        lost = sorted(self.accepted, key=lambda node_id: (silent[node_id], node_id))[:AT_A_TIME]
        self._losses.extend(now for _ in lost)
        if not self.frozen:
            due = sorted(
                (since, node_id)
                for node_id, since in silent.items()
                if node_id in others and now - max(since, self.resumed) >= self.lost_after
            )
            allowed = max(0, self.allowed(fleet, now))
            lost += [node_id for _, node_id in due[:allowed]]
            self.late = tuple(node_id for _, node_id in due[allowed:])
            self._losses.extend(now for _ in due[:allowed])
        for node_id in lost:
            self.accepted.pop(node_id, None)
        return lost


def witnessed(routers: Routers, endpoints: Iterable[str], now: float) -> set[str]:
    """Those of the endpoints that answered a router within ``WITNESS`` seconds (REC-10)."""
    wanted = set(endpoints)
    found: set[str] = set()
    for router in routers.values():
        for endpoint in wanted & router.loads.keys():
            answered = router.loads[endpoint].answered_seconds
            if answered is not None and now - router.at + answered <= WITNESS:
                found.add(endpoint)
    return found
