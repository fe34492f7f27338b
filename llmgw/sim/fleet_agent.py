"""One node of a simulated fleet: the real agent's session over a real connection, with
drawn measurements, and shards that become ready without an engine.

The session (``agent.session``) is the product's own, and with it when a node dials, how
long it waits and whom it obeys.
"""

import contextlib
import heapq
import json
import socket
import ssl
import time
from collections.abc import Callable
from typing import Protocol

import gevent

from agent import session as machine
from agent.allegiance import Allegiance
from agent.rounds import Rounds
from agent.session import CONNECT_TIMEOUT, Closed, Opened, Received, Session
from llmgw import __version__
from llmgw.identity.names import IdentityError
from llmgw.identity.tls import explain
from llmgw.runtime.settings import Address
from llmgw.sim.fleet_node import Node
from llmgw.wire.frames import FrameError, down_decoder, encode
from llmgw.wire.messages import (
    CommandResult,
    Down,
    Goodbye,
    Heartbeat,
    Hello,
    Refuse,
    Register,
    ShardChanged,
    ShardExit,
    ShardExited,
    ShardKey,
    ShardStatus,
    Start,
    Stop,
    Unknown,
    Up,
    Welcome,
)
from llmgw.wire.versions import OLDEST_PROTOCOL, PROTOCOL, UPGRADE

START_SECONDS = 0.5
SEND_TIMEOUT = 20.0
MAX_HEAD = 16 * 1024
RECORD = 16 * 1024
"""Bytes that one read takes: what a record of TLS holds."""


def _code(sock: ssl.SSLSocket, body: bytes) -> str:
    """The code of a refusal in JSON, if there is one; its words name the node."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        while b"}" not in body and len(body) < MAX_HEAD and (more := sock.recv(RECORD)):
            body += more
        return f" ({str(json.loads(body)['code'])[:40]})"
    return ""


class Told(Protocol):
    """Who is told of what happens to a node, for the figures."""

    def entered(self) -> None:
        """It is in session."""

    def left(self, why: str) -> None:
        """Its session ended."""

    def turned_away(self, why: str) -> None:
        """A try came to nothing."""

    def shook_hands(self, seconds: float) -> None:
        """A connection stands, and took so long."""

    def beat(self) -> None:
        """A heartbeat was sent."""


class Agent:
    """The agent of a node, one greenlet. ``connect`` makes a connection secure as this node.
    ``heartbeat`` seconds instead of what the control plane asks for, if given."""

    def __init__(
        self,
        node: Node,
        addresses: tuple[Address, ...],
        connect: Callable[[socket.socket, float], ssl.SSLSocket],
        told: Told,
        *,
        authorities: str = "",
        heartbeat: float | None = None,
    ) -> None:
        self.node = node
        self._secure = connect
        self._told = told
        self._authorities = authorities
        self._heartbeat = heartbeat
        self._allegiance = Allegiance()
        self._last_command: str | None = None
        self._session = Session(
            Rounds(addresses, node.rng), self._hello, self._registration, node.measure, self._objection
        )
        self._sock: ssl.SSLSocket | None = None
        self._decoder = down_decoder()
        self._due: list[tuple[float, ShardKey]] = []
        self._live = False
        self._why = ""

    @property
    def registered(self) -> bool:
        """Whether it is in session now."""
        return self._live

    def run(self) -> None:
        """Live for ever; a kill of the greenlet ends it as a cut of power would."""
        try:
            while True:
                now = time.monotonic()
                self._carry(self._session.wake(now))
                self._become_ready(now)
                wake = min(self._session.next_wake or now, self._due[0][0] if self._due else now + 3600)
                wait = max(0.0, wake - time.monotonic())
                if self._sock is None:
                    gevent.sleep(wait)
                else:
                    self._read(self._sock, wait)
        finally:
            self._close()

    # ------------------------------------------------------------ what the session asks for

    def _hello(self, _now: float) -> Hello:
        return Hello(
            node_id=self.node.name,
            version=__version__,
            oldest_protocol=OLDEST_PROTOCOL,
            newest_protocol=PROTOCOL,
            highest_epoch=self._allegiance.epoch,
            leader=self._allegiance.leader,
            last_command=self._last_command,
            boot_id=f"boot-{self.node.index}",
            authorities=self._authorities,
        )

    def _registration(self, _now: float) -> Register:
        return Register(
            inventory=self.node.inventory(),
            shards=tuple(self.node.shards.values()),
            last_command=self._last_command,
        )

    def _objection(self, welcome: Welcome) -> str:
        words = self._allegiance.objection(welcome.epoch, welcome.leader)
        if not words:
            self._allegiance.see(welcome.epoch, welcome.leader)
        return words

    def _carry(self, effects: list[machine.Effect]) -> None:
        while effects:
            effect, *effects = effects
            match effect:
                case machine.Connect():
                    effects += self._connect(effect)
                case machine.Send():
                    effects += self._send(effect.message)
                case machine.Disconnect():
                    self._close()
                    effects += self._ended(effect.reason)
                case machine.Deliver():
                    effects += self._obey(effect.message)
                case machine.Established():
                    self._live = True
                    self._told.entered()

    # ------------------------------------------------------------ the connection

    def _connect(self, effect: machine.Connect) -> list[machine.Effect]:
        began = time.monotonic()
        until = began + CONNECT_TIMEOUT
        self._decoder = down_decoder()
        self._why = ""
        try:
            plain = socket.create_connection((effect.address.host, effect.address.port), timeout=CONNECT_TIMEOUT)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock = self._secure(plain, max(0.1, until - time.monotonic()))
            self._sock.settimeout(max(0.1, until - time.monotonic()))
            rest = self._upgrade(self._sock)
        except (OSError, IdentityError) as error:
            self._close()
            return self._ended(explain(error))
        self._told.shook_hands(time.monotonic() - began)
        effects = self._session.handle(Opened(effect.attempt), time.monotonic())
        return effects + self._feed(rest) if rest else effects

    def _upgrade(self, sock: ssl.SSLSocket) -> bytes:
        """Ask for a session; what came behind the answer's head. Raises ``OSError``."""
        sock.sendall(
            f"GET /agent/v1/session HTTP/1.1\r\nHost: controlplane\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n"
            f"Llmgw-Node: {self.node.name}\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            more = sock.recv(RECORD)
            if not more or len(answer) > MAX_HEAD:
                raise OSError("the control plane closed the connection before it answered")
            answer += more
        head, _, rest = answer.partition(b"\r\n\r\n")
        line = head.split(b"\r\n", 1)[0].decode("ascii", "replace")
        if " 101 " not in line:
            raise OSError(f"the control plane answered {line.removeprefix('HTTP/1.1 ')}{_code(sock, rest)}")
        return rest

    def _read(self, sock: ssl.SSLSocket, wait: float) -> None:
        sock.settimeout(max(0.001, wait))
        try:
            data = sock.recv(RECORD)
        except TimeoutError:
            return
        except OSError as error:
            self._close()
            self._carry(self._ended(explain(error)))
            return
        if not data:
            self._close()
            self._carry(self._ended("the control plane closed the connection"))
            return
        self._carry(self._feed(data))

    def _feed(self, data: bytes) -> list[machine.Effect]:
        attempt, now = self._session.attempt, time.monotonic()
        effects: list[machine.Effect] = []
        try:
            for message in self._decoder.feed(data):
                effects += self._session.handle(Received(attempt, self._heard(message)), now)
        except FrameError as error:
            self._close()
            return self._ended(f"a frame cannot be read: {error}")
        return effects

    def _heard(self, message: Down | Unknown) -> Down | Unknown:
        """Note why it is about to end, as briefly as thousands of nodes can be told of."""
        match message:
            case Refuse():
                self._why = message.code
            case Goodbye():
                self._why = "goodbye"
            case Welcome() if self._heartbeat is not None:
                return Welcome(
                    session_id=message.session_id,
                    protocol=message.protocol,
                    version=message.version,
                    epoch=message.epoch,
                    leader=message.leader,
                    heartbeat_seconds=self._heartbeat,
                    silence_seconds=message.silence_seconds,
                )
        return message

    def _send(self, message: Up) -> list[machine.Effect]:
        if self._sock is None:
            return []
        try:
            self._sock.settimeout(SEND_TIMEOUT)
            self._sock.sendall(encode(message))
        except OSError as error:
            self._close()
            return self._ended(explain(error))
        if isinstance(message, Heartbeat):
            self._told.beat()
        return []

    def _ended(self, reason: str) -> list[machine.Effect]:
        why = self._why or reason
        if self._live:
            self._live = False
            self._told.left(why)
        else:
            self._told.turned_away(why)
        return self._session.handle(Closed(self._session.attempt, reason), time.monotonic())

    def _close(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None

    # ------------------------------------------------------------ shards

    def _obey(self, command: object) -> list[machine.Effect]:
        match command:
            case Start():
                return self._start(command)
            case Stop():
                return self._stop(command)
        return []

    def _start(self, start: Start) -> list[machine.Effect]:
        spec = start.spec.without_secret()
        self._last_command = start.command_id
        starting = ShardStatus(spec=spec, state="starting", pid=100_000 + self.node.index)
        self.node.shards[spec.key] = starting
        ready_at = time.monotonic() + START_SECONDS * self.node.rng.uniform(0.5, 2)
        heapq.heappush(self._due, (ready_at, spec.key))
        return [
            *self._session.report(CommandResult(command_id=start.command_id, outcome="accepted")),
            *self._session.report(ShardChanged(status=starting)),
        ]

    def _become_ready(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, key = heapq.heappop(self._due)
            known = self.node.shards.get(key)
            if known is not None:
                self.node.shards[key] = ready = ShardStatus(spec=known.spec, state="ready", pid=known.pid)
                self._carry(self._session.report(ShardChanged(status=ready)))

    def _stop(self, stop: Stop) -> list[machine.Effect]:
        self._last_command = stop.command_id
        known = self.node.shards.pop(stop.key, None)
        exit_ = ShardExit(
            replica_id=stop.replica_id,
            rank=stop.rank,
            incarnation=stop.incarnation,
            code="stopped" if known else "not_found",
            model=known.spec.model if known else "",
            requested=True,
        )
        return [
            *self._session.report(CommandResult(command_id=stop.command_id, outcome="accepted")),
            *self._session.report(ShardExited(exit=exit_)),
        ]
