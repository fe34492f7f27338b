"""The agent's session with a control plane, as a pure machine (AGT-03).

It dials, greets, registers, beats and listens; when the connection ends, for
whatever reason, it dials again, for ever. It never touches an engine. A round tries
every address once; rounds are spaced by exponential backoff with jitter, counted
from the start of the round, so that an agent never stays away for much longer than
``BACKOFF_LIMIT`` (the control plane's settling outlasts it, REC-24).

Each connection is an *attempt* with its own number. The next one begins only after
the driver has said that the old one ended, so there is one session at a time.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agent.events import Notice
from llmgw.runtime.kinds import Address
from llmgw.wire.messages import (
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

BACKOFF_FIRST = 0.5
"""Seconds: upper end of the first wait."""

BACKOFF_LIMIT = 30.0
"""Seconds: the longest wait between two rounds."""

CONNECT_TIMEOUT = 5.0
"""Seconds for one address to connect and to answer the upgrade."""

WELCOME_TIMEOUT = 10.0
"""Seconds from hello to welcome."""

_LONGEST_WAIT = 300.0

Phase = Literal["waiting", "connecting", "greeting", "live", "closing", "stopped"]


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


Event = Opened | Received | Closed | ShutDown

# ---------------------------------------------------------------- effects


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
    """A command for the agent's machine."""

    message: Start | Stop | Forget


Effect = Connect | Send | Disconnect | Established | Deliver | Notice


class Session:
    """See the module. ``hello``, ``registration`` and ``measurements`` are asked for
    content at the moment it is sent; each gets ``now``."""

    def __init__(
        self,
        addresses: tuple[Address, ...],
        rng: random.Random,
        hello: Callable[[float], Hello],
        registration: Callable[[float], Register],
        measurements: Callable[[float], Measurements],
    ) -> None:
        if not addresses:
            raise ValueError("a session needs at least one address")
        self._addresses = addresses
        self._rng = rng
        self._hello = hello
        self._registration = registration
        self._measurements = measurements
        self.phase: Phase = "waiting"
        self.attempt = 0
        self.address: Address | None = None
        self.welcome: Welcome | None = None
        self.unknown_messages = 0
        self.last_error = ""
        self.next_wake: float | None = 0.0
        self._first = 0
        self._tried = 0
        self._failures = 0
        self._redirect: Address | None = None
        self._redirected = False
        self._round_started: float | None = None
        self._least_wait = 0.0
        self._spread: float | None = None
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
            case "waiting":
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
        if self._redirect is not None:
            self.address, self._redirect = self._redirect, None
        else:
            if self._tried == 0:
                self._round_started = now
            self.address = self._addresses[(self._first + self._tried) % len(self._addresses)]
            self._tried += 1
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
        self.phase = "waiting"
        if was_live and self.address in self._addresses:
            # Begin the next round where it last worked.
            self._first = self._addresses.index(self.address)
        if self._redirect is not None:
            self.next_wake = now
        elif self._spread is not None:
            self.next_wake = now + self._rng.uniform(0.0, self._spread)
            self._end_round()
        elif 0 < self._tried < len(self._addresses) and not was_live:
            self.next_wake = now + max(self._least_wait, self._rng.uniform(0.0, 0.1))
        else:
            self.next_wake = self._next_round(now, was_live)
        self._spread = None
        self._least_wait = 0.0
        wait = round(self.next_wake - now, 2)
        return [Notice("warning", f"no session: {reason}", {"address": str(self.address), "retry_in": wait})]

    def _next_round(self, now: float, was_live: bool) -> float:
        """Full backoff, counted from the start of the round that failed."""
        limit = min(BACKOFF_LIMIT, BACKOFF_FIRST * 2.0 ** min(self._failures, 16))
        self._failures += 1
        drawn = self._rng.uniform(limit / 2, limit)
        started = now if was_live or self._round_started is None else self._round_started
        self._end_round()
        return max(started + drawn, now + self._rng.uniform(0.0, 0.5), now + self._least_wait)

    def _end_round(self) -> None:
        self._tried = 0
        self._redirected = False
        self._round_started = None

    # ------------------------------------------------------------ messages

    def _received(self, message: Down | Unknown, now: float) -> list[Effect]:
        if isinstance(message, Unknown):
            self.unknown_messages += 1
            return [Notice("debug", "ignored a message of a newer control plane", {"kind": message.kind})]
        if isinstance(message, Refuse):
            return self._refused(message)
        if isinstance(message, Goodbye):
            self._spread = _bounded(message.spread_seconds, 0.0, _LONGEST_WAIT)
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
                # It stands: a peer that fails right after each welcome must not be hammered.
                self._failures = 0
            return []
        return [Deliver(message)]

    def _welcomed(self, welcome: Welcome, now: float) -> list[Effect]:
        self.phase = "live"
        self.welcome = welcome
        self._end_round()
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

    def _refused(self, refuse: Refuse) -> list[Effect]:
        if refuse.retry_seconds is not None:
            self._least_wait = _bounded(refuse.retry_seconds, 0.0, _LONGEST_WAIT)
        if refuse.code == "superseded":
            # Another agent runs under this node's name: the two must not evict each other in a tight loop.
            self._least_wait = max(self._least_wait, BACKOFF_LIMIT)
        leader = _leader(refuse)
        if leader is not None and not self._redirected:
            # Once per round: two standbys that name each other must not make a tight loop.
            self._redirected = True
            self._redirect = leader
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
