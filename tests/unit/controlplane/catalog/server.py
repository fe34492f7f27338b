"""A server on loopback that answers as a test wants, also wrongly, with TLS if wanted."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Script = Callable[["Request"], bytes | Iterator[bytes]]


@dataclass(frozen=True)
class Request:
    """What was asked. Header names are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]


def answer(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """An HTTP answer, as it should be."""
    given = {"Content-Length": str(len(body)), **(headers or {})}
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def listing(value: Any) -> bytes:
    """An answer in JSON."""
    return answer(body=json.dumps(value).encode(), headers={"Content-Type": "application/json"})


def redirect(to: str, status: int = 302) -> bytes:
    """An answer that sends on."""
    return answer(status, headers={"Location": to})


@dataclass
class Server:
    """One listener. ``routes`` maps a path, or ``*``, to what is answered."""

    tls: ssl.SSLContext | None = None
    routes: dict[str, bytes | Script] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def hold(self) -> Iterator[bytes]:
        """Answers nothing until the server is closed."""
        self.closing.wait()
        yield b""

    def drip(self, data: bytes, every: float = 0.01) -> Iterator[bytes]:
        """A byte at a time."""
        for byte in data:
            if self.closing.wait(every):
                return
            yield bytes([byte])

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            stream = self.tls.wrap_socket(connection, server_side=True) if self.tls else connection
            stack.callback(stream.close)
            data = b""
            while b"\r\n\r\n" not in data:
                received = stream.recv(65536)
                if not received:
                    return
                data += received
            first, *lines = data.partition(b"\r\n\r\n")[0].decode().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            request = Request(method, path, headers)
            self.requests.append(request)
            given = self.routes.get(path.partition("?")[0], self.routes.get("*", answer(404)))
            given = given(request) if callable(given) else given
            for chunk in [given] if isinstance(given, bytes) else given:
                stream.sendall(chunk)


@dataclass
class Names:
    """A resolver that knows what a test tells it, and counts."""

    known: Mapping[str, Sequence[str]]
    asked: list[str] = field(default_factory=list)

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.known:
            raise OSError("unknown")
        return self.known[host]
