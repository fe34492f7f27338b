"""A real router: ``python -m router.main`` with its workers, and a raw client."""

import contextlib
import hashlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml

from llmgw.wire.routing import Endpoint, RoutedKey, RoutedModel, RouteTable
from tests.fakes.route_server import RouteServer
from tests.fakes.upstream import FakeUpstream
from tests.harness import identities
from tests.harness.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
ROUTER_ID = "r1"
KEY = "sk-llmgw-0123456789abcdef0123456789abcdef"


def until(condition: Callable[[], Any], seconds: float = 10.0, what: str = "") -> Any:
    """The first true value of ``condition``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds * PATIENCE:g} s for {what or condition}"
        time.sleep(0.01)


def endpoint(upstream: FakeUpstream, name: str = "e1", **fields: Any) -> Endpoint:
    return Endpoint(
        id=name, host="127.0.0.1", port=upstream.port, upstream_model=upstream.name, key=upstream.key, **fields
    )


def routed_key(token: str = KEY, name: str = "k1", **fields: Any) -> RoutedKey:
    return RoutedKey(id=name, digest=hashlib.sha256(token.encode()).hexdigest(), **fields)


def table_of(
    *models: RoutedModel, generation: str = "g1", keys: tuple[RoutedKey, ...] | None = None, **fields: Any
) -> RouteTable:
    return RouteTable(generation=generation, models=models, keys=(routed_key(),) if keys is None else keys, **fields)


class Router:
    """A router process and the control plane it asks. ``settings`` are sections of its file. Its identity is
    made unless ``directory`` has one; ``accepted``: it is the one that the control plane lets in."""

    def __init__(
        self, directory: Path, table: RouteTable | None, workers: int = 1, accepted: bool = True, **settings: Any
    ) -> None:
        self.control = RouteServer(table, ROUTER_ID) if table is not None else None
        self.identity = directory / "identity"
        if not self.identity.exists():
            identities.ours().router(self.identity, ROUTER_ID)
        self.directory = directory
        self._settings = {
            "listen": "127.0.0.1:0",
            "workers": workers,
            "control_planes": [f"127.0.0.1:{self.control.port if self.control else 1}"],
            "router_id": ROUTER_ID,
            "identity": str(self.identity),
            "state_dir": str(directory / "state"),
            **settings,
        }
        self.start(wait=table is not None and accepted)

    def start(self, wait: bool = True) -> None:
        config = self.directory / "router.yaml"
        config.write_text(yaml.safe_dump(self._settings))
        self.log = self.directory / "router.log"
        with self.log.open("ab") as log:
            seen = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "router.main", "--config", str(config)], cwd=ROOT, stderr=log, stdout=log
            )

        def listening() -> Any:
            assert self.process.poll() is None, self.log.read_text()
            return re.search(r"listening address=[\d.]+:(\d+)", self.log.read_bytes()[seen:].decode())

        self.port = int(until(listening, 15, "the listener")[1])
        if wait:
            # Each worker is ready by itself, so ask often enough to meet them all.
            for _ in range(4 * self._settings["workers"]):
                until(lambda: self.get("/readyz").status == 200, 15, "a route table")

    @property
    def workers(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def connect(self) -> "Client":
        return Client(self.port)

    def get(self, path: str, *lines: str) -> "Answer":
        with self.connect() as client:
            client.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n")
            return client.answer()

    def stop(self) -> int:
        """SIGTERM and the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def __enter__(self) -> "Router":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        workers = self.workers if self.process.poll() is None else []
        if error is not None:
            sys.stderr.write(self.log.read_text()[-4000:])
        self.process.kill()
        self.process.wait()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        if self.control is not None:
            self.control.stop()


class Answer:
    """A whole answer. ``headers`` have lower-case names; ``body`` is free of framing."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, complete: bool) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.complete = complete

    @property
    def json(self) -> Any:
        import json

        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Client:
    """A raw connection, so that a test decides about every byte."""

    def __init__(self, port: int, receive_buffer: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(30)
        self.sock.connect(("127.0.0.1", port))
        self.buffer = b""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: str | bytes) -> None:
        self.sock.sendall(data.encode() if isinstance(data, str) else data)

    def post(self, body: str | bytes, path: str = "/v1/chat/completions", key: str = KEY, lines: str = "") -> None:
        body = body.encode() if isinstance(body, str) else body
        auth = f"Authorization: Bearer {key}\r\n" if key else ""
        self.send(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{auth}{lines}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def more(self) -> bytes:
        """Whatever comes next, ``b""`` at the end."""
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        self.buffer += data
        return data

    def readable(self) -> bool:
        """Whether something has come, or the end."""
        return bool(select.select([self.sock], [], [], 0)[0])

    def read_until(self, text: bytes) -> bytes:
        while text not in self.buffer:
            assert self.more(), f"ended before {text!r}: {self.buffer!r}"
        return self.buffer

    def head(self) -> tuple[int, dict[str, str]]:
        self.read_until(b"\r\n\r\n")
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:])
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    def answer(self, bodiless: bool = False) -> Answer:
        status, headers = self.head()
        if bodiless or status == 204:
            return Answer(status, headers, b"", True)
        if headers.get("transfer-encoding") == "chunked":
            return self._chunked(status, headers)
        if "content-length" in headers:
            length = int(headers["content-length"])
            while len(self.buffer) < length and self.more():
                continue
            body, self.buffer = self.buffer[:length], self.buffer[length:]
            return Answer(status, headers, body, len(body) == length)
        while self.more():
            continue
        body, self.buffer = self.buffer, b""
        return Answer(status, headers, body, True)

    def _chunked(self, status: int, headers: dict[str, str]) -> Answer:
        body = b""
        while True:
            line = self._line()
            if line is None:
                return Answer(status, headers, body, False)
            size = int(line, 16)
            while len(self.buffer) < size:
                if not self.more():
                    return Answer(status, headers, body + self.buffer, False)
            body, self.buffer = body + self.buffer[:size], self.buffer[size:]
            after = self._line()
            while size == 0 and after:  # trailers
                after = self._line()
            if after is None or size == 0:
                return Answer(status, headers, body, after == b"")
            assert after == b"", "a chunk is longer than its size"

    def _line(self) -> bytes | None:
        while b"\r\n" not in self.buffer:
            if not self.more():
                return None
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line
