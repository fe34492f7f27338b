"""A non-blocking connection driven by the event loop.

Each connection has one read watcher that stays started between reads, so that waiting
costs a switch and no system call, and so that somebody always notices when the peer
closes: a client during a silent prefill (RTR-11), an engine on an idle connection.

Deadlines are checked by one timer for all connections instead of one timer per wait.
"""

import _socket
import socket
from collections.abc import Callable
from email.utils import formatdate
from time import monotonic, time
from typing import Any

from gevent import getcurrent
from gevent.hub import get_hub

NEVER = float("inf")
READ_SIZE = 65536
SWEEP_SECONDS = 0.25

_READ, _WRITE = 1, 2


class Expired(Exception):
    """A deadline passed while the connection was waited for."""


class Reactor:
    """What all connections of a process share: the hub and the deadlines.

    ``wall`` is Unix time and ``date`` a Date header line, both renewed by the timer.
    """

    def __init__(self) -> None:
        self.hub = get_hub()
        self.links: set[Link] = set()
        self.wall = 0.0
        self.date = b""
        self._timer = self.hub.loop.timer(SWEEP_SECONDS, SWEEP_SECONDS)
        self._tell_time()
        self._timer.start(self._sweep)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.stop()
        self._timer.close()

    def _tell_time(self) -> None:
        wall = time()
        if int(wall) != int(self.wall):
            self.date = b"date: " + formatdate(wall, usegmt=True).encode("ascii") + b"\r\n"
        self.wall = wall

    def _sweep(self) -> None:
        self._tell_time()
        now = monotonic()
        for link in [link for link in self.links if link.deadline <= now]:
            if link.deadline <= now:
                link.expire()


class Link:
    """One connected socket.

    At most one greenlet waits on a link at a time. ``deadline`` (monotonic seconds)
    applies to whatever the link is doing. Subclasses say what happens when bytes come
    or the deadline passes while nobody waits.
    """

    __slots__ = (
        "_hub",
        "_reactor",
        "_reader",
        "_reading",
        "_waiting",
        "_writer",
        "_writing",
        "begun",
        "closed",
        "deadline",
        "recv",
        "send",
        "sock",
    )

    def __init__(self, reactor: Reactor, sock: _socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reactor = reactor
        self._hub = reactor.hub
        self.sock = sock
        self.recv = sock.recv
        self.send = sock.send
        self.begun = False
        self.closed = False
        self.deadline = NEVER
        self._waiting: Any = None
        self._writing: Any = None
        self._writer: Any = None
        self._reader = self._hub.loop.io(sock.fileno(), _READ)
        self._reading = True
        self._reader.start(self._readable)
        reactor.links.add(self)

    # ------------------------------------------------------------ for the hub

    def idle_readable(self) -> None:
        """Bytes or the end came while nobody waits. Runs in the hub; must not block."""
        self.pause()

    def idle_expired(self) -> None:
        """The deadline passed while nobody waits. Runs in the hub; must not block."""
        self.deadline = NEVER

    def expire(self) -> None:
        """The deadline has passed."""
        waiting = self._waiting or self._writing
        if waiting is None:
            self.idle_expired()
        else:
            self.deadline = NEVER
            waiting.throw(Expired)

    def _readable(self) -> None:
        waiting = self._waiting
        if waiting is None:
            self.idle_readable()
        else:
            self._waiting = None
            waiting.switch()

    def pause(self) -> None:
        """Stop watching for bytes until somebody waits again."""
        self._reading = False
        self._reader.stop()

    def resume(self) -> None:
        """Watch for bytes again."""
        if not self._reading and not self.closed:
            self._reading = True
            self._reader.start(self._readable)

    # ------------------------------------------------------ for the greenlet

    def wait_readable(self, until: float) -> None:
        """Until bytes or the end can be read. Raises ``Expired`` after ``until``."""
        if not self._reading:
            self.resume()
        self._waiting = getcurrent()
        self.deadline = until
        try:
            self._hub.switch()
        finally:
            self._waiting = None
            self.deadline = NEVER

    def receive(self, until: float, size: int = READ_SIZE) -> bytes:
        """Some bytes, ``b""`` at the end. Raises ``Expired``, ``OSError``."""
        while True:
            self.wait_readable(until)
            try:
                return self.recv(size)
            except BlockingIOError:
                continue

    def send_all(self, data: bytes, until: float) -> None:
        """All of ``data``. Raises ``Expired``, ``OSError``. Sets ``begun``."""
        self.begun = True
        try:
            sent = self.send(data)
        except BlockingIOError:
            sent = 0
        if sent != len(data):
            self._send_rest(memoryview(data)[sent:], until)

    def _send_rest(self, rest: memoryview, until: float) -> None:
        while rest:
            self._wait_writable(until)
            try:
                sent = self.send(rest)
            except BlockingIOError:
                continue
            rest = rest[sent:]

    def _wait_writable(self, until: float) -> None:
        if self._writer is None:
            self._writer = self._hub.loop.io(self.sock.fileno(), _WRITE)
        self._writing = getcurrent()
        self.deadline = until
        self._writer.start(self._writing.switch)
        try:
            self._hub.switch()
        finally:
            self._writer.stop()
            self._writing = None
            self.deadline = NEVER

    def divert(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called by the hub whenever bytes or the end can be read."""
        self._reader.stop()
        self._reader.start(callback)
        self._reading = True

    def undivert(self) -> None:
        """Back to ordinary reading."""
        if not self.closed:
            self._reader.stop()
            self._reader.start(self._readable)
            self._reading = True

    def sleep(self) -> Any:
        """Wait, while diverted, for ``wake``; returns its value. Raises ``Expired`` when
        ``deadline``, which the diverted callback moves on, passes."""
        self._waiting = getcurrent()
        try:
            return self._hub.switch()
        finally:
            self._waiting = None
            self.deadline = NEVER

    def wake(self, value: Any) -> None:
        """End ``sleep``. Called by the hub."""
        waiting = self._waiting
        self._waiting = None
        waiting.switch(value)

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self.deadline = NEVER
        self._reactor.links.discard(self)
        self._reader.stop()
        self._reader.close()
        if self._writer is not None:
            self._writer.stop()
            self._writer.close()
        self.sock.close()
