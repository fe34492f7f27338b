"""A control plane that stands by: it tells everybody who asks where the leader is (HA-01).

Agents, routers and those who join are told over TLS, people by errors of the admin API. It
knows nothing of the fleet; ``/healthz`` and ``/metrics`` answer.
"""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.identities import Credentials
from controlplane.leadership.driver import NAMESAKE, Leadership
from controlplane.leadership.figures import families
from controlplane.listeners import upgrade
from controlplane.listeners.connection import farewell
from controlplane.listeners.door import Arrived, Door
from controlplane.listeners.handshake import Handshakes
from controlplane.listeners.http import MAX_CONNECTIONS, HttpListener
from controlplane.listeners.join import MOST
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
"""Seconds after which whoever was told may ask again."""

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
        for name, tls, most in (
            ("routers", Handshakes(credentials.mutual), MAX_CONNECTIONS),
            ("join", Handshakes(credentials.plain), MOST),
            ("admin", None if admin_tls is None else Handshakes(admin_tls), MAX_CONNECTIONS),
        ):
            answer, socket = _Answers(name, self), sockets[f"{name}.listen"]
            self._listeners.append(HttpListener(socket, answer, log, max_body=MAX_BODY, tls=tls, most=most))

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
        """Who leads, for how long, and what keeps us from it, for people."""
        unable = self._leadership.unable
        twin = f"; {NAMESAKE}" if self._leadership.namesake is not None else ""
        return self._who + self._when + twin + (f"; it cannot lead itself: {unable}" if unable else "")

    @property
    def _who(self) -> str:
        holder = self._leadership.leader
        where = self.leader("admin")
        if holder is not None and not where and "admin" in holder.addresses:
            where = "ask it on its own machine"
        where = f" ({where})" if where else ""
        name = "" if holder is None else holder.name or "another"
        if self._leadership.failing:
            last = f"; {name} did when it last answered{where}" if name else ""
            return (
                "this control plane stands by, and the store does not answer it (its log says why): who leads is not "
                f"known for certain{last}"
            )
        if not name:
            return "this control plane stands by, and none leads yet: try again"
        return f"this control plane stands by: {name} leads{where}"

    @property
    def _when(self) -> str:
        """Whether the leader is silent, and when we lead: the rest of the sentence."""
        leadership = self._leadership
        words, unrenewed, takes_in = "", leadership.unrenewed, leadership.takes_in
        if leadership.overdue and unrenewed is not None:
            words = (
                f", but it did not renew its lease for {unrenewed:.0f} s, and should every {leadership.renew:g} s: it "
                "is down, or does not reach the store"
            )
        if takes_in is not None:
            unless = "" if leadership.leader is None else "if it renews its lease no more, "
            words += f"; {unless}this one leads in {max(1, ceil(takes_in))} s"
        return words

    def told(self, listener: str) -> str:
        """What whoever asks a listener is told: on the admin API's all of it, elsewhere who leads."""
        if listener == "admin":
            return self.words
        return self._who + ("; it cannot lead itself: see its log" if self._leadership.unable else "")

    @property
    def figures(self) -> dict[str, float]:
        """The same for programs, as far as it is known, in seconds."""
        known = {
            "leader_unrenewed_seconds": self._leadership.unrenewed,
            "takeover_seconds": self._leadership.takes_in,
        }
        return {name: round(value, 1) for name, value in known.items() if value is not None}

    def leader(self, listener: str) -> str:
        """The address of the leader's listener; empty if it is not known, or the same as ours, such as a
        loopback address: whoever went there would come back here."""
        holder, ours = self._leadership.leader, self._leadership.holder.addresses.get(listener)
        where = "" if holder is None else holder.addresses.get(listener, "")
        return "" if where == ours else where

    def metrics(self) -> bytes:
        """The text format of Prometheus (OBS-01)."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Figures(self._leadership, self._waiting_bytes))
        return generate_latest(registry)

    def _refuse_agent(self, arrived: Arrived) -> Callable[[], None]:
        refuse = Refuse(
            code="not_leader",
            message=self.told("agents"),
            leader=self.leader("agents") or None,
            retry_seconds=RETRY,
            takeover_seconds=self._leadership.takes_in,
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
        answer = {"code": "not_leader", "message": self._standby.told(self._name), "request_id": secrets.token_hex(8)}
        leader = self._standby.leader(self._name)
        answer |= {"leader": leader} if leader else {}
        return json.dumps(answer | (self._standby.figures if self._name == "admin" else {})).encode()


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
