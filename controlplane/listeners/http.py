"""What the two HTTP listeners share: a WSGI server with limits on every connection.

What it refuses by itself has the same JSON shape as the applications' errors.
"""

import contextlib
import json
import secrets
import socket
from collections.abc import Callable, Iterable
from http.client import HTTPException
from ssl import SSL_ERROR_EOF
from typing import Any

import gevent
from gevent.pool import Pool
from gevent.pywsgi import WSGIHandler, WSGIServer

from controlplane.listeners.connection import LINGER, farewell, peer_name
from controlplane.listeners.files import Accepting, within
from controlplane.listeners.handshake import MAX_WAITING, PLAIN, Handshakes, NotTls
from controlplane.listeners.places import Places
from controlplane.listeners.refusals import Refusals
from controlplane.listeners.sockets import at
from llmgw.identity.names import IdentityError, Presented
from llmgw.identity.tls import explain
from llmgw.identity.tls import peer as peer_of
from llmgw.runtime.clock import Clock, SystemClock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address

MAX_CONNECTIONS = 2048
IDLE = 75.0
"""Seconds a peer may take for its next bytes, also between two requests."""

HEAD = 10.0
"""Seconds for the first request to begin, and from a request's first line to the end of its head."""

DROPPED = 8 * 1024 * 1024
"""Bytes that are read of a body that is refused."""

PEER = "llmgw.peer"
"""Key of a request's environment: the ``Presented`` of who sent it, or in words why there is none."""

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _TooLarge(ValueError):
    """The announced body exceeds the limit."""


class _NoLength(ValueError):
    """The body comes without its length."""


class _Displaced(OSError):
    """Another connection has the place."""


class _Reader:
    """What a peer sends; tells the handler whenever that is waited for."""

    def __init__(self, handler: "_Handler", file: Any) -> None:
        self._handler = handler
        self._file = file

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def close(self) -> None:
        self._file.close()

    def read(self, *limit: int) -> bytes:
        return self._wait(self._file.read, *limit)

    def readline(self, *limit: int) -> bytes:
        return self._wait(self._file.readline, *limit)

    def _wait(self, take: Callable[..., bytes], *limit: int) -> bytes:
        self._handler.reading = True
        try:
            return take(*limit)
        finally:
            self._handler.reading = False


class _Handler(WSGIHandler):  # type: ignore[misc]
    ignored_socket_errors = (*WSGIHandler.ignored_socket_errors, "timed out", SSL_ERROR_EOF)

    def __init__(self, sock: Any, address: Any, server: Any) -> None:
        sock.settimeout(IDLE)
        with contextlib.suppress(OSError):  # it went away already
            # Head and body are two writes: the second must not wait for the first one's acknowledgement (40 ms).
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer = _presented(sock) if server.mutual else None
        self.who = str(self._peer.identity) if isinstance(self._peer, Presented) else ""
        self.reading = False
        self._greenlet = gevent.getcurrent()
        self._asked = False
        self._served = False
        self._over: tuple[str, str, str] | None = None
        """Why the connection ends before anything was asked: status, code and words."""
        super().__init__(sock, address, server)
        self.rfile: _Reader = _Reader(self, self.rfile)

    def handle(self) -> None:
        """All that comes over the connection, if there is a place for it."""
        if not self.server.places.come(self):
            self._over = ("503 Service Unavailable", "busy", "all connections are in use: try again")
        reader = self.rfile
        try:
            super().handle()
        finally:
            self.server.places.go(self)
            with contextlib.suppress(OSError):
                reader.close()  # for as long as it is open the connection is

    def leave(self) -> None:
        """See ``Guest``."""
        gevent.get_hub().loop.run_callback(self._displace)

    def _displace(self) -> None:
        if self.reading:  # else it has just sent what we waited for, and gets its answer
            self._over = ("503 Service Unavailable", "busy", "asked for nothing while too many others came")
            self._greenlet.throw(_Displaced())

    def get_environ(self) -> dict[str, Any]:
        """With who is at the other end of a mutual TLS connection."""
        environ: dict[str, Any] = super().get_environ()
        if self._peer is not None:
            environ[PEER] = self._peer
        return environ

    def read_requestline(self) -> Any:
        """A peer that sends a byte now and then holds its connection no longer than one
        that sends none."""
        limit = IDLE if self._served else HEAD
        try:
            with gevent.Timeout(limit, TimeoutError("timed out")):
                line = super().read_requestline()
        except TimeoutError:
            self._over = ("408 Request Timeout", "timeout", f"no request came in {limit:g} s")
            raise
        self._asked = bool(line)
        return line

    def read_request(self, raw_requestline: str) -> Any:
        """Refuse a body that is too large, or of unknown length, before it is read."""
        with gevent.Timeout(HEAD, TimeoutError("timed out")):
            read = super().read_request(raw_requestline)
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            self._drop(DROPPED)
            raise _NoLength("send the body with a Content-Length")
        if (self.content_length or 0) > self.server.max_body:
            self._drop(self.content_length)
            raise _TooLarge(f"the body may have {self.server.max_body} bytes")
        return read

    def _drop(self, length: int) -> None:
        """Read what comes of a body that is refused, for a while: who is still sending when the
        connection ends does not get to read why."""
        left = min(length, DROPPED)
        with contextlib.suppress(OSError), gevent.Timeout(LINGER, False):
            while left > 0 and (data := self.rfile.read(min(left, 65536))):
                left -= len(data)

    def log_request(self) -> None:
        """Requests are logged by the applications, where they matter."""

    def handle_one_request(self) -> Any:
        """Tell in our words also that the first line is too long, and to one that never asked
        why nobody waits any longer."""
        result = None if self._over else super().handle_one_request()
        if isinstance(result, tuple) and result[0] == "414":
            return _refusal("414 URI Too Long", "validation_failed", "the path with its query is too long")
        if result is True:
            self._served = True
            self.server.places.served(self)
        elif self._over is not None and not (self._asked or self._served):
            # One that was served before may be sending its next request: that must not get this for its answer.
            who = {"certificate": str(self._peer.identity)} if isinstance(self._peer, Presented) else {}
            peer = peer_name(self.client_address)
            self.server.refusals.tell("connection refused", peer=peer, **who, why=self._over[2])
            return _refusal(*self._over)
        return result

    def _handle_client_error(self, ex: Exception) -> tuple[str, bytes] | None:
        if isinstance(ex, OSError):
            return None  # the peer went away, or took too long
        if isinstance(ex, _TooLarge):
            return _refusal("413 Content Too Large", "body_too_large", str(ex))
        if isinstance(ex, _NoLength):
            return _refusal("411 Length Required", "validation_failed", str(ex))
        if isinstance(ex, HTTPException) or "headers status: 'Line too long'" in str(ex):
            status, words = "431 Request Header Fields Too Large", "the header has too many fields, or one too long"
        else:
            status, words = "400 Bad Request", "the request cannot be read"
        peer = peer_name(self.client_address)
        self.server.refusals.tell("request refused", peer=peer, code=status[:3], why=f"{words}: {str(ex)[:200]}")
        return _refusal(status, "validation_failed", words)


def _refusal(status: str, code: str, message: str) -> tuple[str, bytes]:
    """What the server answers by itself; the connection ends after it."""
    request_id = secrets.token_hex(8)
    body = json.dumps({"code": code, "message": message, "request_id": request_id}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    head += f"X-Request-Id: {request_id}\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
    return status[:3], head.encode() + b"Connection: close\r\n\r\n" + body


class _Server(Accepting, WSGIServer):  # type: ignore[misc]
    max_body = 0
    mutual = False
    places: Places

    def wrap_socket_and_handle(self, client_socket: Any, address: Any) -> Any:
        """A handshake that fails ends its connection, and nothing else."""
        try:
            wrapped = self.wrap_socket(client_socket, **self.ssl_args)
        except OSError as error:
            self.refusals.tell("a TLS handshake failed", peer=peer_name(address), why=explain(error))
            with contextlib.suppress(OSError):
                if isinstance(error, NotTls) and error.http:
                    client_socket.settimeout(2.0)
                    client_socket.sendall(_refusal("400 Bad Request", "validation_failed", PLAIN)[1])
                    farewell(client_socket)
            client_socket.close()
            return None
        try:
            return self.handle(wrapped, address)
        except OSError:
            return None  # the peer went away while it was told what is wrong
        finally:
            with contextlib.suppress(OSError):
                wrapped.close()


class _ErrorLog:
    """Where the server writes what it finds wrong: one log entry each."""

    def __init__(self, log: Logger) -> None:
        self._log = log

    def write(self, text: str) -> None:
        """Log ``text``."""
        if text.strip():
            self._log.warning("http", detail=text.strip()[:2000])

    def flush(self) -> None:
        """Nothing is held back."""

    def writelines(self, lines: Iterable[str]) -> None:
        """Log the lines."""
        self.write("".join(lines))


def sender(environ: dict[str, Any]) -> str:
    """``host:port`` that a request came from."""
    return peer_name((environ.get("REMOTE_ADDR", "-"), environ.get("REMOTE_PORT", "-")))


def _presented(sock: Any) -> Presented | str:
    try:
        return peer_of(sock)
    except IdentityError as error:
        return str(error)


class HttpListener:
    """Serves a WSGI application on one address or listening socket, over TLS if it is given.

    ``max_body`` is bytes of a request, ``most`` connections at once after their handshake. ``mutual``: TLS asks
    for certificates, and ``PEER`` of a request's environment says whose came.
    """

    def __init__(
        self,
        address: Any,
        application: Application,
        log: Logger,
        max_body: int,
        tls: Handshakes | None = None,
        *,
        clock: Clock | None = None,
        mutual: bool = False,
        most: int = MAX_CONNECTIONS,
    ) -> None:
        most = within(most)
        self._server = _Server(
            at(address),
            application,
            spawn=Pool(most + within(MAX_WAITING)),
            log=None,
            error_log=_ErrorLog(log),
            handler_class=_Handler,
            **({} if tls is None else {"ssl_context": tls}),
        )
        self._server.max_body = max_body
        self._server.mutual = mutual
        self._server.places = Places(most)
        self._server.refusals = Refusals(log, clock or SystemClock())

    def start(self) -> "HttpListener":
        """Begin to listen. Raises ``OSError`` if the address cannot be had."""
        self._server.start()
        return self

    @property
    def address(self) -> Address:
        """The address listened on, with the port that was chosen for port 0."""
        return Address(self._server.server_host, self._server.server_port)

    def stop(self, timeout: float = 0.5) -> None:
        """Take no more connections; end those that are open after ``timeout`` seconds."""
        self._server.stop(timeout=timeout)
