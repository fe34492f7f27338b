"""A control plane that stands by: it tells everybody who asks where the leader is (HA-01).

Agents, routers and those who join are told over TLS, people by errors of the admin API. It
knows nothing of the fleet; ``/healthz`` and ``/metrics`` answer.
"""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.identities import Credentials
from controlplane.leadership.driver import Leadership
from controlplane.leadership.figures import families
from controlplane.listeners import upgrade
from controlplane.listeners.connection import farewell
from controlplane.listeners.door import Arrived, Door
from controlplane.listeners.handshake import Handshakes
from controlplane.listeners.http import HttpListener
from controlplane.listeners.sockets import Sockets
from controlplane.listeners.tls import ServerTls
from llmgw import __version__
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Loaded
from llmgw.wire.frames import encode
from llmgw.wire.messages import Refuse

log = Logger("llmgw.standby")

RETRY = 1.0
"""Seconds after which whoever was told may ask again: a takeover takes no longer than a few."""

LIMIT = 5.0
"""Seconds an agent has to read what it is told."""

MAX_BODY = 4 * 1024 * 1024
"""Bytes of a request that are read before it is answered: else the answer would be lost."""

PIECE = 64 * 1024
"""So much of it is in memory at once."""

Start = Callable[[str, list[tuple[str, str]]], Any]


class Standby:
    """Answers on every socket until ``stop``. ``admin_tls`` is that of the admin API, if any;
    ``waiting_bytes`` what of usage lies on our disk and is not in the store, if known."""

    def __init__(
        self,
        settings: Loaded,
        sockets: Sockets,
        leadership: Leadership,
        clock: Clock,
        *,
        credentials: Credentials,
        admin_tls: ServerTls | None,
        waiting_bytes: Callable[[], int | None],
    ) -> None:
        self._leadership = leadership
        self._waiting_bytes = waiting_bytes
        self._listeners: list[Any] = [
            Door(
                sockets["agents.listen"],
                credentials.mutual,
                self._refuse_agent,
                clock,
                silence=settings["agents.silence"],
                hello=settings["agents.hello"],
                max_pending=settings["agents.max_pending"],
            )
        ]
        for name, tls in (
            ("routers", Handshakes(credentials.mutual)),
            ("join", Handshakes(credentials.plain)),
            ("admin", None if admin_tls is None else Handshakes(admin_tls)),
        ):
            answer = _Answers(name, self)
            self._listeners.append(HttpListener(sockets[f"{name}.listen"], answer, log, max_body=MAX_BODY, tls=tls))

    def start(self) -> "Standby":
        """Begin to answer."""
        for listener in self._listeners:
            listener.start()
        return self

    def stop(self) -> None:
        """Answer no more; who is being told is told to the end."""
        door, *https = self._listeners
        door.close()
        for listener in https:
            listener.stop(timeout=0.1)

    @property
    def words(self) -> str:
        """Who leads, for people."""
        row = self._leadership.row
        if row is None or not row.owner:
            return "this control plane stands by, and none leads yet: try again"
        where = self.leader("admin")
        return f"this control plane stands by: {row.holder.name or 'another'} leads" + (f" ({where})" if where else "")

    def leader(self, listener: str) -> str:
        """The address of the leader's listener; empty if it is not known."""
        row = self._leadership.row
        return row.holder.addresses.get(listener, "") if row is not None and row.owner else ""

    def metrics(self) -> bytes:
        """The text format of Prometheus (OBS-01)."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Figures(self._leadership, self._waiting_bytes))
        return generate_latest(registry)

    def _refuse_agent(self, arrived: Arrived) -> Callable[[], None]:
        refuse = Refuse(
            code="not_leader", message=self.words, leader=self.leader("agents") or None, retry_seconds=RETRY
        )

        def tell() -> None:
            log.debug("an agent was sent on", node=arrived.request.node_id, peer=arrived.peer, leader=refuse.leader)
            arrived.sock.settimeout(LIMIT)
            arrived.sock.sendall(upgrade.ACCEPTED + encode(refuse))
            farewell(arrived.sock)

        return tell


class _Answers:
    """WSGI application of one listener."""

    def __init__(self, name: str, standby: Standby) -> None:
        self._name = name
        self._standby = standby

    def __call__(self, environ: Mapping[str, Any], start_response: Start) -> Iterable[bytes]:
        with contextlib.suppress(OSError):  # a body that breaks off: whoever sent it may still read
            left = min(int(environ.get("CONTENT_LENGTH") or 0), MAX_BODY)
            while left > 0 and (piece := environ["wsgi.input"].read(min(left, PIECE))):
                left -= len(piece)
        kind, status = "application/json", "200 OK"
        path = environ["PATH_INFO"] if self._name == "admin" and environ["REQUEST_METHOD"] in ("GET", "HEAD") else ""
        if path == "/healthz":
            body = b'{"status":"ok"}\n'
        elif path == "/metrics":
            kind, body = "text/plain; version=0.0.4; charset=utf-8", self._standby.metrics()
        else:
            status, body = "503 Service Unavailable", self._not_leader()
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if status.startswith("503"):  # who keeps the connection would go on asking us
            headers += [("Retry-After", f"{RETRY:.0f}"), ("Connection", "close")]
        start_response(status, headers)
        return [body]

    def _not_leader(self) -> bytes:
        answer = {"code": "not_leader", "message": self._standby.words, "request_id": secrets.token_hex(8)}
        leader = self._standby.leader(self._name)
        return json.dumps(answer | ({"leader": leader} if leader else {})).encode()


class _Figures(Collector):
    def __init__(self, leadership: Leadership, waiting_bytes: Callable[[], int | None]) -> None:
        self._leadership = leadership
        self._waiting_bytes = waiting_bytes

    def collect(self) -> Iterable[Metric]:
        """What a standby knows of itself."""
        info = GaugeMetricFamily("llmgw_controlplane_info", "Version of the control plane.", labels=("version", "boot"))
        info.add_metric((__version__, ""), 1)
        yield info
        waiting = self._waiting_bytes()
        if waiting is not None:
            text = "Usage on disk that is not in the store yet."
            yield GaugeMetricFamily("llmgw_usage_waiting_bytes", text, waiting)
        yield from families(self._leadership)
