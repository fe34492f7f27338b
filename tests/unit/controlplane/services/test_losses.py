"""A mass loss as people see it, and their word that it is one (REC-11); settings that are too short."""

from pathlib import Path

import pytest

from controlplane.events import LossAccepted
from controlplane.planning.view import FleetView, MassLoss, NodeView
from controlplane.services.errors import Refused
from controlplane.services.losses import Losses
from controlplane.settings import load, short_settling
from llmgw.wire.versions import RECONNECT_LIMIT
from tests.unit.controlplane.services.harness import World, ask
from tests.unit.controlplane.services.watched import Watched

NODES = frozenset({"n1", "n2", "n3"})


def losses(world: World, view: FleetView) -> Losses:
    return Losses(lambda: view, inbox=world.inbox, changes=world.changes, clock=world.clock)


def fleet(world: World) -> FleetView:
    return FleetView(catalog=world.catalog.current)


def test_an_accepted_loss_reaches_the_loop_and_the_audit(world: World) -> None:
    """REC-11, API-06: with who said so; it names the nodes."""
    view = fleet(world)
    view.mass_loss = MassLoss(world.clock.monotonic(), NODES)
    assert losses(world, view).accept(ask("nodes.accept_loss")) == {
        "nodes": ["n1", "n2", "n3"],
        "silent": [],
    }
    assert world.events() == [LossAccepted(NODES, "ada")]
    (entry,) = world.store.read(lambda tx: tx.audit.page(limit=10)).items
    assert entry.operation == "nodes.accept_loss" and entry.after == {"nodes": ["n1", "n2", "n3"]}


def test_it_is_accepted_while_the_store_is_away(world: World) -> None:
    """REC-11, HA-01: it is then that networks fail."""
    view = fleet(world)
    view.mass_loss = MassLoss(world.clock.monotonic(), NODES)
    world.store.away = True
    losses(world, view).accept(ask())
    assert world.events() == [LossAccepted(NODES, "ada")]


def test_only_the_nodes_that_are_named_are_accepted(world: World) -> None:
    """REC-11: more may have gone silent since somebody looked, and some may be back."""
    view = fleet(world)
    view.nodes = {name: NodeView(id=name) for name in ("n1", "n2", "n3", "n4")}
    view.mass_loss = MassLoss(world.clock.monotonic(), NODES)
    answer = losses(world, view).accept(ask("nodes.accept_loss"), ["n4", "n2", "n1", "n1"])
    assert answer == {"nodes": ["n1", "n2"], "silent": ["n3"]}
    assert world.events() == [LossAccepted(frozenset({"n1", "n2"}), "ada")]
    (entry,) = world.store.read(lambda tx: tx.audit.page(limit=10)).items
    assert entry.after == {"nodes": ["n1", "n2"]}
    with pytest.raises(Refused, match="none of these nodes"):
        losses(world, view).accept(ask(), ["n4"])
    with pytest.raises(Refused) as refused:
        losses(world, view).accept(ask(), ["n1", "n8", "n9"])
    assert [str(fault.path) for fault in refused.value.faults] == ["nodes[1]", "nodes[2]"]
    assert world.events() == []


def test_there_is_nothing_to_accept_without_a_mass_loss(world: World) -> None:
    """REC-11: said, and nothing is done."""
    with pytest.raises(Refused, match="no mass loss is on"):
        losses(world, fleet(world)).accept(ask())
    assert world.events() == []


def test_status_tells_of_a_mass_loss_and_of_losses_that_wait(world: World) -> None:
    """REC-10, REC-11: which nodes, for how long, and the remedy."""
    view = fleet(world)
    assert not list(losses(world, view).problems())
    view.mass_loss = MassLoss(world.clock.monotonic(), NODES)
    world.clock.advance(90)
    (problem,) = losses(world, view).problems()
    assert problem.kind == "mass-loss" and "3 nodes went silent together" in problem.message
    assert "90 s (n1, n2, n3)" in problem.message and "llmgw ctl nodes accept-loss" in problem.message

    watched = Watched()
    watched.node("n1", status="unreachable", registered=False)
    assert watched.about("node") == ["n1 is unreachable"]
    assert watched.status.read()["mass_loss"] is None
    watched.view.late_losses = ("n1",)
    watched.view.mass_loss = MassLoss(watched.clock.monotonic(), NODES)
    assert watched.about("node") == ["n1 is unreachable; it is lost as soon as the limit on losses allows"]
    assert watched.status.read()["mass_loss"] == {"seconds": 0.0, "nodes": ["n1", "n2", "n3"]}


def test_settling_that_an_agent_may_outwait_is_told(tmp_path: Path) -> None:
    """REC-24: the relation to the agents' real longest wait."""
    assert short_settling(load(None)) == {}
    file = tmp_path / "controlplane.yaml"
    file.write_text(f"settling: {{steady: {RECONNECT_LIMIT:g}s}}")
    (words,) = short_settling(load(file)).values()
    assert "30 s" in words and "40s" in words
