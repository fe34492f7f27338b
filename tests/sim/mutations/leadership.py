"""Bugs about who leads, whom nodes and routers obey, and which nodes are given up."""

import math
from dataclasses import replace

import msgspec

from agent import events as agent_events
from agent.allegiance import Allegiance
from agent.machine import Machine
from controlplane.fleet import dispatch, lead, nodelife, nodes
from controlplane.leadership.lease import Answered, Claim, Lease
from controlplane.loop import Loop
from controlplane.planning import check, heal
from llmgw.sim import router_process, store
from llmgw.sim.lease_keeper import LeaseKeeper
from llmgw.sim.store import SimStore
from llmgw.sim.telling import Telling


def the_lease_goes_by_the_wall_clock(patch):
    """HA-01: the holder counts the life of its claim with its host's clock that people set."""
    patch.setattr(LeaseKeeper, "now", lambda self: self.wall.now().timestamp())


def the_stores_clock_decides(patch):
    """HA-01: a candidate takes the lease once the store's clock says that it is over."""

    def candidate(self, before, row, now):
        return self._take(row)

    patch.setattr(Lease, "_candidate", candidate)
    free = SimStore.may_take
    over = lambda self, row: self.now() - (row.renewed_at or 0.0) > row.ttl  # noqa: E731
    patch.setattr(
        SimStore, "may_take", lambda self, row, seen: free(self, row, seen) and (not row.owner or over(self, row))
    )


def acts_to_the_end_of_its_claim(patch):
    """HA-01: the holder leaves no margin."""
    original = Lease.__init__

    def init(self, *args, **options):
        original(self, *args, **options)
        self._margin = 0.0

    patch.setattr(Lease, "__init__", init)


def never_in_doubt(patch):
    """HA-01: the loop takes its lease to last for ever."""
    patch.setattr(lead, "extended", lambda fleet, until, now: None)
    original = Loop.__init__
    patch.setattr(
        Loop, "__init__", lambda self, *args, **options: original(self, *args, **{**options, "until": math.inf})
    )


def decided_before_done_in_doubt(patch):
    """HA-01: what was decided while the lease was beyond doubt is carried out in doubt."""

    def committed(fleet, actions, now):
        until, fleet.view.lease.until = fleet.view.lease.until, math.inf
        for action in actions:
            dispatch.dispatch(fleet, action, now)
        fleet.view.lease.until = until

    patch.setattr(lead, "committed", committed)


def heals_elsewhere(patch):
    """HA-01: in doubt a replica that failed is placed on another node, and nobody checks."""
    original = heal._again

    def again(view, overlay, old, now, rng):
        (rank, shard), *_ = old.shards.items()
        others = [node.id for node in view.nodes.values() if node.registered and node.id != shard.node_id]
        if others:
            old = replace(old, shards={rank: replace(shard, node_id=others[0])})
        return original(view, overlay, old, now, rng)

    patch.setattr(heal, "_again", again)
    patch.setattr(check, "_heals", lambda action, view: ())


def claims_by_reading_and_writing(patch):
    """HA-01: a claim does not say which row it means to replace."""
    patch.setattr(SimStore, "may_take", lambda self, row, seen: True)
    patch.setattr(SimStore, "may_renew", lambda self, row, seen: True)


def a_look_is_a_claim(patch):
    """HA-01: a process that finds its own late claim carried out leads from when it looked."""
    original = Lease.handle

    def handle(self, event, now):
        row = event.row if isinstance(event, Answered) else None
        if row is not None and row.owner == self.owner and not self.leading:
            self._claim = Claim(self.owner)  # as if it had been asked just now
        return original(self, event, now)

    patch.setattr(Lease, "handle", handle)


def a_release_is_not_asked_whose(patch):
    """HA-02: a process that is stopped gives up whatever lease there is."""
    patch.setattr(SimStore, "may_release", lambda self, row, owner: True)


def a_new_leader_has_the_old_epoch(patch):
    """AGT-04: the epoch stays the same when the lease changes hands."""
    patch.setattr(SimStore, "next_epoch", staticmethod(max))


def raises_its_epoch_by_itself(patch):
    """AGT-04: a leader outbids whoever was obeyed before, without asking the store."""

    def unproven(fleet, epoch, leader, who, now, *, node=None):
        if epoch > fleet.epoch or (epoch == fleet.epoch and leader not in ("", fleet.leader)):
            fleet.epoch = epoch + 1
        return False

    patch.setattr(lead, "unproven", unproven)


def forgets_the_epoch(patch):
    """AGT-04: an agent that starts knows no epoch."""
    original = Machine.handle

    def handle(self, event, now):
        if isinstance(event, agent_events.Booted):
            state = msgspec.structs.replace(event.state, highest_epoch=0, leader="")
            event = agent_events.Booted(event.boot_id, state, event.stored, event.found)
        return original(self, event, now)

    patch.setattr(Machine, "handle", handle)


def obeys_before_it_is_on_disk(patch):
    """AGT-04: an agent takes the commands of a higher epoch while its disk knows the lower one."""
    patch.setattr(Allegiance, "durable", property(lambda self: True))


def nobody_compares_epochs(patch):
    """AGT-04: an agent takes the welcome and the commands of whoever comes, and no control
    plane minds whom it obeyed before. (Either of the two is enough.)"""
    patch.setattr(Allegiance, "objection", lambda self, epoch, leader: "")
    patch.setattr(lead, "unproven", lambda *_, **__: False)


def routers_follow_anybody(patch):
    """HA-01: a router takes whatever table it gets."""
    patch.setattr(router_process.epochs, "objection", lambda *_: "")


def a_restored_store_is_free(patch):
    """HA-01: ``llmgw store restore`` says that nobody leads."""
    original = store.held_back
    patch.setattr(store, "held_back", lambda owner, *rows: original("", *rows))


def nobody_is_told_that_another_leads(patch):
    """HA-02: who took the lease does not say so to the one that had it."""
    patch.setattr(Telling, "_try", lambda self: None)


# ---------------------------------------------------------------- who is given up


def nodes_never_heard_are_not_counted(patch):
    """REC-11: nodes that were never heard since the start are no part of a mass loss."""
    original = nodes.tick

    def tick(fleet, now):
        count = nodelife.together
        unheard = {node.id for node in fleet.view.nodes.values() if node.last_heard is None}

        def together(silent, total):
            return count({node: since for node, since in silent.items() if node not in unheard}, total)

        nodelife.together = together
        try:
            return original(fleet, now)
        finally:
            nodelife.together = count

    patch.setattr(nodes, "tick", tick)


def mass_loss_is_loss(patch):
    """REC-11: nodes that go silent together are given up like any other."""
    patch.setattr(nodelife, "together", lambda silent, total: set())


def all_lost_at_once(patch):
    """REC-10: as many nodes as are silent are given up at a time."""
    patch.setattr(nodelife.NodeLife, "allowed", lambda self, fleet, now: 1000)


def routers_are_not_asked(patch):
    """REC-10: what answers a router is rebuilt when its node is lost."""
    patch.setattr(nodes, "witnessed", lambda routers, endpoints, now: set())


def gives_nodes_up_in_doubt(patch):
    """HA-01: silent nodes are declared lost by a leader that may be none."""
    original = nodes.tick

    def tick(fleet, now):
        lease = fleet.view.lease
        fleet.view.lease = replace(lease, doubtful=False, doubted=False)
        try:
            return original(fleet, now)
        finally:
            fleet.view.lease = lease

    patch.setattr(nodes, "tick", tick)
