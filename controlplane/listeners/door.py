"""Where agents come in: TLS, who they are, and the request that opens a session (AGT-03,
SEC-01). What follows is for who takes them: a leader, or a control plane that stands by.

Everything a peer sends is limited in size and time. Whatever it sends ends at most its
own connection, and is told to both sides.
"""

import contextlib
import json
import socket as native
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gevent
from gevent import socket
from gevent.server import StreamServer

from controlplane.listeners import upgrade
from controlplane.listeners.connection import farewell, peer_name
from controlplane.listeners.files import Accepting
from controlplane.listeners.handshake import PLAIN, Handshakes, NotTls
from controlplane.listeners.refusals import Refusals
from controlplane.listeners.sockets import BACKLOG, at
from llmgw.identity.names import Identity, IdentityError, Presented
from llmgw.identity.tls import ServerTls, explain
from llmgw.identity.tls import peer as peer_of
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address
from llmgw.wire.frames import encode
from llmgw.wire.messages import Refuse

log = Logger("llmgw.agents")


MAX_EACH = 8
"""Connections of one identity that may be pending at once."""

_NO_ROUTERS = (
    "this is agents.listen, which is for agents: routers go to routers.listen (port 7002 unless set otherwise); "
    "correct control_planes in the router's settings"
)


class Late(Exception):
    """The peer took too long."""


@dataclass(slots=True)
class Arrived:
    """A connection with a verified certificate and a request to open a session; ``rest`` is
    what came after the request. ``accepted``: from now on frames are spoken."""

    sock: Any
    peer: str
    presented: Presented
    request: upgrade.UpgradeRequest
    rest: bytes
    accepted: bool = False

    def accept(self) -> None:
        """Grant the request. Raises ``OSError``."""
        self.sock.sendall(upgrade.ACCEPTED)
        self.accepted = True


class _Server(Accepting, StreamServer):  # type: ignore[misc]
    """Whose sockets the ``Door`` takes."""


Take = Callable[[Arrived], Callable[[], None] | None]
"""Takes who arrived, within the time for the hello, and returns what to do with the session
after that. Raises ``upgrade.UpgradeError``."""


class Door:
    """Accepts agents, at an address or on a listening socket. ``hello`` is seconds a peer has
    from the end of its handshake until ``take`` is through; ``max_pending`` bounds how many
    are at that at once.

    ``pending`` counts them, ``refusals`` those that were turned away.
    """

    def __init__(
        self,
        address: Address | socket.socket,
        tls: ServerTls,
        take: Take,
        clock: Clock,
        *,
        silence: float = 30.0,
        hello: float = 10.0,
        max_pending: int = 1024,
    ) -> None:
        self._take = take
        self._silence = silence
        self._hello = hello
        self._max_pending = max_pending
        self._handshakes = Handshakes(tls, hello)
        self._server = _Server(at(address), self._accepted, backlog=BACKLOG if isinstance(address, Address) else None)
        self.stopping = False
        self.pending = 0
        self._each: Counter[str] = Counter()
        self.refusals = self._server.refusals = Refusals(log, clock)

    def start(self) -> "Door":
        """Begin to listen. Raises ``OSError`` if the address cannot be had."""
        self._server.start()
        return self

    @property
    def address(self) -> Address:
        """The address listened on, with the port that was chosen for port 0."""
        return Address(self._server.server_host, self._server.server_port)

    @property
    def handshakes(self) -> int:
        """Connections whose TLS handshake is not over."""
        return self._handshakes.running

    def close(self) -> None:
        """Take nobody any more."""
        self.stopping = True
        self._server.close()

    # ------------------------------------------------------------ one connection

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        peer = peer_name(address)
        secure: Any = None
        try:
            self._prepare(sock)
            secure = self._greet(sock, peer)
            if secure is not None:
                self._serve(secure, peer)
        except OSError as error:
            log.debug("a connection broke", peer=peer, error=error)
        except Exception:
            log.exception("a connection failed", peer=peer)
        finally:
            (secure or sock).close()

    def _prepare(self, sock: socket.socket) -> None:
        sock.setsockopt(native.IPPROTO_TCP, native.TCP_NODELAY, 1)
        sock.setsockopt(native.SOL_SOCKET, native.SO_KEEPALIVE, 1)
        sock.setsockopt(native.IPPROTO_TCP, native.TCP_USER_TIMEOUT, int(self._silence * 1000))

    def _greet(self, sock: socket.socket, peer: str) -> Any:
        try:
            return self._handshakes.wrap_socket(sock)
        except OSError as error:
            self.refusals.tell("a TLS handshake failed", peer=peer, why=explain(error))
            if isinstance(error, NotTls) and error.http:
                sock.settimeout(2)
                sock.sendall(_answer(upgrade.bad(PLAIN)))
                farewell(sock)
            return None

    def _serve(self, sock: Any, peer: str) -> None:
        node, after, arrived = "-", None, None
        refused: upgrade.UpgradeError | None = None
        full = self.pending >= self._max_pending
        self.pending += 1
        try:
            with gevent.Timeout(self._hello, Late):
                if self.stopping or full:
                    code = "shutting_down" if self.stopping else "overloaded"
                    raise upgrade.UpgradeError("503 Service Unavailable", code, "try again later")
                presented = _presented(sock)
                node = str(presented.identity)
                with self._one_of_few(node):
                    request, rest = self._read_request(sock, presented.identity)
                    arrived = Arrived(sock, peer, presented, request, rest)
                    after = self._take(arrived)
        except upgrade.UpgradeError as error:
            refused = error
        except Late:
            refused = upgrade.UpgradeError("408 Request Timeout", "timeout", f"no hello in {self._hello:g} s")
        finally:
            self.pending -= 1  # what is said now keeps nobody waiting
        if refused is not None:
            self._refuse(sock, refused, peer, node, in_frames=arrived is not None and arrived.accepted)
        elif after is not None:
            after()

    @contextlib.contextmanager
    def _one_of_few(self, identity: str) -> Iterator[None]:
        """Bound what one identity has pending: it must not take the places of all others."""
        self._each[identity] += 1
        try:
            if self._each[identity] > MAX_EACH:
                words = f"{MAX_EACH} connections of {identity} wait for their hello already: try again later"
                raise upgrade.UpgradeError("503 Service Unavailable", "overloaded", words)
            yield
        finally:
            self._each[identity] -= 1
            if not self._each[identity]:
                del self._each[identity]

    def _read_request(self, sock: Any, identity: Identity) -> tuple[upgrade.UpgradeRequest, bytes]:
        try:
            return self._request(sock)
        except upgrade.UpgradeError as error:
            if identity.kind != "router":
                raise
            # A router's own request: an agent that shows a router's certificate asks as agents do.
            words = f"the certificate is that of {identity}, and {_NO_ROUTERS}"
            raise upgrade.forbidden("unauthorised", words) from error

    def _request(self, sock: Any) -> tuple[upgrade.UpgradeRequest, bytes]:
        data = b""
        while upgrade.END not in data:
            more = sock.recv(upgrade.MAX_HEAD)
            if not more:
                raise upgrade.bad("the connection ended within the request")
            data += more
            upgrade.check_start(data)
        head, end, rest = data.partition(upgrade.END)
        return upgrade.parse(head + end), rest

    def _refuse(self, sock: Any, error: upgrade.UpgradeError, peer: str, node: str, *, in_frames: bool) -> None:
        """Say why, in the words that are spoken by now."""
        self.refusals.tell("connection refused", peer=peer, certificate=node, code=error.code, why=error)
        if in_frames:
            sock.settimeout(2)
            sock.sendall(encode(Refuse(code=error.code, message=str(error))))
            farewell(sock)
            return
        sock.settimeout(2)
        sock.sendall(_answer(error))
        farewell(sock)


def _answer(error: upgrade.UpgradeError) -> bytes:
    body = json.dumps({"code": error.code, "message": str(error)}).encode()
    head = [
        f"HTTP/1.1 {error.status}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *error.headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def _presented(sock: Any) -> Presented:
    try:
        return peer_of(sock)
    except IdentityError as error:
        raise upgrade.forbidden("unauthorised", str(error)) from error
