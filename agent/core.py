"""Session and machine put together: the whole agent as one pure machine.

A driver or the simulator feeds it every event, with the monotonic time, and carries
out what comes back. Reports, deliveries and welcomes stay inside. A session begins
once the agent knows what runs here and what the node has.
"""

import random

from agent import events, session
from agent.events import Notice
from agent.machine import Machine
from agent.session import Session
from llmgw.runtime.kinds import Address

Event = events.Event | session.Event

Effect = (
    events.Save
    | events.Validate
    | events.Launch
    | events.Watch
    | events.Probe
    | events.Signal
    | events.KillUnidentified
    | session.Connect
    | session.Send
    | session.Disconnect
    | Notice
)
"""What a driver carries out."""

_SESSION_EVENTS = (session.Opened, session.Received, session.Closed, session.ShutDown)


class Agent:
    """The agent of one node. ``handle`` takes any event, ``events.Woke`` when
    ``next_wake`` is reached. ``session.ShutDown`` ends the session for good and leaves
    every engine running (AGT-09)."""

    def __init__(self, node_id: str, version: str, addresses: tuple[Address, ...], rng: random.Random) -> None:
        self.machine = Machine(node_id, version)
        self.session = Session(
            addresses,
            rng,
            hello=self.machine.hello,
            registration=self.machine.registration,
            measurements=self.machine.measurements,
        )

    @property
    def next_wake(self) -> float | None:
        """When to feed ``events.Woke``."""
        wakes = [self.machine.next_wake]
        if self.machine.ready_to_register:
            wakes.append(self.session.next_wake)
        return min((wake for wake in wakes if wake is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event; the effects are to be carried out in order."""
        effects: list[Effect] = []
        if isinstance(event, _SESSION_EVENTS):
            self._route(self.session.handle(event, now), now, effects)
        else:
            self._route(self.machine.handle(event, now), now, effects)
        if isinstance(event, events.Woke) and self.machine.ready_to_register:
            self._route(self.session.wake(now), now, effects)
        return effects

    def _route(self, produced: list[events.Effect] | list[session.Effect], now: float, out: list[Effect]) -> None:
        for effect in produced:
            match effect:
                case events.Report(message):
                    self._route(self.session.report(message), now, out)
                case session.Established(welcome):
                    self._route(self.machine.handle(events.EpochSeen(welcome.epoch), now), now, out)
                case session.Deliver(message):
                    self._route(self.machine.handle(events.Commanded(message), now), now, out)
                case _:
                    out.append(effect)
