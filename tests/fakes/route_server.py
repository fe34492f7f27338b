"""A control plane as routers see it: a route table by long poll, and reports taken."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from llmgw.wire.routing import REPORT_PATH, ROUTER_ID_HEADER, TABLE_PATH, Report, RouteTable, encode


class RouteServer:
    """Serves ``table``; replace it with ``publish``. ``reports`` are those that came.
    Answers to polls take ``delay`` seconds longer."""

    def __init__(self, table: RouteTable, token: str, router_id: str = "r1") -> None:
        self.table = table
        self.reports: list[Report] = []
        self.garbage: list[bytes] = []
        self.polls = 0
        self.delay = 0.0
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                return

            def _allowed(self) -> bool:
                if self.headers["Authorization"] == f"Bearer {token}" and self.headers[ROUTER_ID_HEADER] == router_id:
                    return True
                self._send(401, b'{"code":"unauthorised"}')
                return False

            def _send(self, status: int, body: bytes = b"") -> None:
                self.send_response(status)
                if status not in (204, 304):
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

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                return  # a router that went away in the middle of a poll

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def publish(self, table: RouteTable) -> None:
        """Answer every poll with ``table`` from now on."""
        with self._changed:
            self.table = table
            self._changed.notify_all()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
