"""The client's side of a connection: requests in, answers out (RTR-13, RTR-18).

Heads are parsed by llhttp in its strict mode, plus what it leaves to its user. Each head
gets a parser of its own and bodies are framed here, so no byte after a head can be read
as anything else than what the head announced.
"""

import socket
from time import monotonic
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from llmgw.runtime.logs import Logger
from router.chunks import ChunkError, ChunkFollower
from router.errors import Refused, status_line
from router.link import READ_SIZE, Expired, Link, Reactor

log = Logger("router.http1")

MAX_PIPELINED = 65536
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 * 1024 * 1024
MAX_DISCARDED = 65536
"""A body nobody wants is read and thrown away up to this size, to keep the connection."""
MAX_TARGET = 8192

_SINGLE = frozenset(
    (
        b"authorization",
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"expect",
        b"host",
        b"transfer-encoding",
    )
)
"""Fields that may occur once: who reads which of two is how requests are smuggled."""


class ClientGone(Exception):
    """The client closed its connection while its request was being served."""


class Limits:
    """Bounds on what a client may send; seconds and bytes."""

    __slots__ = ("body", "body_bytes", "header", "header_bytes", "header_count", "keep_alive", "write")

    def __init__(self, settings: Any) -> None:
        self.header_bytes: int = settings["limits.header_bytes"]
        self.header_count: int = settings["limits.header_count"]
        self.body_bytes: int = settings["limits.body_bytes"]
        self.header: float = settings["timeouts.header"]
        self.body: float = settings["timeouts.body"]
        self.keep_alive: float = settings["timeouts.keep_alive"]
        self.write: float = settings["timeouts.client_write"]


class Request:
    """A request's head. ``length`` is that of the body, ``None`` if it is chunked;
    ``read`` says that the body was read."""

    __slots__ = ("expects", "headers", "id", "keep", "length", "method", "old", "path", "read")

    def __init__(self) -> None:
        self.method = b""
        self.path = b""
        self.headers: dict[bytes, bytes] = {}
        self.length: int | None = 0
        self.keep = False
        self.old = False  # HTTP/1.0
        self.expects = False
        self.id = b""
        self.read = False


class _Head:
    """Takes what llhttp finds in one head.

    ``keep`` is asked for at the end of the head: once a message without a body is
    complete llhttp has forgotten its flags.
    """

    __slots__ = ("complete", "count", "headers", "keep", "parser", "repeated", "url")

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.url = b""
        self.count = 0
        self.repeated = b""
        self.complete = False
        self.keep = False
        self.parser: Any = None

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.count += 1
        if name in self.headers:
            if name in _SINGLE:
                self.repeated = name
            value = self.headers[name] + b", " + value
        self.headers[name] = value

    def on_headers_complete(self) -> None:
        self.complete = True
        self.keep = self.parser.should_keep_alive()


def parse_head(head: bytes, limits: Limits) -> Request:
    """The request that ``head`` (up to and with its empty line) announces.

    Raises ``Refused``; the connection must be closed then.
    """
    found = _Head()
    parser = found.parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade as offer:
        log.debug("an offered upgrade is not taken", offer=offer)
    except httptools.HttpParserInvalidMethodError as error:
        raise Refused("method_not_allowed", "The method is not known.", close=True) from error
    except httptools.HttpParserError as error:
        raise Refused("invalid_request", f"The request's head is malformed: {error}.", close=True) from error
    found.parser = None  # or each request would leave a cycle for the collector
    headers = found.headers
    version = head[: head.index(b"\r\n")][-9:]
    if not found.complete or version not in (b" HTTP/1.1", b" HTTP/1.0"):
        raise Refused("invalid_request", "Speak HTTP/1.1.", close=True)
    if found.count > limits.header_count:
        raise Refused("headers_too_large", f"More than {limits.header_count} header fields.", close=True)
    if found.repeated:
        raise Refused("invalid_request", f"The field {found.repeated.decode()} is given twice.", close=True)
    request = Request()
    request.headers = headers
    request.method = parser.get_method()
    request.path = _path(found.url)
    request.old = version == b" HTTP/1.0"
    request.keep = found.keep and not request.old
    if b"host" not in headers and not request.old:
        raise Refused("invalid_request", "The request has no Host.", close=True)
    if b"transfer-encoding" in headers:
        if request.old or headers[b"transfer-encoding"].lower() != b"chunked" or b"content-length" in headers:
            raise Refused("invalid_request", "The only transfer coding understood is chunked.", close=True)
        request.length = None
    elif b"content-length" in headers:
        request.length = int(headers[b"content-length"])
    if b"expect" in headers:
        if headers[b"expect"].lower() != b"100-continue":
            raise Refused("invalid_request", "The only expectation understood is 100-continue.", close=True)
        request.expects = not request.old
    return request


def _path(target: bytes) -> bytes:
    """Path of a request target: origin form, absolute form or ``*``; no query."""
    if len(target) > MAX_TARGET:
        raise Refused("headers_too_large", f"The request target is longer than {MAX_TARGET} bytes.", close=True)
    path = target.partition(b"?")[0]
    if path[:7].lower() in (b"http://", b"https:/"):
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    return path


def unquote(path: bytes) -> str:
    """A percent-encoded path as text."""
    return unquote_to_bytes(path).decode("utf-8", "replace")


class ClientLink(Link):
    """A client's connection.

    ``buffer`` holds bytes that arrived and are not used yet; ``answered_at`` (monotonic) is
    when the latest answer began, if it has ``begun``. While a request is served
    ``owner`` is its greenlet, into which ``ClientGone`` is thrown as soon as the client
    closes (RTR-11).
    """

    __slots__ = ("_limits", "answered_at", "buffer", "ending", "gone", "idle", "owner", "slow")

    def __init__(self, reactor: Reactor, sock: Any, limits: Limits) -> None:
        super().__init__(reactor, sock)
        self._limits = limits
        self.buffer = b""
        self.answered_at = 0.0
        self.owner: Any = None
        self.gone = False
        self.idle = True  # waits for a request's first byte
        self.slow = False  # waits for the rest of a request's head
        self.ending = False  # the process drains: close when idle

    # ------------------------------------------------------------ for the hub

    def idle_readable(self) -> None:
        """While a request is served: keep what a client pipelines, notice when it goes."""
        if len(self.buffer) >= MAX_PIPELINED:
            self.pause()
            return
        try:
            data = self.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.buffer += data
            return
        self.pause()
        self.gone = True
        owner = self.owner
        if owner is not None:
            self.owner = None
            owner.throw(ClientGone)

    def end(self) -> None:
        """The process drains: an idle connection ends now, a busy one after its answer."""
        self.ending = True
        if self.idle:
            self.deadline = 0.0

    # ------------------------------------------------------ for the greenlet

    def read_request(self) -> Request | None:
        """The next request, or ``None`` when there is none any more.

        Raises ``Refused``, after which the connection must be closed, and ``OSError``.
        """
        limits = self._limits
        self.idle = True
        self.begun = False
        buffer = self.buffer
        if not buffer:
            if self.gone or self.ending:
                return None
            try:
                buffer = self.receive(monotonic() + limits.keep_alive)
            except Expired:
                return None
            if not buffer:
                return None
        self.idle = False
        end = buffer.find(b"\r\n\r\n")
        if end < 0 or buffer[0] < 0x41:
            buffer, end = self._read_head(buffer)
        end += 4
        if end > limits.header_bytes:
            raise Refused("headers_too_large", f"The head is larger than {limits.header_bytes} bytes.", close=True)
        self.buffer = buffer[end:]
        return parse_head(buffer[:end], limits)

    def _read_head(self, buffer: bytes) -> tuple[bytes, int]:
        limits = self._limits
        until = monotonic() + limits.header
        seen = 0
        self.slow = True
        while True:
            if seen == 0:
                buffer = buffer.lstrip(b"\r\n")  # RFC 9112, 2.2: empty lines before a request
            if buffer and not 0x41 <= buffer[0] <= 0x5A:
                raise Refused("invalid_request", "This is not HTTP. Speak plain HTTP/1.1 here.", close=True)
            end = buffer.find(b"\r\n\r\n", max(0, seen - 3))
            if end >= 0:
                self.slow = False
                return buffer, end
            if b"\n\n" in buffer:
                raise Refused("invalid_request", "Lines must end with CR and LF.", close=True)
            if len(buffer) > limits.header_bytes:
                raise Refused("headers_too_large", f"The head is larger than {limits.header_bytes} bytes.", close=True)
            seen = len(buffer)
            try:
                data = self.receive(until)
            except Expired as error:
                raise Refused("request_timeout", "The request's head took too long.", close=True) from error
            if not data:
                raise ClientGone
            buffer += data

    def read_body(self, request: Request) -> bytes:
        """The request's whole body. Raises ``Refused``, ``ClientGone``, ``OSError``."""
        request.read = True
        length = request.length
        if length is None:
            return self._read_chunked(request)
        self.check_length(request)
        buffer = self.buffer
        if len(buffer) == length:
            self.buffer = b""
            return buffer
        if len(buffer) > length:
            self.buffer = buffer[length:]
            return buffer[:length]
        until = monotonic() + self._limits.body
        self._continue(request, until)
        parts = [buffer]
        missing = length - len(buffer)
        self.buffer = b""
        while missing:
            data = self._receive_body(until, min(missing, READ_SIZE))
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def discard(self, request: Request) -> bool:
        """Throw away a body that nobody wants. Returns whether the connection can go on:
        not if the body is long, unsure to come, or slow. Raises ``ClientGone``, ``OSError``."""
        length = request.length
        if length is None or length > MAX_DISCARDED or (request.expects and length):
            return False
        until = monotonic() + LINGER_SECONDS
        buffer = self.buffer
        while len(buffer) < length:
            try:
                data = self.receive(until)
            except Expired:
                return False
            if not data:
                raise ClientGone
            buffer += data
        self.buffer = buffer[length:]
        request.read = True
        return True

    def check_length(self, request: Request) -> None:
        """Refuse a body that announces itself as too large, before any of it is read."""
        if request.length is not None and request.length > self._limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> Refused:
        return Refused("body_too_large", f"The body is larger than {self._limits.body_bytes} bytes.", close=True)

    def _read_chunked(self, request: Request) -> bytes:
        until = monotonic() + self._limits.body
        self._continue(request, until)
        follower = ChunkFollower()
        parts: list[bytes] = []
        data = self.buffer
        self.buffer = b""
        received = 0
        try:
            while True:
                if data:
                    follower.feed(data, parts)
                if follower.ended:
                    break
                received += len(data)
                # Framing counts as well: a body of one-byte chunks is no way around.
                if received > self._limits.body_bytes * 2 or sum(map(len, parts)) > self._limits.body_bytes:
                    raise self._too_large()
                if len(parts) > 1024:
                    parts = [b"".join(parts)]
                data = self._receive_body(until, READ_SIZE)
        except ChunkError as error:
            raise Refused("invalid_request", f"The body's chunks are malformed: {error}.", close=True) from error
        self.buffer = follower.excess
        body = b"".join(parts)
        if len(body) > self._limits.body_bytes:
            raise self._too_large()
        return body

    def _receive_body(self, until: float, size: int) -> bytes:
        try:
            data = self.receive(until, size)
        except Expired as error:
            raise Refused("request_timeout", "The request's body took too long.", close=True) from error
        if not data:
            raise ClientGone
        return data

    def _continue(self, request: Request, until: float) -> None:
        if request.expects and not self.buffer:
            self.send_all(b"HTTP/1.1 100 Continue\r\n\r\n", until)
            self.begun = False
        request.expects = False

    def respond(self, request: Request | None, status: int, headers: bytes, body: bytes, keep: bool) -> None:
        """Send a whole answer. ``headers`` are lines; framing and request id are added."""
        head = (
            status_line(status)
            + headers
            + (b"x-request-id: " + request.id + b"\r\n" if request is not None and request.id else b"")
            + (b"content-length: %d\r\n" % len(body) if status != 204 else b"")
            + (b"\r\n" if keep else b"connection: close\r\n\r\n")
        )
        if request is not None and request.method == b"HEAD":
            body = b""
        self.send_answer(head + body)

    def send_answer(self, data: bytes) -> None:
        """Send bytes of an answer, giving a slow client its time for each 64 KiB."""
        now = monotonic()
        if not self.begun:
            self.answered_at = now
        self.send_all(data, now + self._limits.write * (1 + len(data) // 65536))

    def linger(self) -> None:
        """End the connection so that the client can read the answer to a request that was
        not read to its end: closing at once would reset it."""
        until = monotonic() + LINGER_SECONDS
        self.sock.shutdown(socket.SHUT_WR)
        left = LINGER_BYTES
        while left > 0:
            data = self.receive(until)
            if not data:
                return
            left -= len(data)
