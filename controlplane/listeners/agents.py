"""The agents' listener: one TCP connection per node, upgraded to frames (AGT-03).

Everything a peer sends is limited in size and time. Whatever it sends ends at most
its own connection, with a code and a log line that names node and peer.
"""

import json
import secrets
import socket as native
from collections.abc import Callable
from typing import Any

import gevent
from gevent import socket
from gevent.server import StreamServer

from controlplane.events import FrameReceived, SessionClosed, SessionOpened
from controlplane.inbox import Inbox
from controlplane.listeners import registration, upgrade
from controlplane.listeners.connection import Connection, farewell, peer_name
from controlplane.listeners.tokens import FleetTokens
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address
from llmgw.wire.frames import Decoder, FrameError, up_decoder
from llmgw.wire.messages import Down, Goodbye, Hello, Refuse, Register, Unknown, Up

log = Logger("llmgw.agents")

READ = 64 * 1024

REGISTER_PAUSE = 0.1
"""Seconds that nothing more is read from a peer after a registration: each one is
written down, planned for and answered, so one peer's must not follow in a rush."""


class Late(Exception):
    """The peer took too long to say hello."""


class AgentListener:
    """Accepts agents and keeps their connections by session.

    ``tokens`` gives the tokens in force. ``silence`` and ``hello`` are seconds,
    ``max_pending`` bounds connections that have not said hello. ``refused`` counts
    connections turned away and ``bad_frames`` sessions ended by a frame.
    """

    def __init__(
        self,
        address: Address,
        inbox: Inbox,
        tokens: Callable[[], FleetTokens],
        clock: Clock,
        *,
        silence: float = 30.0,
        hello: float = 10.0,
        max_pending: int = 256,
    ) -> None:
        self._inbox = inbox
        self._tokens = tokens
        self._clock = clock
        self._silence = silence
        self._hello = hello
        self._max_pending = max_pending
        self._pending = 0
        self._stopping = False
        self._connections: dict[str, Connection] = {}
        self._server = StreamServer((address.host, address.port), self._accepted, backlog=1024)
        self.refusals: dict[str, tuple[float, str]] = {}
        """Of enrolled nodes without a session: when (monotonic seconds) a connection in
        their name was last refused, and why."""
        self.refused = 0
        self.bad_frames = 0
        self.unknown_messages = 0

    def start(self) -> "AgentListener":
        """Begin to listen. Raises ``OSError`` if the address cannot be had."""
        self._server.start()
        return self

    @property
    def address(self) -> Address:
        """The address listened on, with the port that was chosen for port 0."""
        return Address(self._server.server_host, self._server.server_port)

    @property
    def sessions(self) -> int:
        """Connections past hello."""
        return len(self._connections)

    @property
    def pending(self) -> int:
        """Connections before hello."""
        return self._pending

    def send(self, session: str, message: Down) -> None:
        """Queue a frame. A session that is gone takes nothing."""
        connection = self._connections.get(session)
        if connection is not None:
            connection.send(message)

    def close(self, session: str, refuse: Refuse | None) -> None:
        """End a session, telling why."""
        connection = self._connections.get(session)
        if connection is not None:
            reason = refuse.message if refuse else "closed by the control plane"
            connection.close(reason, refuse)

    def drop_unenrolled(self) -> None:
        """End the sessions of nodes whose token was taken away or replaced."""
        tokens = self._tokens()
        for connection in list(self._connections.values()):
            if not tokens.node(connection.node_id, connection.token):
                message = "the node's token was taken away or replaced in fleet_tokens"
                connection.close(message, Refuse(code="unauthorised", message=message))

    def stop(self, timeout: float = 0.5) -> None:
        """Say goodbye to every agent and close. The spread grows with the fleet, so
        that it does not return in one instant (about 200 agents a second)."""
        self._stopping = True
        self._server.close()
        goodbye = Goodbye(reason="the control plane is stopping", spread_seconds=max(2.0, len(self._connections) / 200))
        for connection in list(self._connections.values()):
            connection.close("the control plane is stopping", goodbye)
        with gevent.Timeout(timeout, False):
            for connection in list(self._connections.values()):
                connection.flushed.wait()
        for connection in list(self._connections.values()):
            connection.cut()

    # ------------------------------------------------------------ one connection

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        peer = peer_name(address)
        try:
            self._serve(sock, peer)
        except OSError as error:
            log.debug("a connection broke", peer=peer, error=error)
        except Exception:
            log.exception("a connection failed", peer=peer)
        finally:
            sock.close()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        if self._stopping or self._pending >= self._max_pending:
            code = "shutting_down" if self._stopping else "overloaded"
            self._answer(sock, upgrade.UpgradeError("503 Service Unavailable", code, "try again later"), peer)
            return
        self._prepare(sock)
        node = "-"
        self._pending += 1
        try:
            with gevent.Timeout(self._hello, Late):
                request, rest = self._read_request(sock)
                node = request.node_id
                if not self._tokens().node(request.node_id, request.token):
                    enrolled = node in self._tokens().nodes
                    log.warning("wrong token", node=node, peer=peer, enrolled=enrolled)
                    if enrolled:
                        why = "wrong token: its token_file and fleet_tokens must hold the same"
                        self.refusals[node] = (self._clock.monotonic(), why)
                    raise upgrade.unauthorised()
                sock.sendall(upgrade.ACCEPTED)
                opened = self._read_hello(sock, rest, request, peer)
        except upgrade.UpgradeError as error:
            self._answer(sock, error, peer, node)
            return
        except Late:
            log.warning("no hello in time", node=node, peer=peer, seconds=self._hello)
            self.refused += 1
            return
        finally:
            self._pending -= 1
        if opened is not None:
            self.refusals.pop(node, None)
            self._live(*opened)

    def _prepare(self, sock: socket.socket) -> None:
        sock.setsockopt(native.IPPROTO_TCP, native.TCP_NODELAY, 1)
        sock.setsockopt(native.SOL_SOCKET, native.SO_KEEPALIVE, 1)
        sock.setsockopt(native.IPPROTO_TCP, native.TCP_USER_TIMEOUT, int(self._silence * 1000))

    def _read_request(self, sock: socket.socket) -> tuple[upgrade.UpgradeRequest, bytes]:
        data = b""
        while upgrade.END not in data:
            more = sock.recv(upgrade.MAX_HEAD)
            if not more:
                raise upgrade.bad("the connection ended within the request")
            data += more
            upgrade.check_start(data)
        head, end, rest = data.partition(upgrade.END)
        return upgrade.parse(head + end), rest

    def _read_hello(
        self, sock: socket.socket, data: bytes, request: upgrade.UpgradeRequest, peer: str
    ) -> tuple[Connection, Decoder[Up], Hello, list[Up | Unknown]] | None:
        connection = Connection(
            sock,
            peer,
            session=secrets.token_hex(8),
            node_id=request.node_id,
            token=request.token,
            silence=self._silence,
        )
        decoder = up_decoder()
        messages: list[Up | Unknown] = []
        try:
            while not messages:
                messages += decoder.feed(data)
                if not messages:
                    data = sock.recv(READ)
                    if not data:
                        log.info("left before hello", node=request.node_id, peer=peer, unread=decoder.pending)
                        return None
        except FrameError as error:
            self._refuse(connection, error.code, str(error))
            return None
        hello, *rest = messages
        if not isinstance(hello, Hello):
            self._refuse(connection, "hello_expected", "the first frame must be hello")
            return None
        if hello.node_id != request.node_id:
            message = f"hello names the node {hello.node_id[:64]!r}, the token belongs to {request.node_id!r}"
            self._refuse(connection, "unauthorised", message)
            return None
        return connection, decoder, hello, rest

    def _refuse(self, connection: Connection, code: str, message: str) -> None:
        self.bad_frames += 1
        log.warning("session refused", node=connection.node_id, peer=connection.peer, code=code, why=message)
        connection.start()
        connection.close(message, Refuse(code=code, message=message))
        connection.drain()

    def _live(self, connection: Connection, decoder: Decoder[Up], hello: Hello, messages: list[Up | Unknown]) -> None:
        session = connection.session
        self._connections[session] = connection
        connection.start()
        log.info("session opened", node=connection.node_id, peer=connection.peer, version=hello.version)
        try:
            self._inbox.put(SessionOpened(session, connection.node_id, hello))
            self._deliver(session, messages)
            self._read_frames(connection, decoder)
        except FrameError as error:
            self.bad_frames += 1
            self._end(connection, error.code, str(error))
        except TimeoutError:
            self._end(connection, "timeout", f"nothing was heard for {self._silence:g} s")
        except OSError as error:
            connection.reason = connection.reason or f"the connection broke: {error.strerror or error}"
        finally:
            del self._connections[session]
            reason = connection.reason or "the agent closed the connection"
            self._inbox.force(SessionClosed(session, reason))
            log.info("session closed", node=connection.node_id, peer=connection.peer, why=reason)
            connection.cut()

    def _read_frames(self, connection: Connection, decoder: Decoder[Up]) -> None:
        connection.sock.settimeout(self._silence)
        while data := connection.sock.recv(READ):
            if connection.closing:
                continue
            self._deliver(connection.session, decoder.feed(data))
        if decoder.pending and not connection.closing:
            log.warning(
                "a connection ended within a frame",
                node=connection.node_id,
                peer=connection.peer,
                unread=decoder.pending,
            )

    def _deliver(self, session: str, messages: Any) -> None:
        for message in messages:
            if isinstance(message, Hello):
                raise FrameError("bad_frame", "hello was said already")
            if isinstance(message, Register) and (why := registration.fault(message)) is not None:
                raise FrameError("bad_frame", why)
            if isinstance(message, Unknown):
                self.unknown_messages += 1
            self._inbox.put(FrameReceived(session, message))
            if isinstance(message, Register):
                gevent.sleep(REGISTER_PAUSE)

    def _end(self, connection: Connection, code: str, message: str) -> None:
        if not connection.closing:
            log.warning("session ended", node=connection.node_id, peer=connection.peer, code=code, why=message)
            connection.close(message, Refuse(code=code, message=message))
        connection.drain()

    def _answer(self, sock: socket.socket, error: upgrade.UpgradeError, peer: str, node: str = "-") -> None:
        self.refused += 1
        log.info("connection refused", peer=peer, node=node, code=error.code, why=error)
        body = json.dumps({"code": error.code, "message": str(error)}).encode()
        head = [
            f"HTTP/1.1 {error.status}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *error.headers,
        ]
        sock.settimeout(2)
        sock.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        farewell(sock)
