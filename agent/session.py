"""The agent's session with a control plane, as a pure machine (AGT-03).

It dials, greets, registers, beats and listens; when the connection ends, for
whatever reason, it dials again, for ever (``agent.rounds`` says where and when). It
never touches an engine. A welcome of a control plane that a later one has replaced is
declined (AGT-04).

Each connection is an *attempt* with its own number. The next one begins only after
the driver has said that the old one ended, so there is one session at a time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agent.events import Notice
from agent.rounds import LONGEST_WAIT, Rounds
from llmgw.runtime.kinds import Address
from llmgw.wire.messages import (
    Credential,
    Down,
    Forget,
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Measurements,
    Refuse,
    Register,
    Start,
    Stop,
    Unknown,
    Up,
    Welcome,
)
from llmgw.wire.versions import RECONNECT_LIMIT

CONNECT_TIMEOUT = 10.0
"""Seconds for one address to connect, to prove itself and to answer the upgrade: when a
whole fleet returns at once, handshakes wait for their turn."""

WELCOME_TIMEOUT = 10.0
"""Seconds from hello to welcome."""

SEARCH_TIMEOUT = 10.0
"""Seconds to look for control planes in the network."""

Phase = Literal["waiting", "searching", "connecting", "greeting", "live", "closing", "stopped"]


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Opened:
    """The upgrade was accepted: frames may flow."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message came in."""

    attempt: int
    message: Down | Unknown


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection of this attempt is gone, or could not be made. Sent exactly
    once for each ``Connect``, also after ``Disconnect``."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The agent is stopping: say nothing, disconnect, stay away (AGT-09)."""


@dataclass(frozen=True, slots=True)
class Found:
    """Answer to ``Search``: the agent listeners that were found, if any."""

    addresses: tuple[Address, ...]


Event = Opened | Received | Closed | ShutDown | Found

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Search:
    """Look for control planes in the network, and answer ``Found``."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection and upgrade it, within ``CONNECT_TIMEOUT``."""

    attempt: int
    address: Address


@dataclass(frozen=True, slots=True)
class Send:
    """Put a frame on the connection."""

    attempt: int
    message: Up


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection, then answer ``Closed``."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Established:
    """The control plane welcomed us; the registration follows at once."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class Deliver:
    """What is not the session's own business: commands, and credentials."""

    message: Start | Stop | Forget | Credential


Effect = Search | Connect | Send | Disconnect | Established | Deliver | Notice


class Session:
    """See the module. ``hello``, ``registration`` and ``measurements`` are asked for
    content at the moment it is sent; each gets ``now``. ``objection`` says why a welcome
    must be declined, or nothing."""

    def __init__(
        self,
        rounds: Rounds,
        hello: Callable[[float], Hello],
        registration: Callable[[float], Register],
        measurements: Callable[[float], Measurements],
        objection: Callable[[Welcome], str],
    ) -> None:
        self._rounds = rounds
        self._hello = hello
        self._registration = registration
        self._measurements = measurements
        self._objection = objection
        self.phase: Phase = "waiting"
        self.attempt = 0
        self.address: Address | None = None
        self.welcome: Welcome | None = None
        self.unknown_messages = 0
        self.last_error = ""
        self.next_wake: float | None = 0.0
        self._sequence = 0
        self._next_heartbeat = 0.0
        self._silent_at = 0.0

    @property
    def live(self) -> bool:
        """Whether the node is registered and messages get through."""
        return self.phase == "live"

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in what happened on the connection."""
        match event:
            case ShutDown():
                return self._shut_down()
            case Found(addresses):
                self._rounds.found(addresses)
                return self._connect(now) if self.phase == "searching" else []
            case Closed(attempt, reason) if attempt == self.attempt:
                return self._closed(reason, now)
            case Opened(attempt) if attempt == self.attempt and self.phase == "connecting":
                self.phase = "greeting"
                self.next_wake = now + WELCOME_TIMEOUT
                return [Send(attempt, self._hello(now))]
            case Received(attempt, message) if attempt == self.attempt and self.phase in ("greeting", "live"):
                return self._received(message, now)
        return []

    def wake(self, now: float) -> list[Effect]:
        """Do what is due. Harmless when nothing is."""
        if self.next_wake is None or now < self.next_wake:
            return []
        match self.phase:
            case "waiting" if self._rounds.must_search:
                self.phase = "searching"
                self.next_wake = now + SEARCH_TIMEOUT
                return [Search()]
            case "waiting" | "searching":
                return self._connect(now)
            case "connecting" | "greeting":
                what = "did not accept the connection" if self.phase == "connecting" else "did not answer the hello"
                return self._disconnect(f"{self.address} {what} in time")
            case "live":
                return self._beat(now)
        self.next_wake = None
        return []

    def report(self, message: Up) -> list[Effect]:
        """Send a message now if the session is live; otherwise the next registration
        tells it, so it is dropped here."""
        return [Send(self.attempt, message)] if self.live else []

    # ------------------------------------------------------------ dialling

    def _connect(self, now: float) -> list[Effect]:
        self.address = self._rounds.next(now)
        if self.address is None:
            return self._wait("no control plane was found in the network", False, now)
        self.attempt += 1
        self.phase = "connecting"
        self.next_wake = now + CONNECT_TIMEOUT
        return [Connect(self.attempt, self.address)]

    def _closed(self, reason: str, now: float) -> list[Effect]:
        if self.phase == "stopped":
            return []
        was_live, self.welcome = self.welcome is not None, None
        reason = self.last_error or reason
        self.last_error = ""
        return self._wait(reason, was_live, now)

    def _wait(self, reason: str, was_live: bool, now: float) -> list[Effect]:
        self.phase = "waiting"
        self.next_wake = self._rounds.lost(self.address, was_live, now)
        fields = {"address": str(self.address)} if self.address is not None else {}
        wait = round(self.next_wake - now, 2)
        return [Notice("warning", f"no session: {reason}", {**fields, "retry_in": wait})]

    # ------------------------------------------------------------ messages

    def _received(self, message: Down | Unknown, now: float) -> list[Effect]:
        if isinstance(message, Unknown):
            self.unknown_messages += 1
            return [Notice("debug", "ignored a message of a newer control plane", {"kind": message.kind})]
        if isinstance(message, Refuse):
            return self._refused(message, now)
        if isinstance(message, Goodbye):
            self._rounds.spread(_bounded(message.spread_seconds, 0.0, LONGEST_WAIT))
            return self._disconnect(f"{self.address} is going away: {message.reason}")
        if self.phase == "greeting":
            if isinstance(message, Welcome):
                return self._welcomed(message, now)
            return self._disconnect(f"{self.address} sent {type(message).__name__} before it answered the hello")
        if isinstance(message, Welcome):
            return self._disconnect(f"{self.address} sent a second welcome")
        self._silent_at = now + self._silence
        self._set_wake()
        if isinstance(message, HeartbeatAck):
            if message.sequence == self._sequence:
                self._rounds.proven()
            return []
        return [Deliver(message)]

    def _welcomed(self, welcome: Welcome, now: float) -> list[Effect]:
        if objection := self._objection(welcome):
            return self._disconnect(f"{self.address} is not obeyed: {objection}")
        self.phase = "live"
        self.welcome = welcome
        self._rounds.welcomed()
        self._sequence = 0
        self._heartbeat = _bounded(welcome.heartbeat_seconds, 0.05, 60.0)
        self._silence = max(_bounded(welcome.silence_seconds, 0.1, 300.0), self._heartbeat * 1.5)
        self._next_heartbeat = now
        self._silent_at = now + self._silence
        self._set_wake()
        return [
            Established(welcome),
            Send(self.attempt, self._registration(now)),
            Notice(
                "info",
                "session established",
                {"address": str(self.address), "session": welcome.session_id, "epoch": welcome.epoch},
            ),
        ]

    def _refused(self, refuse: Refuse, now: float) -> list[Effect]:
        if refuse.retry_seconds is not None:
            self._rounds.wait_at_least(_bounded(refuse.retry_seconds, 0.0, LONGEST_WAIT))
        if refuse.code == "superseded":
            # Another agent runs under this node's name: the two must not evict each other in a tight loop.
            self._rounds.wait_at_least(RECONNECT_LIMIT)
        if refuse.code == "not_leader" and refuse.takeover_seconds is not None:
            self._rounds.expect(self.address, now + _bounded(refuse.takeover_seconds, 0.0, LONGEST_WAIT))
        leader = _leader(refuse)
        if leader is not None:
            self._rounds.redirect(leader)
        return self._disconnect(f"{self.address} refused: {refuse.message} ({refuse.code})")

    # ------------------------------------------------------------ life

    def _beat(self, now: float) -> list[Effect]:
        if now >= self._silent_at:
            return self._disconnect(f"nothing was heard from {self.address} for {self._silence:g} s")
        effects: list[Effect] = []
        if now >= self._next_heartbeat:
            self._sequence += 1
            effects.append(Send(self.attempt, Heartbeat(sequence=self._sequence, measurements=self._measurements(now))))
            self._next_heartbeat = now + self._heartbeat
        self._set_wake()
        return effects

    def _set_wake(self) -> None:
        self.next_wake = min(self._next_heartbeat, self._silent_at)

    def _disconnect(self, reason: str) -> list[Effect]:
        self.phase = "closing"
        self.last_error = reason
        self.next_wake = None
        return [Disconnect(self.attempt, reason)]

    def _shut_down(self) -> list[Effect]:
        connected = self.phase in ("connecting", "greeting", "live")
        self.phase = "stopped"
        self.next_wake = None
        return [Disconnect(self.attempt, "the agent is stopping")] if connected else []

    _heartbeat = 10.0
    _silence = 30.0


def _bounded(value: float, low: float, high: float) -> float:
    """A duration from outside, made safe (also against NaN)."""
    return low if math.isnan(value) else min(max(value, low), high)


def _leader(refuse: Refuse) -> Address | None:
    """The address a refusal points to, if it is one."""
    if refuse.code != "not_leader" or not refuse.leader:
        return None
    host, separator, port = refuse.leader.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        return None
    return Address(host, int(port))
