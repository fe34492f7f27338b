"""Bugs about engines, replicas, and what people want of them."""

import math

from agent import events as agent_events
from agent import session
from agent.core import Agent
from agent.machine import Machine
from agent.shard import Shard
from controlplane.events import Commit, Committed, ServingSet
from controlplane.fleet import intents, lead, restarts, sessions
from controlplane.loop import Loop
from controlplane.planning import check, explain, reconcile, state, step, wanted
from controlplane.planning.candidates import Candidates
from controlplane.planning.view import FleetView, ShardView
from controlplane.publish.providers import ProviderKeys
from controlplane.publish.table import Publisher
from llmgw.sim import router_process
from llmgw.sim.host import Host
from llmgw.wire.messages import Start


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
