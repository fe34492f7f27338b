"""Session and machine put together: the whole agent as one pure machine.

A driver or the simulator feeds it every event, with the monotonic time, and carries
out what comes back. Reports, deliveries and welcomes stay inside. A session begins
once the agent knows what runs here and what the node has.
"""

import random

from msgspec.structs import replace

from agent import credentials, events, session
from agent.credentials import Credentials
from agent.events import Notice
from agent.machine import Machine
from agent.rounds import Rounds
from agent.session import Session
from llmgw.runtime.kinds import Address
from llmgw.wire.messages import Credential, Forget, Hello, Start, Stop, Welcome

Event = events.Event | session.Event | credentials.Event

Effect = (
    events.Save
    | events.Validate
    | events.Launch
    | events.Watch
    | events.Probe
    | events.Signal
    | events.KillUnidentified
    | session.Search
    | session.Connect
    | session.Send
    | session.Disconnect
    | credentials.MakeRequest
    | credentials.Install
    | Notice
)
"""What a driver carries out."""

_SESSION_EVENTS = (session.Opened, session.Received, session.Closed, session.ShutDown, session.Found)
_CREDENTIALS_EVENTS = (credentials.Held, credentials.Requested, credentials.NotRequested, credentials.Installed)


class Agent:
    """The agent of one node. ``handle`` takes any event, ``events.Woke`` when
    ``next_wake`` is reached. ``session.ShutDown`` ends the session for good and leaves
    every engine running (AGT-09). ``searches`` says that control planes are looked for in
    the network."""

    def __init__(
        self, node_id: str, version: str, addresses: tuple[Address, ...], rng: random.Random, searches: bool = False
    ) -> None:
        self.machine = Machine(node_id, version)
        self.credentials = Credentials(rng)
        self.session = Session(
            Rounds(addresses, rng, searches),
            hello=self._hello,
            registration=self.machine.registration,
            measurements=self.machine.measurements,
            objection=self._objection,
        )

    @property
    def next_wake(self) -> float | None:
        """When to feed ``events.Woke``."""
        wakes = [self.machine.next_wake, self.credentials.next_wake]
        if self.machine.ready_to_register:
            wakes.append(self.session.next_wake)
        return min((wake for wake in wakes if wake is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event; the effects are to be carried out in order."""
        effects: list[Effect] = []
        if isinstance(event, _SESSION_EVENTS):
            self._route(self.session.handle(event, now), now, effects)
        elif isinstance(event, _CREDENTIALS_EVENTS):
            self._route(self.credentials.handle(event, now), now, effects)
        else:
            self._route(self.machine.handle(event, now), now, effects)
        if isinstance(event, events.Woke):
            if self.machine.ready_to_register:
                self._route(self.session.wake(now), now, effects)
            self._route(self.credentials.wake(now), now, effects)
        self.credentials.session(self.session.live, now)
        return effects

    def _hello(self, now: float) -> Hello:
        return replace(self.machine.hello(now), authorities=self.credentials.authorities)

    def _objection(self, welcome: Welcome) -> str:
        return self.machine.allegiance.objection(welcome.epoch, welcome.leader)

    def _route(
        self,
        produced: list[events.Effect] | list[session.Effect] | list[credentials.Effect],
        now: float,
        out: list[Effect],
    ) -> None:
        for effect in produced:
            match effect:
                case events.Report(message):
                    self._route(self.session.report(message), now, out)
                case session.Established(welcome):
                    seen = events.EpochSeen(welcome.epoch, welcome.leader)
                    self._route(self.machine.handle(seen, now), now, out)
                case session.Deliver(message):
                    self._deliver(message, now, out)
                case _:
                    out.append(effect)

    def _deliver(self, message: Start | Stop | Forget | Credential, now: float, out: list[Effect]) -> None:
        if isinstance(message, Credential):
            self._route(self.credentials.received(message, now), now, out)
        else:
            self._route(self.machine.handle(events.Commanded(message), now), now, out)
