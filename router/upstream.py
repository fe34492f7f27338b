"""Connections to engines: pooled raw sockets, and the reading of answers. Those to external
providers (``router.external``) are pooled and read in the same way.

An idle connection expires before engines close theirs, and is dropped the moment the
engine closes it or sends anything. A reused one that closes without a byte of an answer
is replaced once (RTR-08).
"""

import _socket
import errno
import re
import socket
from time import monotonic
from typing import Any

import gevent.socket
import httptools

from llmgw.wire.routing import Endpoint
from router.chunks import ChunkError, ChunkFollower
from router.errors import Refused
from router.link import READ_SIZE, Expired, Link, Reactor

IDLE_SECONDS = 3.0
MAX_IDLE = 512
MAX_HEAD = 32768
MAX_FIELDS = 100
MAX_INTERIM = 8

_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
"""Failures to connect that say nothing about the engine."""

# What an engine may say to a client; everything else, hop-by-hop fields first, stays here.
_PASSED = frozenset((b"content-type", b"content-encoding", b"content-language", b"cache-control", b"retry-after"))


_SAYABLE = re.compile(r"[ -~\r\n]+")


class UpstreamError(Exception):
    """The engine did not give a whole answer. ``timeout`` tells silence from an end."""

    def __init__(self, message: str, timeout: bool = False) -> None:
        super().__init__(message)
        self.timeout = timeout


class Unreachable(UpstreamError):
    """No connection could be made."""


class UpstreamLink(Link):
    """A connection to an engine. ``reused`` says that it has carried an answer before,
    ``broken`` that a request could not be sent to its end."""

    __slots__ = ("_pool", "broken", "idle", "reused")

    def __init__(self, reactor: Reactor, sock: _socket.socket, pool: "Pool") -> None:
        super().__init__(reactor, sock)
        self._pool = pool
        self.broken = False
        self.idle = False
        self.reused = False

    def early(self) -> bytes:
        """What has arrived although the request could not be sent to its end: an engine
        that refuses a request may answer and close while the body is on its way."""
        self.broken = True
        try:
            return self.recv(READ_SIZE)
        except OSError:
            return b""

    def idle_readable(self) -> None:
        """In the pool: the engine closed, or sent what nobody asked for. In use: wait."""
        if self.idle:
            self._pool.drop(self)
        else:
            self.pause()

    def idle_expired(self) -> None:
        """In the pool for long enough."""
        if self.idle:
            self._pool.drop(self)
        else:
            super().idle_expired()


class Pool:
    """Idle connections to one address, the latest first. They are kept for ``idle`` seconds."""

    __slots__ = ("_idle", "_reactor", "host", "idle", "port")

    def __init__(self, reactor: Reactor, host: str, port: int) -> None:
        self._reactor = reactor
        self._idle: list[UpstreamLink] = []
        self.idle = IDLE_SECONDS
        self.host = host
        self.port = port

    def take(self) -> UpstreamLink | None:
        """An idle connection, if there is one."""
        if not self._idle:
            return None
        link = self._idle.pop()
        link.idle = False
        link.deadline = float("inf")
        return link

    def give(self, link: UpstreamLink) -> None:
        """Keep a connection whose answer ended cleanly."""
        if link.broken or len(self._idle) >= MAX_IDLE:
            link.close()
            return
        link.reused = True
        link.idle = True
        link.deadline = monotonic() + self.idle
        link.resume()
        self._idle.append(link)

    def drop(self, link: UpstreamLink) -> None:
        """Close an idle connection."""
        self._idle.remove(link)
        link.idle = False
        link.close()

    def connect(self, seconds: float) -> UpstreamLink:
        """A new connection. Raises ``Unreachable``, or ``Refused`` if it is this process
        that can have no more."""
        try:
            connected = gevent.socket.create_connection((self.host, self.port), timeout=seconds)
        except TimeoutError as error:
            raise Unreachable("the engine did not accept a connection in time", timeout=True) from error
        except (OSError, OverflowError, ValueError) as error:
            if own_shortage(error):
                raise Refused("overloaded", "The router has no connection left.") from error
            raise Unreachable("the engine does not accept connections") from error
        raw = _socket.socket(connected.family, socket.SOCK_STREAM, connected.proto, connected.detach())
        raw.setblocking(False)
        return UpstreamLink(self._reactor, raw, self)


def own_shortage(error: Exception) -> bool:
    """Whether it is this process that can have no more connections."""
    return isinstance(error, OSError) and error.errno in _OURS


class Answer:
    """The head of an engine's answer.

    ``length`` is that of the body; ``None`` means chunked, or until the connection ends
    if ``chunked`` is false. ``headers`` are the lines to pass on.
    """

    __slots__ = ("chunked", "content_type", "headers", "keep", "length", "retry_after", "status")

    def __init__(self) -> None:
        self.status = 0
        self.length: int | None = None
        self.chunked = False
        self.keep = False
        self.headers = b""
        self.content_type = b""
        self.retry_after: int | None = None


class _Head:
    __slots__ = ("answer", "complete", "count", "keep", "lengths", "parser", "transfer")

    def __init__(self) -> None:
        self.answer = Answer()
        self.lengths = 0
        self.count = 0
        self.transfer: bytes | None = None
        self.complete = False
        self.keep = False
        self.parser: Any = None

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.count += 1
        if name in _PASSED:
            self.answer.headers += name + b": " + value + b"\r\n"
            if name == b"content-type":
                self.answer.content_type = value
            elif name == b"retry-after" and value.isdigit():
                self.answer.retry_after = int(value[:6])
        elif name == b"content-length":
            self.lengths += 1
            self.answer.length = int(value)
        elif name == b"transfer-encoding":
            self.transfer = value if self.transfer is None else self.transfer + b"," + value

    def on_headers_complete(self) -> None:
        # Now: once a message without a body is complete llhttp has forgotten its flags.
        self.complete = True
        self.keep = self.parser.should_keep_alive()


def parse_answer(head: bytes) -> Answer:
    """The answer that ``head`` announces. Raises ``UpstreamError``."""
    found = _Head()
    parser = found.parser = httptools.HttpResponseParser(found)
    try:
        parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
        raise UpstreamError("the engine's answer is not HTTP") from error
    found.parser = None  # or each request would leave a cycle for the collector
    answer = found.answer
    answer.status = parser.get_status_code()
    if not found.complete or found.count > MAX_FIELDS or found.lengths > 1 or answer.status > 599:
        raise UpstreamError("the head of the engine's answer is malformed")
    if found.transfer is not None:
        if found.transfer.lower() != b"chunked" or answer.length is not None:
            raise UpstreamError("the engine's answer has no clear length")
        answer.chunked = True
    elif answer.status in (204, 304) or answer.status < 200:
        answer.length = 0
    answer.keep = (answer.chunked or answer.length is not None) and found.keep
    return answer


def read_answer(link: UpstreamLink, data: bytes, until: float) -> tuple[Answer, bytes]:
    """The answer's head, of which ``data`` has arrived, and the bytes after it.

    Raises ``UpstreamError``.
    """
    for _ in range(MAX_INTERIM):
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > MAX_HEAD:
                raise UpstreamError("the head of the engine's answer is too large")
            data += receive(link, until)
        if end > MAX_HEAD:
            raise UpstreamError("the head of the engine's answer is too large")
        answer = parse_answer(data[: end + 4])
        data = data[end + 4 :]
        if answer.status >= 200:
            return answer, data
        if answer.status == 101:
            break
    raise UpstreamError("the engine's answer is not one")


def receive(link: UpstreamLink, until: float, size: int = READ_SIZE) -> bytes:
    """Some bytes (never none). Raises ``UpstreamError``."""
    try:
        data = link.receive(until, size)
    except Expired as error:
        raise UpstreamError("the engine was silent for too long", timeout=True) from error
    except OSError as error:
        raise UpstreamError("the engine reset the connection") from error
    if not data:
        raise UpstreamError("the engine closed the connection before its answer ended")
    return data


class Body:
    """An answer's body, read piece by piece whatever its framing.

    ``ended`` is true after the last piece; ``clean`` says that the connection can carry
    another answer.
    """

    __slots__ = ("_answer", "_first", "_follower", "_left", "_link", "clean", "ended")

    def __init__(self, link: UpstreamLink, answer: Answer, first: bytes) -> None:
        self._link = link
        self._answer = answer
        self._first = first
        self._left = answer.length
        self._follower = ChunkFollower() if answer.chunked else None
        self.ended = answer.length == 0
        self.clean = self.ended and answer.keep and not first

    def read(self, until: float) -> bytes:
        """The next bytes of the body, ``b""`` at its end. Raises ``UpstreamError``; for a
        body without a length the end of the connection is its end."""
        while not self.ended:
            data = self._first
            self._first = b""
            if not data:
                if self._left is None and self._follower is None:
                    return self._read_to_end(until)
                data = receive(self._link, until)
            piece = self._take(data)
            if piece:
                return piece
        return b""

    def _take(self, data: bytes) -> bytes:
        if self._follower is not None:
            parts: list[bytes] = []
            try:
                self._follower.feed(data, parts)
            except ChunkError as error:
                raise UpstreamError("the engine's answer is cut wrongly into chunks") from error
            if self._follower.ended:
                self.ended = True
                self.clean = self._answer.keep and not self._follower.excess
            return b"".join(parts)
        if self._left is not None:
            piece = data[: self._left]
            self._left -= len(piece)
            if self._left == 0:
                self.ended = True
                self.clean = self._answer.keep and len(piece) == len(data)
            return piece
        return data

    def _read_to_end(self, until: float) -> bytes:
        try:
            data = self._link.receive(until)
        except Expired as error:
            raise UpstreamError("the engine was silent for too long", timeout=True) from error
        except OSError as error:
            raise UpstreamError("the engine reset the connection") from error
        self.ended = not data
        return data


def request_head(endpoint: Endpoint, path: bytes) -> bytes:
    """Head of a request to an engine or a provider, but for its id and length. ``path`` is
    the one under ``/v1`` that the client used.

    Nothing of the client's is in it: the key is the engine's own (RTR-12). Raises
    ``UpstreamError`` if HTTP has no words for what the endpoint says.
    """
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    if not endpoint.external or endpoint.port != (443 if endpoint.tls else 80):
        host += f":{endpoint.port}"
    target = endpoint.prefix.rstrip("/") + path.decode().removeprefix("/v1")
    lines = [f"POST {target} HTTP/1.1", f"host: {host}", "content-type: application/json"]
    if endpoint.external:
        lines.append("user-agent: llmgw")  # some providers turn away whoever has none
    if endpoint.key:
        lines.append(f"authorization: Bearer {endpoint.key}")
    head = "\r\n".join(lines)
    if not _SAYABLE.fullmatch(head) or " " in target or head.count("\n") != len(lines) - 1:
        raise UpstreamError("the engine's address or key has characters that cannot be sent")
    return head.encode("ascii") + b"\r\n"
