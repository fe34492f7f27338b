"""What the two HTTP listeners share: a WSGI server with limits on every connection.

What it refuses by itself has the same JSON shape as the applications' errors.
"""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable
from http.client import HTTPException
from typing import Any

import gevent
from gevent.pool import Pool
from gevent.pywsgi import WSGIHandler, WSGIServer

from controlplane.listeners.connection import peer_name
from controlplane.listeners.tls import ServerTls
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address

MAX_CONNECTIONS = 2048
IDLE = 75.0
"""Seconds a peer may take for its next bytes, also between two requests."""

HEAD = 10.0
"""Seconds from a request's first line to the end of its head."""

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _TooLarge(ValueError):
    """The announced body exceeds the limit."""


class _NoLength(ValueError):
    """The body comes without its length."""


class _Handler(WSGIHandler):  # type: ignore[misc]
    ignored_socket_errors = (*WSGIHandler.ignored_socket_errors, "timed out")

    def __init__(self, sock: Any, address: Any, server: Any) -> None:
        sock.settimeout(IDLE)
        super().__init__(sock, address, server)

    def read_requestline(self) -> Any:
        """A peer that sends a byte now and then holds its connection no longer than one
        that sends none."""
        with gevent.Timeout(IDLE, TimeoutError("timed out")):
            return super().read_requestline()

    def read_request(self, raw_requestline: str) -> Any:
        """Refuse a body that is too large, or of unknown length, before it is read."""
        with gevent.Timeout(HEAD, TimeoutError("timed out")):
            read = super().read_request(raw_requestline)
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            raise _NoLength("send the body with a Content-Length")
        if (self.content_length or 0) > self.server.max_body:
            raise _TooLarge(f"the body may have {self.server.max_body} bytes")
        return read

    def log_request(self) -> None:
        """Requests are logged by the applications, where they matter."""

    def handle_one_request(self) -> Any:
        """Tell in our words also that the first line is too long."""
        result = super().handle_one_request()
        if isinstance(result, tuple) and result[0] == "414":
            return _refusal("414 URI Too Long", "validation_failed", "the path with its query is too long")
        return result

    def _handle_client_error(self, ex: Exception) -> tuple[str, bytes] | None:
        if isinstance(ex, OSError):
            return None  # the peer went away, or took too long
        if isinstance(ex, _TooLarge):
            return _refusal("413 Content Too Large", "body_too_large", str(ex))
        if isinstance(ex, _NoLength):
            return _refusal("411 Length Required", "validation_failed", str(ex))
        self.server.error_log.write(f"request of {peer_name(self.client_address)} refused: {str(ex)[:200]}")
        if isinstance(ex, HTTPException) or "headers status: 'Line too long'" in str(ex):
            words = "the header has too many fields, or one that is too long"
            return _refusal("431 Request Header Fields Too Large", "validation_failed", words)
        return _refusal("400 Bad Request", "validation_failed", "the request cannot be read")


def _refusal(status: str, code: str, message: str) -> tuple[str, bytes]:
    """What the server answers by itself; the connection ends after it."""
    request_id = secrets.token_hex(8)
    body = json.dumps({"code": code, "message": message, "request_id": request_id}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    head += f"X-Request-Id: {request_id}\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
    return status[:3], head.encode() + b"Connection: close\r\n\r\n" + body


class _Server(WSGIServer):  # type: ignore[misc]
    max_body = 0
    log_peers: Logger

    def wrap_socket_and_handle(self, client_socket: Any, address: Any) -> Any:
        """A handshake that fails ends its connection, and nothing else."""
        try:
            wrapped = self.wrap_socket(client_socket, **self.ssl_args)
        except OSError as error:
            why = getattr(error, "reason", None) or error.strerror or str(error)
            self.log_peers.debug("a TLS handshake failed", peer=peer_name(address), why=why)
            client_socket.close()
            return None
        try:
            return self.handle(wrapped, address)
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


class HttpListener:
    """Serves a WSGI application on one address, over TLS if it is given. ``max_body`` is
    bytes of a request."""

    def __init__(
        self, address: Address, application: Application, log: Logger, max_body: int, tls: ServerTls | None = None
    ) -> None:
        self._server = _Server(
            (address.host, address.port),
            application,
            spawn=Pool(MAX_CONNECTIONS),
            log=None,
            error_log=_ErrorLog(log),
            handler_class=_Handler,
            **({} if tls is None else {"ssl_context": tls}),
        )
        self._server.max_body = max_body
        self._server.log_peers = log

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
