"""Bugs put into the real machines on purpose. Each must be found by some seed.

A mutation is a function that patches the product for one test. What it breaks is
said in its docstring.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from agent import events as agent_events
from agent import session
from agent.allegiance import Allegiance
from agent.core import Agent
from agent.machine import Machine
from agent.shard import Shard
from controlplane.events import Commit, Committed, ServingSet
from controlplane.fleet import dispatch, intents, lead, nodelife, nodes, restarts, sessions
from controlplane.leadership.lease import Answered, Lease
from controlplane.loop import Loop
from controlplane.planning import check, explain, heal, reconcile, state, step, wanted
from controlplane.planning.candidates import Candidates
from controlplane.planning.view import FleetView, ShardView
from controlplane.publish.providers import ProviderKeys
from controlplane.publish.table import Publisher
from llmgw.sim import router_process
from llmgw.sim.host import Host
from llmgw.sim.lease_keeper import LeaseKeeper
from llmgw.sim.store import SimStore
from llmgw.wire.messages import Start

Mutation = Callable[[pytest.MonkeyPatch], None]


def no_deduplication(patch):
    """AGT-04: the agent takes a repeated start for a new one."""
    original = Machine._command

    def command(self, message, now):
        if isinstance(message, Start):
            self._commands.pop(message.command_id, None)
            self.shards.pop(message.spec.key, None)
            self.exits.pop(message.spec.key, None)
        return original(self, message, now)

    patch.setattr(Machine, "_command", command)


def dispatch_before_commit(patch):
    """Commit, then dispatch: the loop sends commands while their decision is still on its way to the disk."""
    original = Loop.run_pass

    def run_pass(self, now):
        effects = yield from original(self, now)
        batches = [effect.batch for effect in effects if isinstance(effect, Commit)]
        return [*effects, *(sent for batch in batches for sent in self.handle(Committed(batch), now))]

    patch.setattr(Loop, "run_pass", run_pass)


def claims_end_too_early(patch):
    """PLC-13: a stopping shard's claims are released before its exit is confirmed."""
    patch.setattr(ShardView, "live", property(lambda self: self.phase not in ("exited", "lost", "stopping")))


def launch_without_record(patch):
    """AGT-07: the engine is launched before its spec is on disk."""

    def begin(self):
        self.phase = "validating"
        return [agent_events.Validate(self.spec)]

    patch.setattr(Shard, "begin", begin)


def any_process_of_that_pid(patch):
    """AGT-07: a process is taken for the recorded one by its pid alone."""
    patch.setattr(Host, "find", lambda self, process: self.procs.get(process.pid) if process is not None else None)


def stopping_the_agent_stops_engines(patch):
    """AGT-09: the agent ends its engines when it is told to stop."""
    original = Agent.handle

    def handle(self, event, now):
        effects = original(self, event, now)
        if isinstance(event, session.ShutDown):
            effects = [*effects, *(agent_events.Signal(key, "KILL") for key in self.machine.shards)]
        return effects

    patch.setattr(Agent, "handle", handle)


def gone_with_the_main_process(patch):
    """AGT-06: a shard counts as gone when its main process ended, whatever else of it lives."""

    def exited(self, exit_status, now):
        return self._end(exit_status, (), None) if self.holds_process else []

    patch.setattr(Shard, "exited", exited)


def stopped_once_told(patch):
    """AGT-06: a stop is taken for done when the signal is sent."""
    original = Shard.stop

    def stop(self, reason, grace, now):
        effects = original(self, reason, grace, now)
        return effects if self.exit is not None else [*effects, *self._end(None, (), None)]

    patch.setattr(Shard, "stop", stop)


def adopts_nothing(patch):
    """AGT-07: an agent that starts knows nothing of its disk, and kills what it finds."""
    original = Machine.handle

    def handle(self, event, now):
        if isinstance(event, agent_events.Booted):
            event = agent_events.Booted(event.boot_id, event.state, (), event.found)
        return original(self, event, now)

    patch.setattr(Machine, "handle", handle)


def no_higher_epoch_is_asked_for(patch):
    """AGT-04: a control plane with a restored store goes on with its low epoch."""
    patch.setattr(lead, "granted", lambda fleet, epoch: None)


def gives_up_without_asking(patch):
    """AGT-09: an agent that was away ends an engine whose start-up deadline passed meanwhile."""
    patch.setattr(Shard, "_asked", property(lambda self: math.inf, lambda self, value: None), raising=False)


def routers_forget_while_settling(patch):
    """REC-25: a router drops what a control plane that has just started does not know yet."""
    patch.setattr(router_process, "settle", lambda known, fresh: fresh)


def registration_clears_labels(patch):
    """PLC-03: an agent that registers takes people's labels off its node."""
    original = sessions.register

    def register(fleet, node, message, now):
        node.own_labels = {}
        original(fleet, node, message, now)

    patch.setattr(sessions, "register", register)


def holds_end_with_the_process(patch):
    """PLC-15: a control plane that starts knows no hold of before."""
    original = Loop.__init__

    def init(self, *args, **options):
        original(self, *args, **options)
        self.view.holds = {}

    patch.setattr(Loop, "__init__", init)


def holds_keep_nothing_out(patch):
    """PLC-15: neither placement nor the check looks at holds."""
    patch.setattr(FleetView, "held", lambda self, node: ())
    patch.setattr(check, "_place", _unheld(check._place))


def _unheld(original):
    def place(action, view, use, alive):
        return (message for message in original(action, view, use, alive) if "which is held" not in message)

    return place


def stopping_stops_nothing(patch):
    """REC-31: models want their replicas also while serving is stopped."""
    original = wanted.wanted

    def want(view, name):
        served, view.serving = view.serving, ServingSet(stopped=False)
        try:
            return original(view, name)
        finally:
            view.serving = served

    for module in (wanted, step, reconcile, restarts):
        patch.setattr(module, "wanted", want)


def starting_brings_nothing_back(patch):
    """REC-31: ``llmgw start`` is not heard."""
    original = intents.set_serving
    patch.setattr(intents, "set_serving", lambda fleet, event: original(fleet, event) if event.stopped else None)


def replaced_too_early(patch):
    """REC-30: the old replica drains while its replacement still loads, and nobody checks."""

    def replaced(self, group):
        for replica in group:
            if replica.restart == "replacing":
                self._end(replica, "replaced", "replaced")

    patch.setattr(step.Step, "_replaced", replaced)
    patch.setattr(check, "_restarts", lambda action, view, restarts: ())


def the_old_one_still_counts(patch):
    """REC-30: a replica that is being replaced counts beside its replacement."""

    def counts(replica):
        going = replica.surplus or replica.unwanted
        return not going and replica.state in ("placing", "starting", "ready", "stopping")

    for module in (wanted, step, reconcile, restarts, explain, state):
        patch.setattr(module, "counts", counts)


def a_failed_replacement_is_not_noticed(patch):
    """REC-30: the old replica goes on not to count after its replacement failed."""
    patch.setattr(restarts, "_comes", lambda view, restart: True)


def keys_are_read_once(patch):
    """CAT-10: a key file that changes is not read again."""
    original = ProviderKeys.look

    def look(self):
        if not self._files <= self._told.keys() or any(self._told.values()):
            original(self)

    patch.setattr(ProviderKeys, "look", look)


def endpoints_without_their_key(patch):
    """CAT-10: the publisher sends external endpoints out as the loop made them."""
    patch.setattr(Publisher, "_with_key", lambda self, model, files: model)


def answers_are_kept_for_ever(patch):
    """PLC-13: what a node answered once is not asked again after its claims or facts changed."""
    patch.setattr(Candidates, "_mark", lambda self, node_id: None)


# ---------------------------------------------------------------- who leads


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
    original = Lease._ours

    def ours(self, row, asked, now):
        self._margin = 0.0
        return original(self, row, asked, now)

    patch.setattr(Lease, "_ours", ours)


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
            self._asking, self._claim, self.failing, self.row = False, None, "", row
            return self._ours(row, event.asked, now)
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


def nobody_compares_epochs(patch):
    """AGT-04: an agent takes the welcome and the commands of whoever comes, and no control
    plane minds whom it obeyed before. (Either of the two is enough.)"""
    patch.setattr(Allegiance, "objection", lambda self, epoch, leader: "")
    patch.setattr(lead, "unproven", lambda *_, **__: False)


def routers_follow_anybody(patch):
    """HA-01: a router takes whatever table it gets."""
    patch.setattr(router_process.epochs, "objection", lambda *_: "")


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


MUTATIONS: tuple[tuple[Mutation, tuple[str, ...]], ...] = (
    (no_deduplication, ("answer-lost", "stall", "scale", "engine-crash")),
    (dispatch_before_commit, ("slow-journal", "scale")),
    (claims_end_too_early, ("scale", "temper", "engine-crash")),
    (launch_without_record, ("agent-crash-between-effects", "agent-crash", "scale", "engine-crash")),
    (any_process_of_that_pid, ("pid-reused", "agent-crash")),
    (stopping_the_agent_stops_engines, ("agent-stop", "scale")),
    (gone_with_the_main_process, ("engine-crash", "scale", "temper")),
    (stopped_once_told, ("scale", "temper")),
    (adopts_nothing, ("agent-crash", "scale")),
    (no_higher_epoch_is_asked_for, ("store-restored", "control-crash", "scale")),
    (gives_up_without_asking, ("agent-crash", "agent-pause", "temper", "engine-crash", "disk")),
    (routers_forget_while_settling, ()),
    (registration_clears_labels, ("label", "agent-stop", "partition")),
    (holds_end_with_the_process, ("hold", "control-crash")),
    (holds_keep_nothing_out, ("hold", "label", "engine-crash", "scale")),
    (stopping_stops_nothing, ("serving", "scale")),
    (starting_brings_nothing_back, ("serving",)),
    (replaced_too_early, ("restart", "scale")),
    (the_old_one_still_counts, ("restart", "scale")),
    (a_failed_replacement_is_not_noticed, ("restart", "temper", "engine-crash")),
    (keys_are_read_once, ("provider",)),
    (endpoints_without_their_key, ("provider",)),
    (answers_are_kept_for_ever, ("scale", "engine-crash")),
    (the_lease_goes_by_the_wall_clock, ("host-clock", "store-partition", "control-pause", "scale")),
    (the_stores_clock_decides, ("store-clock",)),
    (acts_to_the_end_of_its_claim, ("store-partition", "store-away", "scale")),
    (never_in_doubt, ("store-partition", "store-away", "scale")),
    (decided_before_done_in_doubt, ("slow-journal", "store-partition", "scale")),
    (heals_elsewhere, ("store-partition", "store-away", "engine-crash")),
    (claims_by_reading_and_writing, ("late-claim", "store-partition", "control-pause")),
    (a_look_is_a_claim, ("cut-at-takeover", "control-crash")),
    (a_release_is_not_asked_whose, ("late-claim", "control-stop", "control-pause", "store-partition")),
    (a_new_leader_has_the_old_epoch, ("control-crash",)),
    (raises_its_epoch_by_itself, ("store-partition", "control-pause", "control-isolated", "agent-crash")),
    (forgets_the_epoch, ("store-partition", "agent-crash", "partition", "control-isolated")),
    (nobody_compares_epochs, ("store-partition", "partition", "control-isolated", "control-pause")),
    (routers_follow_anybody, ("store-partition", "router-partition", "control-isolated", "control-pause")),
    (nodes_never_heard_are_not_counted, ("mass-silence", "control-stop")),
    (mass_loss_is_loss, ("mass-silence",)),
    (all_lost_at_once, ("partition", "host-reboot")),
    (routers_are_not_asked, ("partition",)),
)
"""Each with the kinds of faults that provoke it; none = the usual storm."""

FOUND_BY: dict[Mutation, int] = {
    no_deduplication: 3,
    stopped_once_told: 5,
    gives_up_without_asking: 20,
    routers_forget_while_settling: 10,
    a_failed_replacement_is_not_noticed: 27,
    acts_to_the_end_of_its_claim: 11,
    decided_before_done_in_doubt: 1,
    heals_elsewhere: 4,
    a_release_is_not_asked_whose: 4,
    forgets_the_epoch: 7,
    nobody_compares_epochs: 3,
    nodes_never_heard_are_not_counted: 55,
}
"""A seed that found it: where to begin to look. Not needed for the result, only for the time."""
