"""A listener with identities in memory, and agents' ends of it, in this process."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import gevent
from gevent import socket
from gevent.ssl import SSLSocket

from controlplane.identities import Credentials
from controlplane.inbox import Inbox
from controlplane.services.identities import Identities
from controlplane.store.values import Enrolled
from llmgw.runtime.clock import Clock, SystemClock
from llmgw.wire.frames import down_decoder, encode
from llmgw.wire.messages import Hello
from tests.harness import identities as made

HELLO = Hello(node_id="node-1", version="t", oldest_protocol=1, newest_protocol=1)


def request(node: str = "node-1") -> bytes:
    lines = ("GET /agent/v1/session HTTP/1.1", "Host: c", "Connection: Upgrade", "Upgrade: llmgw-agent/1")
    return ("\r\n".join((*lines, f"Llmgw-Node: {node}")) + "\r\n\r\n").encode()


def known(
    inbox: Inbox, *enrolled: Enrolled, end: Any = None, store: Any = None, clock: Clock | None = None
) -> Identities:
    """Identities over a store that takes everything."""
    clock = clock or SystemClock()
    return Identities(
        store or MagicMock(), MagicMock(), clock, inbox=inbox, end=end or (lambda *_: None), enrolled=enrolled
    )


def credentials(folder: Path) -> Credentials:
    """A control plane's, with an issuer."""
    return Credentials(made.ours().controlplane(folder), SystemClock()).load()


class Peer:
    """An agent's end. ``folder`` is the identity it shows."""

    def __init__(self, address: Any, folder: Path, *, shown: bool = True) -> None:
        plain = socket.create_connection(address)
        plain.settimeout(5)
        context = made.client(folder, shown=shown)
        self.sock = SSLSocket(sock=plain, server_side=False, do_handshake_on_connect=True, _context=context)
        self.decoder = down_decoder()

    def upgrade(self, node: str = "node-1") -> "Peer":
        self.sock.sendall(request(node))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.sock.recv(1)
        assert b" 101 " in head, head
        return self

    def hello(self, **more: Any) -> "Peer":
        self.sock.sendall(
            encode(Hello(**{**{field: getattr(HELLO, field) for field in HELLO.__struct_fields__}, **more}))
        )
        return self

    def answer(self) -> bytes:
        """All that comes until the end of the connection."""
        data = b""
        while more := self.sock.recv(65536):
            data += more
        return data

    def frames(self) -> list[Any]:
        """Every frame until the end of the connection."""
        return list(self.decoder.feed(self.answer()))

    def expect(self, kind: type) -> Any:
        """The next frame of that kind."""
        while True:
            for frame in self.decoder.feed(self.sock.recv(65536)):
                if isinstance(frame, kind):
                    return frame


def take(inbox: Inbox, kind: type) -> Any:
    """The next event of that kind; others are dropped."""
    with gevent.Timeout(20):
        while True:
            event = inbox.take()
            if isinstance(event, kind):
                return event
            if event is None:
                inbox.wait(1)


def until(condition: Any) -> None:
    """Wait for something to become true."""
    with gevent.Timeout(20):
        while not condition():
            gevent.sleep(0.005)
