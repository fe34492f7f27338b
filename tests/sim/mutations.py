"""Bugs put into the real machines on purpose. Each must be found by some seed.

A mutation is a function that patches the product for one test. What it breaks is
said in its docstring.
"""

import math
from collections.abc import Callable

import pytest

from agent import events as agent_events
from agent import session
from agent.core import Agent
from agent.machine import Machine
from agent.shard import Shard
from controlplane.events import Commit, Committed
from controlplane.fleet import sessions
from controlplane.loop import Loop
from controlplane.planning.view import ShardView
from llmgw.sim import router_process
from llmgw.sim.host import Host
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


def the_epoch_stays_low(patch):
    """AGT-04: a control plane with a restored store goes on with its low epoch."""
    original = sessions.opened

    def opened(fleet, event, now):
        epoch = fleet.epoch
        original(fleet, event, now)
        fleet.epoch = epoch

    patch.setattr(sessions, "opened", opened)


def gives_up_without_asking(patch):
    """AGT-09: an agent that was away ends an engine whose start-up deadline passed meanwhile."""
    patch.setattr(Shard, "_asked", property(lambda self: math.inf, lambda self, value: None), raising=False)


def routers_forget_while_settling(patch):
    """REC-25: a router drops what a control plane that has just started does not know yet."""
    patch.setattr(router_process, "settle", lambda known, fresh: fresh)


MUTATIONS: tuple[tuple[Mutation, tuple[str, ...]], ...] = (
    (no_deduplication, ("answer-lost", "stall", "scale", "engine-crash")),
    (dispatch_before_commit, ("slow-journal", "scale")),
    (claims_end_too_early, ("scale", "temper", "engine-crash")),
    (launch_without_record, ("agent-crash-between-effects", "agent-crash", "scale", "engine-crash")),
    (any_process_of_that_pid, ("pid-reused", "agent-crash")),
    (stopping_the_agent_stops_engines, ("agent-stop", "scale")),
    (gone_with_the_main_process, ("engine-crash", "scale", "temper")),
    (stopped_once_told, ("scale", "temper", "engine-crash")),
    (adopts_nothing, ("agent-crash", "scale")),
    (the_epoch_stays_low, ("store-restored", "control-crash", "scale")),
    (gives_up_without_asking, ("agent-crash", "agent-pause", "temper", "engine-crash", "disk")),
    (routers_forget_while_settling, ()),
)
"""Each with the kinds of faults that provoke it; none = the usual storm."""
