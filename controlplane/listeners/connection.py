"""One agent's connection: a bounded queue of frames, and a greenlet that writes it while the
peer does not take them at once."""

import contextlib
import socket as native
from collections import deque
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event
from gevent.ssl import SSLSocket

from controlplane.listeners.turns import Turns
from llmgw.identity.names import Presented
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address
from llmgw.wire.frames import MAX_FRAME, FrameError, encode
from llmgw.wire.messages import Down

log = Logger("llmgw.agents")

READ = 16 * 1024
"""Bytes of one read: what a record of TLS holds."""

MAX_QUEUED = 2 * MAX_FRAME
"""Bytes that may wait for a peer that does not read."""

LINGER = 1.0
"""Seconds the peer has to read a last frame before the connection is cut."""

_DISCARD = 32 * 1024 * 1024


class Connection:
    """A connection whose certificate was checked: ``presented``. ``reason`` is why it ended,
    once it does; ``renewing`` that a new certificate is being made for it; ``welcomed`` that the
    session is open, and ``authorities`` the digest of whom the agent trusted then. ``heard``:
    when something came last, for whoever ends those that are silent."""

    def __init__(
        self, sock: Any, peer: str, *, session: str, presented: Presented, silence: float, turns: Turns
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.session = session
        self.presented = presented
        self.node_id = presented.identity.name
        self.renewing = False
        self.welcomed = False
        self.authorities = ""
        self.reason = ""
        self.closing = False
        self.heard = 0.0
        self.flushed = Event()
        self._silence = silence
        self._turns = turns
        self._readable: Any = None
        self._frames: deque[bytes] = deque()
        self._queued = 0
        self._started = False
        self._writer: gevent.Greenlet[..., None] | None = None

    def __repr__(self) -> str:
        return f"Connection({self.session}, node={self.node_id!r}, peer={self.peer!r})"

    def start(self) -> None:
        """Begin to write what is queued. Reading has no time limit of its own from here on: a
        timer for each frame would cost as much as the frame."""
        self.sock.settimeout(None)
        self._readable = gevent.get_hub().loop.io(self.sock.fileno(), 1)
        self._started = True
        if self._frames:
            self._go_on()

    def receive(self) -> bytes:
        """What comes next; empty at the end of the stream. Raises ``OSError``."""
        if self._started and not self.sock.pending():
            # Waited for here rather than in the socket, which would first try in vain.
            gevent.get_hub().wait(self._readable)
            self._turns.take()
        try:
            data: bytes = self.sock.recv(READ)
        except ValueError:  # of TLS: both sides have said that they are through
            return b""
        return data

    def send(self, message: Down) -> None:
        """Send a frame, or queue it. A peer that lets too much pile up is cut off."""
        if self.closing:
            return
        try:
            frame = encode(message)
        except FrameError as error:
            log.error("a frame could not be sent", node=self.node_id, error=error)
            return
        if self._started and self._writer is None:
            frame = self._at_once(frame)
            if not frame:
                return
        if self._queued + len(frame) > MAX_QUEUED:
            self.reason = f"the agent does not read: {self._queued} bytes wait for it"
            self.closing = True
            self.cut()
            return
        self._queued += len(frame)
        self._frames.append(frame)
        if self._started:
            self._go_on()

    def close(self, reason: str, last: Down | None = None) -> None:
        """Send what is queued and ``last``, then end the connection."""
        if self.closing:
            return
        self.reason = self.reason or reason
        if last is not None:
            self.send(last)
        self.closing = True
        self._go_on()

    def over(self) -> None:
        """Nobody reads from it any more. Before its socket is closed."""
        self.cut()
        if self._readable is not None:
            self._readable.close()

    def drain(self) -> None:
        """Read and drop what still comes, so that the last frame is not lost to a reset."""
        self.flushed.wait(LINGER)
        discard(self.sock)

    def cut(self) -> None:
        """End the connection now. Wakes whoever reads from it."""
        self.closing = True
        shut_down(self.sock, native.SHUT_RDWR)
        self.flushed.set()

    def _at_once(self, frame: bytes) -> bytes:
        """Write what the peer takes now; the rest. Most frames are short and alone."""
        before = self.sock.gettimeout()
        self.sock.settimeout(0.0)
        try:
            sent: int = self.sock.send(frame)
        except (OSError, ValueError):
            return frame  # full, or broken: the writer will see which
        finally:
            self.sock.settimeout(before)
        return frame[sent:]

    def _go_on(self) -> None:
        if self._writer is None:
            self._writer = gevent.spawn(self._write)

    def _write(self) -> None:
        try:
            while self._frames:
                data = b"".join(self._frames)
                self._frames.clear()
                with gevent.Timeout(self._silence, TimeoutError("the agent does not read")):
                    self.sock.sendall(data)
                self._queued -= len(data)
            if not self.closing:
                self._writer = None
                return
            end_writing(self.sock)
        except (OSError, ValueError) as error:
            self.reason = self.reason or f"the connection broke: {getattr(error, 'strerror', None) or error}"
            self.cut()
        self.flushed.set()
        gevent.sleep(LINGER)
        self.cut()


def end_writing(sock: Any) -> None:
    """End our half of a connection, so that the peer can tell this end from a break."""
    if isinstance(sock, SSLSocket):
        before = sock.gettimeout()
        sock.settimeout(0.0)  # say so, and do not wait for the peer to say it too
        with contextlib.suppress(OSError, ValueError):
            sock.unwrap()
        sock.settimeout(before)
    shut_down(sock, native.SHUT_WR)


def shut_down(sock: Any, how: int) -> None:
    """Shut down a connection that may be over. Of a TLS connection what was received stays
    readable: its own ``shutdown`` would hand out what comes then as it is, encrypted."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)


def discard(sock: socket.socket) -> None:
    """Read to the end of the stream, for a bounded time and number of bytes. What is not read
    when a socket is closed resets the connection, and takes what we said last with it."""
    left = _DISCARD
    with contextlib.suppress(OSError), gevent.Timeout(LINGER, False):
        sock.settimeout(LINGER)
        while left > 0 and (data := socket.socket.recv(sock, 65536)):  # of TLS too: it is of no interest any more
            left -= len(data)


def farewell(sock: socket.socket) -> None:
    """End our half and let the peer read it before the socket goes."""
    end_writing(sock)
    discard(sock)


def peer_name(address: Any) -> str:
    """``host:port`` of what ``accept`` returned, an IPv6 host in brackets."""
    return str(Address(*address[:2])) if isinstance(address, tuple) else str(address)


def elsewhere(peer: str, sock: Any) -> str:
    """The host of ``peer_name`` if it is another than the one the connection came in at, and
    so most likely another machine; empty if not."""
    host = peer.rpartition(":")[0].strip("[]")
    return "" if host == sock.getsockname()[0] or Address(host, 0).loopback else host
