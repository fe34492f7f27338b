"""One agent's connection: a bounded queue of frames and the greenlet that writes it."""

import contextlib
import socket as native
from collections import deque
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event

from llmgw.runtime.logs import Logger
from llmgw.wire.frames import MAX_FRAME, FrameError, encode
from llmgw.wire.messages import Down

log = Logger("llmgw.agents")

MAX_QUEUED = 2 * MAX_FRAME
"""Bytes that may wait for a peer that does not read."""

LINGER = 1.0
"""Seconds the peer has to read a last frame before the connection is cut."""

_DISCARD = 1024 * 1024


class Connection:
    """A connection whose credential was checked. ``reason`` is why it ended, once it does."""

    def __init__(
        self, sock: socket.socket, peer: str, *, session: str, node_id: str, token: str, silence: float
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.session = session
        self.node_id = node_id
        self.token = token
        self.reason = ""
        self.closing = False
        self.flushed = Event()
        self._silence = silence
        self._frames: deque[bytes] = deque()
        self._queued = 0
        self._wake = Event()

    def __repr__(self) -> str:
        return f"Connection({self.session}, node={self.node_id!r}, peer={self.peer!r})"

    def start(self) -> None:
        """Begin to write what is queued."""
        self.sock.settimeout(self._silence)
        gevent.spawn(self._write)

    def send(self, message: Down) -> None:
        """Queue a frame. A peer that lets too much pile up is cut off."""
        if self.closing:
            return
        try:
            frame = encode(message)
        except FrameError as error:
            log.error("a frame could not be sent", node=self.node_id, error=error)
            return
        if self._queued + len(frame) > MAX_QUEUED:
            self.reason = f"the agent does not read: {self._queued} bytes wait for it"
            self.closing = True
            self.cut()
            return
        self._queued += len(frame)
        self._frames.append(frame)
        self._wake.set()

    def close(self, reason: str, last: Down | None = None) -> None:
        """Send what is queued and ``last``, then end the connection."""
        if self.closing:
            return
        self.reason = self.reason or reason
        if last is not None:
            self.send(last)
        self.closing = True
        self._wake.set()

    def drain(self) -> None:
        """Read and drop what still comes, so that the last frame is not lost to a reset."""
        self.flushed.wait(LINGER)
        discard(self.sock)

    def cut(self) -> None:
        """End the connection now. Wakes whoever reads from it."""
        self.closing = True
        self._wake.set()
        with contextlib.suppress(OSError):
            self.sock.shutdown(native.SHUT_RDWR)

    def _write(self) -> None:
        try:
            while True:
                self._wake.wait()
                self._wake.clear()
                while self._frames:
                    data = b"".join(self._frames)
                    self._frames.clear()
                    self.sock.sendall(data)
                    self._queued -= len(data)
                if self.closing:
                    self.sock.shutdown(native.SHUT_WR)
                    break
        except OSError as error:
            self.reason = self.reason or f"the connection broke: {error.strerror or error}"
            self.closing = True
            self.cut()
        finally:
            self.flushed.set()
        gevent.sleep(LINGER)
        self.cut()


def discard(sock: socket.socket) -> None:
    """Read to the end of the stream, for a bounded time and number of bytes."""
    left = _DISCARD
    with contextlib.suppress(OSError), gevent.Timeout(LINGER, False):
        while left > 0 and (data := sock.recv(65536)):
            left -= len(data)


def farewell(sock: socket.socket) -> None:
    """End our half and let the peer read it before the socket goes."""
    with contextlib.suppress(OSError):
        sock.shutdown(native.SHUT_WR)
    discard(sock)


def peer_name(address: Any) -> str:
    """``host:port`` of what ``accept`` returned."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
