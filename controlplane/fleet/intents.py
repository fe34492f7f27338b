"""What people want of nodes, domains and the whole, apart from what agents report (PLC-03).

Kept for nodes that are not enrolled yet too, so that a token that comes back finds the
cordon and the labels of before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.events import Cordon, HoldsSet, LabelsSet, ServingSet
from controlplane.fleet.context import Fleet
from controlplane.planning.words import listing


@dataclass(frozen=True, slots=True)
class Intent:
    """People's decisions as the store has them when a control plane starts: cordons and
    labels by node id, holds by domain (``LABEL=VALUE``), and whether serving is stopped."""

    cordons: Mapping[str, Cordon] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    holds: Mapping[str, Cordon] = field(default_factory=dict)
    serving: ServingSet = field(default_factory=lambda: ServingSet(stopped=False))


def set_cordon(fleet: Fleet, node_id: str, value: Cordon | None) -> None:
    """A person cordons a node, or uncordons it (``None``)."""
    if value is None:
        fleet.cordons.pop(node_id, None)
    else:
        fleet.cordons[node_id] = value
    node = fleet.view.nodes.get(node_id)
    if node is None or node.cordon == value:
        return
    node.cordon = value
    if value is None:
        fleet.note("uncordon", "new replicas may be placed on it again", node=node_id)
    else:
        fleet.note("cordon", f"by {value.actor}: {value.reason or 'no reason given'}", node=node_id)
    fleet.touch()


def set_labels(fleet: Fleet, event: LabelsSet) -> None:
    """The labels that people gave a node (PLC-09)."""
    labels = dict(event.labels)
    if labels:
        fleet.labels[event.node_id] = labels
    else:
        fleet.labels.pop(event.node_id, None)
    node = fleet.view.nodes.get(event.node_id)
    if node is None or dict(node.own_labels) == labels:
        return
    node.own_labels = labels
    words = listing([f"{label}={value}" for label, value in sorted(labels.items())], 10)
    fleet.note("labels", f"set by a person: {words or 'none'}", node=node.id)
    fleet.touch()


def set_holds(fleet: Fleet, event: HoldsSet) -> None:
    """The domains that are held from now on (PLC-15)."""
    before, after = fleet.view.holds, dict(event.holds)
    if before == after:
        return
    fleet.view.holds = after
    for domain in sorted(before.keys() - after.keys()):
        fleet.note("release", f"domain {domain}: new replicas may be placed in it again", domain=domain)
    for domain, hold in sorted(after.items()):
        if before.get(domain) != hold:
            why = hold.reason or "no reason given"
            fleet.note("hold", f"domain {domain}, by {hold.actor}: {why}", domain=domain)
    fleet.touch()


def set_serving(fleet: Fleet, event: ServingSet) -> None:
    """Everything is stopped, or served again (REC-31)."""
    before = fleet.view.serving
    if event == before:
        return
    fleet.view.serving = event
    by = f" by {event.actor}" if event.actor else ""
    if event.stopped and not before.stopped:
        fleet.note("serving-stopped", f"asked for{by}: every replica drains; llmgw start ends that")
    elif before.stopped and not event.stopped:
        fleet.note("serving-started", f"asked for{by}: models are placed again")
    fleet.touch()
    fleet.routes_dirty = True
