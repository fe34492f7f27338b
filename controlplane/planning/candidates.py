"""What every node answers to every kind of profile, kept up to date rather than asked anew.

A placement changes one node, so only that node is examined again, and the best one is
found among racks rather than among nodes. The answers are those of ``examine``, node by
node: keeping them changes no decision and no explanation. Pure.
"""

from bisect import bisect_left, insort
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from controlplane.catalog.model import Profile
from controlplane.events import Cordon
from controlplane.planning.examine import Fit, Need, examine, foreign_processes, need
from controlplane.planning.overlay import Claims, Overlay
from controlplane.planning.view import FleetView, NodeView, Reason, Verdict
from controlplane.planning.work import Work
from llmgw.wire.messages import Measurements

RACK = "llmgw.io/rack"
PDU = "llmgw.io/pdu"

MAX_POOLS = 16
"""Kinds of profiles whose answers are kept; those asked for longest ago go first."""

PER_UNIT = 16
"""Nodes that are looked at for changes in one unit of work."""

Row = tuple[float, float, float, str]
"""The terms of a node that are the same for every model, then its id: smaller is better."""


@dataclass(slots=True)
class Seen:
    """All that ``examine`` looks at of a node, as it was."""

    claims: Claims
    facts: tuple[object, ...]
    measurements: Measurements | None
    foreign: Mapping[str, tuple[str, ...]]


class Fitting(NamedTuple):
    """A node that fits, what a profile would get there, and its rack and PDU."""

    node: NodeView
    fit: Fit
    where: tuple[str, str]


class Pool:
    """What every node answers to one kind of profile. ``groups`` are the nodes that fit,
    best first, by rack and PDU; ``refused`` the ids of the others, in order; ``dirty`` those
    to be examined again."""

    def __init__(self) -> None:
        self.dirty: set[str] = set()
        self.groups: dict[tuple[str, str], list[Row]] = {}
        self.fits: dict[str, Fitting] = {}
        self.reasons: dict[str, tuple[Reason, ...]] = {}
        self.refused: list[str] = []
        self._verdicts: dict[str, dict[str, Verdict]] = {}

    def put(self, node: NodeView, outcome: Fit | tuple[Reason, ...]) -> None:
        """A node's answer, in the stead of the one before."""
        self.drop(node.id)
        if isinstance(outcome, Fit):
            labels = node.labels
            where = labels.get(RACK, ""), labels.get(PDU, "")
            self.fits[node.id] = Fitting(node, outcome, where)
            insort(self.groups.setdefault(where, []), _row(outcome, node.id))
        else:
            self.reasons[node.id] = outcome
            insort(self.refused, node.id)

    def drop(self, node_id: str) -> None:
        """Forget a node's answer."""
        if self.reasons.pop(node_id, None) is not None:
            del self.refused[bisect_left(self.refused, node_id)]
            for of_name in self._verdicts.values():
                of_name.pop(node_id, None)
        elif node_id in self.fits:
            known = self.fits.pop(node_id)
            rows = self.groups[known.where]
            del rows[bisect_left(rows, _row(known.fit, node_id))]
            if not rows:
                del self.groups[known.where]

    def verdict(self, name: str, node_id: str) -> Verdict:
        """Why a node that is refused is, for the profile of that name."""
        made = self._verdicts.setdefault(name, {})
        found = made.get(node_id)
        if found is None:
            found = made[node_id] = Verdict(name, node_id, reasons=self.reasons[node_id])
        return found


def _row(fit: Fit, node_id: str) -> Row:
    return fit.devices_left, fit.untouched, fit.memory_left, node_id


class Candidates:
    """Pools for the profiles that were asked for. One may be kept from pass to pass, by
    one at a time: what changed in the meantime is found by looking at every node once."""

    def __init__(self) -> None:
        self._pools: dict[Need, Pool] = {}
        self._seen: dict[str, Seen] = {}
        self._view: FleetView | None = None
        self._version = -1
        self._holds: Mapping[str, Cordon] = {}
        self._overlay: Overlay | None = None
        self._told = 0

    def pools(
        self, view: FleetView, overlay: Overlay, profiles: tuple[Profile, ...], *, work: Work, now: float
    ) -> Generator[None, None, list[Pool]]:
        """The pools of these profiles, up to date. Yields between slices of work; they are
        right until the next yield of whoever asked."""
        yield from self._look(view, overlay, work=work, now=now)
        found = []
        for profile in profiles:
            key = need(profile)
            pool = self._pools.pop(key, None)
            if pool is None:
                pool = Pool()
                pool.dirty.update(self._seen)
            self._pools[key] = pool  # the last one asked for is the last one to go
            found.append(pool)
            for node_id in sorted(pool.dirty):
                node = view.nodes.get(node_id)
                if node is None:
                    pool.drop(node_id)
                else:
                    outcome = examine(node, overlay.on(node_id), profile, holds=view.held(node), now=now)
                    pool.put(node, outcome)
                pool.dirty.discard(node_id)
                if work.spent():
                    yield
        while len(self._pools) > max(MAX_POOLS, len(found)):
            del self._pools[next(iter(self._pools))]
        return found

    def _look(self, view: FleetView, overlay: Overlay, *, work: Work, now: float) -> Generator[None, None, None]:
        """Find the nodes that changed, or whose claims did."""
        known = self._overlay or overlay
        for node_id in known.log[self._told :]:
            self._mark(node_id)
            if node_id in self._seen:  # which may have had no claims at all before
                self._seen[node_id].claims = known.on(node_id)
        self._told = len(overlay.log)
        if overlay is self._overlay and view is self._view and view.nodes_version == self._version:
            return
        self._view, self._overlay, self._version = view, overlay, view.nodes_version
        all_of_them = view.holds != self._holds
        self._holds = view.holds
        for node_id in [node_id for node_id in self._seen if node_id not in view.nodes]:
            del self._seen[node_id]
            self._mark(node_id)
        for number, (node_id, node) in enumerate(list(view.nodes.items())):
            if self._changed(node, overlay.on(node_id), now) or all_of_them:
                self._mark(node_id)
            if number % PER_UNIT == 0 and work.spent():
                yield

    def _mark(self, node_id: str) -> None:
        for pool in self._pools.values():
            pool.dirty.add(node_id)

    def _changed(self, node: NodeView, claims: Claims, now: float) -> bool:
        seen, facts = self._seen.get(node.id), _facts(node, now)
        if seen is None:
            self._seen[node.id] = Seen(claims, facts, node.measurements, foreign_processes(node))
            return True
        changed = seen.facts != facts
        if changed:
            seen.facts = facts
        if seen.measurements is not node.measurements:
            foreign = foreign_processes(node)
            changed |= foreign != seen.foreign
            seen.measurements, seen.foreign = node.measurements, foreign
        if seen.claims is not claims:
            changed |= seen.claims != claims
            seen.claims = claims
        return changed


def _facts(node: NodeView, now: float) -> tuple[object, ...]:
    """What ``examine`` looks at of a node, beside its measurements. Compared by identity
    first, so that it costs little while nothing changes."""
    return (
        node.registered,
        node.inventory,
        node.cordon,
        node.own_labels,
        node.capabilities,
        node.agent_version,
        node.status,
        node.session is None,
        node.last_heard is None,
        (now, *node.avoid_ports.items()) if node.avoid_ports else None,
    )
