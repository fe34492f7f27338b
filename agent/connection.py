"""The connection that carries a session: dial, TLS, upgrade, frames (AGT-03, SEC-01). gevent."""

import contextlib
import json
import socket
from collections.abc import Callable

import gevent
from gevent.queue import Full, Queue

from agent.identity import NodeIdentity
from agent.session import CONNECT_TIMEOUT, Closed, Opened, Received
from llmgw.identity.names import IdentityError
from llmgw.identity.tls import explain
from llmgw.runtime.settings import Address
from llmgw.wire import frames
from llmgw.wire.messages import Up
from llmgw.wire.versions import UPGRADE

SESSION_PATH = "/agent/v1/session"
MAX_HEAD = 16 * 1024
DIAL_TIMEOUT = 5.0
"""Seconds for a host to answer at all: where nobody is, the next address follows."""

SEND_TIMEOUT = 20.0
USER_TIMEOUT_MS = 20_000
"""Milliseconds that sent data may stay unacknowledged before the kernel ends the connection."""

_MAX_QUEUED = 1024

Event = Opened | Received | Closed


class ConnectFailed(Exception):
    """No session over this connection; the message says why."""


class Connection:
    """One attempt. Tells ``post`` what happens: ``Opened`` at most once, ``Received``
    for each message, ``Closed`` exactly once and last."""

    def __init__(
        self, attempt: int, address: Address, node_id: str, identity: NodeIdentity, post: Callable[[Event], None]
    ) -> None:
        self._attempt = attempt
        self._address = address
        self._node_id = node_id
        self._identity = identity
        self._post = post
        self._queue: Queue[bytes] = Queue(maxsize=_MAX_QUEUED)
        self._reason = ""
        self._greenlet = gevent.spawn(self._run)
        # Linked rather than in the greenlet: one that is killed before it first ran must be told too.
        self._greenlet.link(lambda _: post(Closed(attempt, self._reason)))

    def send(self, message: Up) -> None:
        """Queue a message. A peer that does not read for so long that the queue is full
        loses the connection."""
        try:
            self._queue.put_nowait(frames.encode(message))
        except Full:
            self.close("the control plane does not read what it is sent")
        except frames.FrameError as error:
            self.close(str(error))

    def close(self, reason: str) -> None:
        """End the connection; ``Closed`` follows."""
        self._end(reason)
        self._greenlet.kill(block=False)

    def wait(self, timeout: float) -> None:
        """Until it has ended."""
        self._greenlet.join(timeout)

    def _run(self) -> None:
        connection: socket.socket | None = None
        writer = None
        try:
            with gevent.Timeout(CONNECT_TIMEOUT, ConnectFailed(f"{self._address} did not answer in time")):
                self._identity.refresh()
                connection = socket.create_connection(self._address, DIAL_TIMEOUT)
                connection.settimeout(None)
                tune(connection)
                connection, _ = self._identity.tls.connect(connection, CONNECT_TIMEOUT)
                rest = self._upgrade(connection)
            self._post(Opened(self._attempt))
            writer = gevent.spawn(self._write, connection)
            self._end(self._read(connection, rest))
        except ConnectFailed as error:
            self._end(str(error))
        except frames.FrameError as error:
            self._end(f"{self._address} sent what cannot be read: {error}")
        except (OSError, IdentityError) as error:
            self._end(f"{self._address}: {explain(error)}")
        finally:
            if writer is not None:
                writer.kill(block=False)
            if connection is not None:
                connection.close()

    def _end(self, reason: str) -> None:
        """The first reason is the one that counts."""
        self._reason = self._reason or reason

    def _upgrade(self, connection: socket.socket) -> bytes:
        """Ask for the upgrade; what came after the answer's head."""
        lines = (
            f"GET {SESSION_PATH} HTTP/1.1",
            f"Host: {self._address}",
            "Connection: Upgrade",
            f"Upgrade: {UPGRADE}",
            f"Llmgw-Node: {self._node_id}",
        )
        with contextlib.suppress(ConnectionError):  # whoever refuses our certificate says why: it is read below
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        data = b""
        while b"\r\n\r\n" not in data:
            if len(data) > MAX_HEAD:
                raise ConnectFailed(f"{self._address} is not a control plane: its answer has no end")
            received = connection.recv(4096)
            if not received:
                raise ConnectFailed(f"{self._address} closed the connection before it answered")
            data += received
        head, _, rest = data.partition(b"\r\n\r\n")
        lines_in = head.decode("latin-1").split("\r\n")
        status = lines_in[0].split(" ")[1:2]
        fields = dict(_field(line) for line in lines_in[1:])
        if status != ["101"]:
            raise ConnectFailed(self._refusal(connection, status, fields, rest))
        if fields.get("upgrade", "").lower() != UPGRADE:
            raise ConnectFailed(f"{self._address} agreed to another protocol than {UPGRADE}")
        return rest

    def _refusal(self, connection: socket.socket, status: list[str], fields: dict[str, str], body: bytes) -> str:
        """The words of a refused upgrade, which carries a JSON body with code and message."""
        length = fields.get("content-length", "0")
        wanted = min(int(length), MAX_HEAD) if length.isdecimal() else 0
        while len(body) < wanted and (received := connection.recv(4096)):
            body += received
        said = ""
        try:
            answer = json.loads(body[:MAX_HEAD])
            said = f": {str(answer['message'])[:300]} ({str(answer['code'])[:40]})"
        except (ValueError, KeyError, TypeError, RecursionError):
            said = ""
        return f"{self._address} answered {' '.join(status) or 'no HTTP'}{said}"

    def _read(self, connection: socket.socket, data: bytes) -> str:
        decoder = frames.down_decoder()
        while True:
            for message in decoder.feed(data):
                self._post(Received(self._attempt, message))
            data = connection.recv(65536)
            if not data:
                return f"{self._address} closed the connection" + (" in the middle of a frame" * bool(decoder.pending))

    def _write(self, connection: socket.socket) -> None:
        try:
            while True:
                data = self._queue.get()
                with gevent.Timeout(SEND_TIMEOUT, TimeoutError("it took nothing for too long")):
                    connection.sendall(data)
        except OSError as error:
            self.close(f"{self._address}: {explain(error)}")


def tune(connection: socket.socket) -> None:
    """Small frames go at once; a peer that vanished is noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()
