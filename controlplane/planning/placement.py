"""Where one more replica of a model goes, and why not elsewhere (PLC-10 to PLC-24).

Pure: a view, an overlay of claims, a model; the best of all candidates, and why not the
others.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

from controlplane.catalog.model import Model, Profile
from controlplane.planning.candidates import PDU, RACK, Candidates, Pool
from controlplane.planning.overlay import Overlay
from controlplane.planning.view import FleetView, NodeView, Reason, Refusal, ReplicaView, Verdict
from controlplane.planning.words import plural
from controlplane.planning.work import Work

TERMS = (
    *("failed_here", "same_rack", "same_pdu", "same_node"),
    *("devices_left", "untouched", "memory_left", "node"),
)
"""The terms of a score, in the order in which they decide (PLC-23); smaller is better."""

Score = tuple[tuple[str, float | str], ...]


@dataclass(frozen=True, slots=True)
class Spot:
    """A node that can take a profile, with the devices and the port it would get."""

    profile: Profile
    node: NodeView
    devices: tuple[str, ...]
    port: int
    score: Score


class Choice:
    """The best spot, if any. What it tells of the other candidates holds until whoever
    asked yields: then their nodes may change."""

    def __init__(self, model: Model, pools: list[Pool], spread: "Spread") -> None:
        self._model = model
        self._pools = pools
        self.spread = spread
        self.spot = self._best()

    def _best(self) -> Spot | None:
        ranked = sorted(enumerate(self._model.profiles), key=lambda row: (-row[1].priority, row[0]))
        for rank, profile in ranked:
            pool = self._pools[rank]
            node_id = self.spread.best(pool)
            if node_id is not None:
                node, fit, _ = pool.fits[node_id]
                return Spot(profile, node, fit.devices, fit.port, self._score(pool, node_id))
        return None

    def _score(self, pool: Pool, node_id: str) -> Score:
        _, fit, (rack, pdu) = pool.fits[node_id]
        first = self.spread.terms(node_id, rack, pdu)
        values = (*first, fit.devices_left, fit.untouched, fit.memory_left, node_id)
        return tuple(zip(TERMS, values, strict=True))

    def rejected(self, keep: int) -> tuple[Verdict, ...]:
        """The first ``keep`` candidates that were turned down, in order."""
        return tuple(islice(self._rejected(), keep))

    def _rejected(self) -> Iterator[Verdict]:
        for profile, pool in zip(self._model.profiles, self._pools, strict=True):
            for node_id in pool.refused:
                yield pool.verdict(profile.name, node_id)

    def verdicts(self, work: Work) -> Generator[None, None, tuple[Verdict, ...]]:
        """All candidates: every profile on every node, in order. Yields between slices of
        work, in which nobody else may use the same ``Candidates``."""
        made = []
        best = self.spot
        for profile, pool in zip(self._model.profiles, self._pools, strict=True):
            for node_id in sorted((*pool.refused, *pool.fits)):
                if node_id in pool.fits:
                    chosen = best is not None and best.profile is profile and best.node.id == node_id
                    made.append(Verdict(profile.name, node_id, score=self._score(pool, node_id), chosen=chosen))
                else:
                    made.append(pool.verdict(profile.name, node_id))
                if work.spent():
                    yield
        return tuple(made)

    def refusal(self, keep: int = 64) -> Refusal:
        """Why nothing fits, in one sentence with the nearest figures (PLC-04, PLC-24).

        All candidates are counted; at most ``keep`` verdicts are kept, the nearest first.
        """
        model = self._model
        ranked = nsmallest(max(keep, 1), self._distances())
        if not ranked:
            return Refusal("no_nodes", "no node is enrolled")
        kept = tuple(self._pools[rank].verdict(model.profiles[rank].name, node_id) for *_, node_id, rank in ranked)
        nearest = kept[0]
        groups: dict[str, set[str]] = {}
        nodes: set[str] = set()
        for pool in self._pools:
            nodes.update(pool.reasons)
            for node_id, reasons in pool.reasons.items():
                for reason in reasons:
                    groups.setdefault(reason.code, set()).add(node_id)
        for among in groups.values():
            among.discard(nearest.node_id)
        profile = f"profile {nearest.profile} " if len(model.profiles) > 1 else ""
        message = f"{profile}{'; '.join(reason.message for reason in nearest.reasons)} (node {nearest.node_id})"
        if len(nodes) > 1:
            counted = ", ".join(f"{code} on {len(among)}" for code, among in sorted(groups.items()) if among)
            message += f"; no better on {plural(len(nodes) - 1, 'other node')}: {counted}"
        return Refusal(nearest.reasons[0].code, message, kept[:keep])

    def _distances(self) -> Iterator[tuple[int, int, float, str, str, int]]:
        for rank, (profile, pool) in enumerate(zip(self._model.profiles, self._pools, strict=True)):
            for node_id, reasons in pool.reasons.items():
                yield (*_distance(reasons), profile.name, node_id, rank)


def choose(
    view: FleetView,
    overlay: Overlay,
    candidates: Candidates,
    model: Model,
    *,
    work: Work,
    now: float,
    leaving: ReplicaView | None = None,
    spread: "Spread | None" = None,
) -> Generator[None, None, Choice]:
    """Look at every profile on every node. Yields between slices of work. ``leaving`` is
    a replica in whose stead the new one comes: it has no part in the spread. ``spread`` is
    that of the choice before, where another replica of the same model was placed since."""
    yield from overlay.fill(view, work)
    pools = yield from candidates.pools(view, overlay, model.profiles, work=work, now=now)
    return Choice(model, pools, spread or Spread(view, overlay, model.name, leaving))


class Spread:
    """Where replicas of one model are already, by node, rack and PDU (PLC-22), and
    where it failed in its present row of failures."""

    def __init__(self, view: FleetView, overlay: Overlay, model: str, leaving: ReplicaView | None = None) -> None:
        health = view.health.get(model)
        self.failed = frozenset(health.failed_nodes) if health else frozenset()
        self.nodes: dict[str, int] = {}
        self.racks: dict[str, int] = {}
        self.pdus: dict[str, int] = {}
        places = list(overlay.places.get(model, ()))
        for shard in leaving.shards.values() if leaving is not None else ():
            if shard.node_id in places:
                places.remove(shard.node_id)
        for node_id in places:
            self.add(node_id, view.nodes.get(node_id))

    def add(self, node_id: str, node: NodeView | None) -> None:
        """One more replica, on this node."""
        self.nodes[node_id] = self.nodes.get(node_id, 0) + 1
        labels: Mapping[str, str] = node.labels if node else {}
        for label, counts in ((RACK, self.racks), (PDU, self.pdus)):
            if label in labels:
                counts[labels[label]] = counts.get(labels[label], 0) + 1

    def terms(self, node_id: str, rack: str, pdu: str) -> tuple[float, int, int, int]:
        """First terms of PLC-23, as ``TERMS`` names them. A node without a rack or PDU label
        shares it with nobody.

        Before them all: a node on which the model just failed (weights that are not
        there, say) comes last, or it would be tried again until the model is parked.
        """
        failed = 1.0 if node_id in self.failed else 0.0
        return failed, self.racks.get(rack, 0), self.pdus.get(pdu, 0), self.nodes.get(node_id, 0)

    def best(self, pool: Pool) -> str | None:
        """The node with the best score of those that fit."""
        found: tuple[float | str, ...] | None = None
        for (rack, pdu), rows in pool.groups.items():
            lowest = (0.0, self.racks.get(rack, 0), self.pdus.get(pdu, 0), 0)
            for row in rows:
                if found is not None and (*lowest, *row) > found:
                    break  # neither this one nor any after it is better
                score = (*self.terms(row[-1], rack, pdu), *row)
                if found is None or score < found:
                    found = score
        return str(found[-1]) if found is not None else None


_NEARNESS = (
    "memory_claimed", "cores_claimed", "devices_claimed", "ports_exhausted", "engine_probing",
    "engine_not_ready", "node_cordoned", "domain_held", "source_not_fetched", "no_device_of_class", "label_mismatch",
    "multi_node", "node_unreachable",
)  # fmt: skip
_RANK = {code: rank for rank, code in enumerate(_NEARNESS)}


def _distance(reasons: tuple[Reason, ...]) -> tuple[int, int, float]:
    """How far a candidate is from taking the model: figures before structure."""
    first = reasons[0]
    worst = max(_RANK[reason.code] for reason in reasons)
    return worst, len(reasons), (first.needed or 0) - (first.available or 0)
