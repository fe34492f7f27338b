"""TLS handshakes of a listener, so that no peer can hold up the others (AGT-03).

A handshake costs a millisecond of computing, and a thousand agents come back at once after
a restart. So the computing is done one step of one handshake at a time, with the hub's
other work in between, in the order of arrival; those that have begun go first, for a peer
that gives up halfway has cost the most for nothing. While a peer is waited for nothing is
held but its socket: one that connects and says nothing is no more than that.
"""

import contextlib
import ssl
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import gevent
from gevent import socket
from gevent.event import Event
from gevent.socket import wait_read, wait_write
from gevent.ssl import SSLSocket

from controlplane.listeners.connection import farewell
from controlplane.listeners.files import within

LIMIT = 10.0
"""Seconds that a peer may keep us waiting in its handshake, all in all."""

MAX_WAITING = 4096
"""Peers of one listener that may keep us waiting at once. One more, and the one goes that has
said nothing for longest; only then those that have begun."""

SLICE = 0.005
"""Seconds of computing after which the hub gets to its other work."""

ESTABLISHED = 1
"""State of a TCP connection of which neither end is closed (``tcp_states.h``)."""

HELLO = 0x16
"""First byte of a TLS connection."""

_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"PRI ", b"OPTI", b"CONN", b"DELE", b"PATC")

PLAIN = "this port speaks TLS: connect with https or an agent or router of llmgw"
"""What a peer is told that speaks HTTP in the clear."""


class Tls(Protocol):
    """What has the certificate that is shown."""

    @property
    def context(self) -> Any:
        """The context in force."""


class Late(OSError):
    """The peer kept us waiting for too long."""


class Displaced(OSError):
    """Others came while the peer kept us waiting, and there was no room for all."""

    def __init__(self) -> None:
        super().__init__("kept us waiting in the TLS handshake while too many others came")


class NotTls(OSError):
    """What came first is no TLS. ``http``: it is HTTP in the clear."""

    def __init__(self, http: bool) -> None:
        super().__init__("spoke HTTP without TLS: its address must be https" if http else "does not speak TLS")
        self.http = http


class Handshakes:
    """Wraps accepted sockets, each in a greenlet of its own. ``limit`` is seconds, and
    ``most`` bounds the peers that are waited for, if so many files may be open. ``running`` counts handshakes that have
    begun and are not over."""

    def __init__(self, tls: Tls, limit: float = LIMIT, most: int = MAX_WAITING) -> None:
        self._tls = tls
        self._limit = limit
        self._most = within(most)
        self._silent: dict[int, Any] = {}
        self._begun: dict[int, Any] = {}
        self._turn = _Turn()
        self._worked = 0.0
        self.running = 0

    def wrap_socket(self, sock: Any, **_: Any) -> Any:
        """The server's end of the connection. Raises ``OSError``: ``Late``, ``NotTls``, an
        ``ssl.SSLError`` (which ``llmgw.identity.tls.explain`` puts in words)."""
        left = self._first(sock, self._limit)
        wrapped = SSLSocket(
            sock=sock,
            server_side=True,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=True,
            _context=self._tls.context,
        )
        wrapped.settimeout(0.0)
        self.running += 1
        begun = False
        try:
            while True:
                try:
                    self._step(wrapped, begun=begun)
                    wrapped.settimeout(None)
                    return wrapped
                except ssl.SSLWantReadError:
                    begun = True
                    left = self._wait(wait_read, wrapped, left, self._begun)
                except ssl.SSLWantWriteError:
                    left = self._wait(wait_write, wrapped, left, self._begun)
        except ssl.SSLError:
            farewell(wrapped)  # it says why, which a reset would take away
            wrapped.close()
            raise
        except BaseException:
            wrapped.close()
            raise
        finally:
            self.running -= 1

    def _step(self, wrapped: Any, *, begun: bool) -> None:
        """Compute one step. After ``SLICE`` of them the hub's other work comes first: sleeping
        for nothing at all would only let others' steps in."""
        with self._turn.of(begun=begun):
            if _left(wrapped):  # while it waited for its turn: what would be computed is for nobody
                raise ConnectionResetError("left before its TLS handshake was over")
            began = time.monotonic()
            try:
                wrapped.do_handshake()
            finally:
                self._worked += time.monotonic() - began
                if self._worked >= SLICE:
                    self._worked = 0.0
                    gevent.sleep(0.001)

    def _first(self, sock: Any, left: float) -> float:
        """Wait for the first byte and look at it; the time that is left."""
        left = self._wait(wait_read, sock, left, self._silent)
        start = sock.recv(4, socket.MSG_PEEK)
        if not start:
            raise ConnectionResetError("left without a word")
        if start[0] != HELLO:
            http = any(start.startswith(method[: len(start)]) for method in _METHODS)
            raise NotTls(http)
        return left

    def _wait(self, wait: Any, sock: Any, left: float, among: dict[int, Any]) -> float:
        """Wait for the peer; the time that is left."""
        self._make_room()
        me = gevent.getcurrent()
        among[id(me)] = me
        began = time.monotonic()
        try:
            wait(sock.fileno(), timeout=max(left, 0.001))
        except TimeoutError:
            raise Late("did not finish the TLS handshake in time") from None
        finally:
            among.pop(id(me), None)
        return left - (time.monotonic() - began)

    def _make_room(self) -> None:
        while len(self._silent) + len(self._begun) >= self._most:
            among = self._silent or self._begun
            longest = among.pop(next(iter(among)))
            longest.kill(Displaced, block=False)


class _Turn:
    """A lock that those who have begun get before those who have not."""

    def __init__(self) -> None:
        self._taken = False
        self._begun: deque[Event] = deque()
        self._others: deque[Event] = deque()

    @contextlib.contextmanager
    def of(self, *, begun: bool) -> Iterator[None]:
        """Hold it."""
        self._take(self._begun if begun else self._others)
        try:
            yield
        finally:
            self._pass_on()

    def _take(self, queue: deque[Event]) -> None:
        if not self._taken:
            self._taken = True
            return
        mine = Event()
        queue.append(mine)
        try:
            mine.wait()
        except BaseException:
            if mine.is_set():
                self._pass_on()
            else:
                queue.remove(mine)
            raise

    def _pass_on(self) -> None:
        queue = self._begun or self._others
        if queue:
            queue.popleft().set()
        else:
            self._taken = False


def _left(sock: Any) -> bool:
    """Whether the peer has closed its end."""
    state: int = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != ESTABLISHED
