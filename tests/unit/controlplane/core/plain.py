"""Placement in the plain way: every profile is examined on every node, each time anew.

What the product keeps up to date must come to the same (``test_candidates``).
"""

from controlplane.catalog.model import Model
from controlplane.planning.candidates import PDU, RACK
from controlplane.planning.examine import Fit, examine
from controlplane.planning.overlay import Overlay
from controlplane.planning.placement import Spot
from controlplane.planning.view import FleetView, Refusal, ReplicaView, Verdict
from controlplane.planning.words import plural

NEARNESS = (
    "memory_claimed", "cores_claimed", "devices_claimed", "ports_exhausted", "engine_probing",
    "engine_not_ready", "node_cordoned", "domain_held", "source_not_fetched", "no_device_of_class", "label_mismatch",
    "multi_node", "node_unreachable",
)  # fmt: skip


def choose(
    view: FleetView, overlay: Overlay, model: Model, now: float, leaving: ReplicaView | None = None
) -> tuple[Spot | None, tuple[Verdict, ...]]:
    """The best spot, and the verdict of every candidate."""
    others = list(overlay.places.get(model.name, ()))
    for shard in leaving.shards.values() if leaving else ():
        if shard.node_id in others:
            others.remove(shard.node_id)
    spots: list[tuple[tuple, Spot]] = []
    verdicts: list[Verdict] = []
    for rank, profile in enumerate(model.profiles):
        for node_id in sorted(view.nodes):
            node = view.nodes[node_id]
            outcome = examine(node, overlay.on(node_id), profile, holds=view.held(node), now=now)
            if not isinstance(outcome, Fit):
                verdicts.append(Verdict(profile.name, node_id, reasons=outcome))
                continue
            health = view.health.get(model.name)
            score = (
                ("failed_here", 1.0 if health and node_id in health.failed_nodes else 0.0),
                ("same_rack", _alike(view, others, node.labels.get(RACK, ""), RACK)),
                ("same_pdu", _alike(view, others, node.labels.get(PDU, ""), PDU)),
                ("same_node", others.count(node_id)),
                ("devices_left", outcome.devices_left),
                ("untouched", outcome.untouched),
                ("memory_left", outcome.memory_left),
                ("node", node_id),
            )
            key = (-profile.priority, rank, *(value for _, value in score))
            spots.append((key, Spot(profile, node, outcome.devices, outcome.port, score)))
            verdicts.append(Verdict(profile.name, node_id, score=score))
    best = min(spots, key=lambda row: row[0])[1] if spots else None
    return best, tuple(
        Verdict(v.profile, v.node_id, v.reasons, v.score, chosen=True)
        if best is not None and (v.profile, v.node_id) == (best.profile.name, best.node.id)
        else v
        for v in verdicts
    )


def _alike(view: FleetView, others: list[str], value: str, label: str) -> int:
    nodes = (view.nodes.get(node_id) for node_id in others)
    return sum(node is not None and label in node.labels and node.labels[label] == value for node in nodes)


def refusal(model: Model, verdicts: tuple[Verdict, ...], keep: int) -> Refusal:
    """Why nothing fits: the nearest in words, all the others counted."""
    if not verdicts:
        return Refusal("no_nodes", "no node is enrolled")
    ranked = sorted(verdicts, key=_distance)
    nearest = ranked[0]
    groups: dict[str, set[str]] = {}
    for verdict in verdicts:
        for reason in verdict.reasons if verdict.node_id != nearest.node_id else ():
            groups.setdefault(reason.code, set()).add(verdict.node_id)
    profile = f"profile {nearest.profile} " if len(model.profiles) > 1 else ""
    message = f"{profile}{'; '.join(reason.message for reason in nearest.reasons)} (node {nearest.node_id})"
    others = len({verdict.node_id for verdict in verdicts}) - 1
    if others > 0:
        counted = ", ".join(f"{code} on {len(nodes)}" for code, nodes in sorted(groups.items()))
        message += f"; no better on {plural(others, 'other node')}: {counted}"
    return Refusal(nearest.reasons[0].code, message, tuple(ranked[:keep]))


def _distance(verdict: Verdict) -> tuple:
    first = verdict.reasons[0]
    worst = max(NEARNESS.index(reason.code) for reason in verdict.reasons)
    short = (first.needed or 0) - (first.available or 0)
    return worst, len(verdict.reasons), short, verdict.profile, verdict.node_id
