"""A control plane as routers see it: a route table by long poll, reports and usage taken."""

import json
import ssl
import tempfile
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from llmgw.wire.routing import (
    EPOCH_HEADER,
    IDENTITY_PATH,
    REPORT_PATH,
    ROUTER_ID_HEADER,
    TABLE_PATH,
    USAGE_PATH,
    Renewal,
    Renewed,
    Report,
    RequestRecord,
    RouteTable,
    UsageBatch,
    encode,
)
from tests.harness import identities


class RouteServer:
    """Serves ``table``; replace it with ``publish``. ``reports`` are those that came.
    Answers to polls take ``delay`` seconds longer. Speaks TLS with an identity of the test
    run's authority; a router has to show that it is ``router_id``, else it is refused.

    It leads unless ``standby`` is set: the address of another to name, or ``""``. ``epochs``
    are the values of the epoch header that came, ``connections`` counts the handshakes.
    While ``running`` is not set nobody is answered; after ``stop`` nobody is any more.
    Requests for a new certificate are in ``renewals`` and answered with ``renewed``, or with
    a certificate for what they ask.

    Usage batches are counted once by their boot and sequence, as the real one does: ``counted``
    holds those, ``posts`` the bodies of every attempt. ``usage_script`` says what happens to
    the next posts: an ``int`` is answered and nothing counted, ``"hang"`` is not answered until
    ``stop`` or ``let_go``, ``"die"`` counts and ends the connection within its answer.
    """

    def __init__(self, table: RouteTable, router_id: str = "r1") -> None:
        self.table = table
        self.standby: str | None = None
        self.epochs: list[str] = []
        self.connections = 0
        self.renewals: list[Renewal] = []
        self.renewed: Renewed | None = None
        self.reports: list[Report] = []
        self.garbage: list[bytes] = []
        self.polls = 0
        self.delay = 0.0
        self.usage_script: deque[int | str] = deque()
        self.posts: list[bytes] = []
        self.counted: dict[tuple[str, int], UsageBatch] = {}
        self.let_go = threading.Event()
        self.running = threading.Event()
        self.running.set()
        self.stopped = False
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                return

            def _allowed(self) -> bool:
                uri = identities.uri_of(self.connection)
                if uri != f"llmgw:router:{router_id}" or self.headers[ROUTER_ID_HEADER] != router_id:
                    self._send(403, b'{"code":"unauthorised","message":"another identity"}')
                    return False
                if outer.standby is not None:
                    told = {"code": "not_leader", "message": "stands by", "leader": outer.standby}
                    self._send(503, json.dumps(told).encode())
                    return False
                outer.epochs.append(self.headers.get(EPOCH_HEADER, ""))
                return True

            def _send(self, status: int, body: bytes = b"") -> None:
                outer.running.wait(60)
                if outer.stopped:
                    self.close_connection = True
                    return
                self.send_response(status)
                if status in (204, 304):
                    body = b""
                else:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if url.path != TABLE_PATH or not self._allowed():
                    return
                query = parse_qs(url.query)
                known = query.get("generation", [""])[0]
                with outer._changed:
                    outer.polls += 1
                    outer._changed.wait_for(
                        lambda: outer.garbage or outer.table.generation != known, min(float(query["wait"][0]), 2.0)
                    )
                    garbage = outer.garbage.pop(0) if outer.garbage else None
                    table = outer.table
                if garbage is not None:
                    self._send(200, garbage)
                    return
                time.sleep(outer.delay)
                if table.generation == known:
                    self._send(304)
                else:
                    self._send(200, encode(table))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == REPORT_PATH and self._allowed():
                    with outer._changed:
                        outer.reports.append(msgspec.json.decode(body, type=Report))
                    self._send(204)
                elif self.path == USAGE_PATH and self._allowed():
                    self._usage(body)
                elif self.path == IDENTITY_PATH and self._allowed():
                    self._renew(msgspec.json.decode(body, type=Renewal))

            def _renew(self, renewal: Renewal) -> None:
                with outer._changed:
                    outer.renewals.append(renewal)
                    answer = outer.renewed
                if answer is None and renewal.request:
                    answer = Renewed(certificate=identities.ours().sign(renewal.request, "router", router_id))
                self._send(200, msgspec.json.encode(answer or Renewed()))

            def _usage(self, body: bytes) -> None:
                with outer._changed:
                    outer.posts.append(body)
                    action = outer.usage_script.popleft() if outer.usage_script else 204
                if action == "hang":
                    outer.let_go.wait(60)
                    self.close_connection = True
                    return
                if action in (204, "die"):
                    batch = msgspec.json.decode(body, type=UsageBatch)
                    with outer._changed:
                        outer.counted.setdefault((batch.boot, batch.sequence), batch)
                if action == "die":
                    self.wfile.write(b"HTTP/1.1 20")
                    self.close_connection = True
                else:
                    self._send(int(action), b'{"code":"scripted"}')

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def finish_request(self, request: Any, client_address: Any) -> None:
                request.settimeout(10)
                secure = identities.answered(outer.context, request)
                with outer._changed:
                    outer.connections += 1
                secure.settimeout(None)
                try:
                    super().finish_request(secure, client_address)
                finally:
                    secure.close()

            def handle_error(self, request: Any, client_address: Any) -> None:
                return  # a router that went away in the middle of a poll

        with tempfile.TemporaryDirectory() as folder:
            self.show(identities.ours().controlplane(Path(folder)))
        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def show(self, folder: Path) -> None:
        """Present and trust what an identity folder holds, from the next connection on."""
        self.context: ssl.SSLContext = identities.server(folder)

    @property
    def records(self) -> list[RequestRecord]:
        """Every record counted so far."""
        with self._changed:
            return [record for batch in self.counted.values() for record in batch.records]

    def publish(self, table: RouteTable) -> None:
        """Answer every poll with ``table`` from now on."""
        with self._changed:
            self.table = table
            self._changed.notify_all()

    def stop(self) -> None:
        self.stopped = True
        self.running.set()
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
