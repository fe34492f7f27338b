"""The routers' listener: table, reports, usage, activation (``llmgw.wire.routing``); and for
another control plane that leads, one path to say so (``controlplane.leadership.notice``)."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import gevent
import msgspec

from controlplane.events import EpochSeen, RouterReported
from controlplane.identities import Credentials
from controlplane.inbox import Inbox
from controlplane.leadership.notice import MAX_NOTICE, NOTICE_PATH, Noted, Notice
from controlplane.listeners.http import PEER, sender
from controlplane.listeners.refusals import Refusals
from controlplane.listeners.shares import Shares
from controlplane.publish.table import Publisher
from controlplane.services.identities import Identities, NotAdmitted
from controlplane.store.spool import SpoolFull
from llmgw.identity.names import MAX_NAME, IdentityError, Presented
from llmgw.identity.pem import presented as presented_in
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.wire.routing import (
    ACTIVATE_PATH,
    EPOCH_HEADER,
    IDENTITY_PATH,
    MAX_REPORT,
    REPORT_PATH,
    ROUTER_ID_HEADER,
    TABLE_PATH,
    USAGE_PATH,
    Activate,
    Activation,
    Renewal,
    Renewed,
    Report,
    UsageBatch,
    encode,
)

log = Logger("llmgw.routers")

MAX_WAIT = 30.0
MAX_ACTIVATE = 4096
MAX_RENEWAL = 16 * 1024
RENEW_PAUSE = 0.5
"""Seconds after which a certificate is handed over, and the next one may be asked for: each
costs a signature or a line in the log."""

MAX_BODIES = 128 * 1024 * 1024
"""Bytes of requests that are read at once, of all routers."""

MAX_ENDPOINTS = 1_000_000
"""Endpoints in the last reports of all routers' processes: each is kept, at 200 bytes."""

PROCESS = 1000
"""A process counts for so many of them, whatever it reports."""

FORGET_AFTER = 60.0
"""Seconds after which a router process that no longer reports leaves the list."""

_NO_AGENTS = (
    "this is routers.listen, which is for routers: agents go to agents.listen (port 7001 unless set otherwise); "
    "correct control_planes in the agent's settings"
)

_ID_VARIABLE, _EPOCH_VARIABLE = (
    "HTTP_" + header.upper().replace("-", "_") for header in (ROUTER_ID_HEADER, EPOCH_HEADER)
)
_EPOCH = re.compile(r"(\d{1,19})(?: ([A-Za-z0-9_-]{1,64}))?")


@dataclass(frozen=True, slots=True)
class RouterSeen:
    """A router process by its last report; ``at`` is monotonic, ``holds`` its share of
    ``MAX_ENDPOINTS``."""

    router_id: str
    boot: str
    version: str
    generation: str
    at: float
    holds: int = 0


class _Refused(Exception):
    def __init__(self, status: str, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = list(headers.items())


class RouterApplication:
    """WSGI application of the routers' listener. ``take_usage(router id, batch)`` returns
    once a batch is durable, and raises ``SpoolFull`` if it cannot be. ``leads`` gives our
    epoch and the leader's id that goes with it. ``superseded(epoch, name)`` takes the word of
    a control plane that it leads; whether we lead nevertheless."""

    def __init__(
        self,
        publisher: Publisher,
        inbox: Inbox,
        *,
        credentials: Credentials,
        identities: Identities,
        clock: Clock,
        leads: Callable[[], tuple[int, str]],
        superseded: Callable[[int, str], bool],
        take_usage: Callable[[str, UsageBatch], None],
    ) -> None:
        self._publisher = publisher
        self._inbox = inbox
        self._credentials = credentials
        self._identities = identities
        self._clock = clock
        self._leads = leads
        self._superseded = superseded
        self._refusals = Refusals(log, clock)
        self._take_usage = take_usage
        self._batches = msgspec.json.Decoder(UsageBatch)
        self._reports = msgspec.json.Decoder(Report)
        self._activations = msgspec.json.Decoder(Activate)
        self._renewals = msgspec.json.Decoder(Renewal)
        self._notices = msgspec.json.Decoder(Notice)
        self._routes = {
            TABLE_PATH: ("GET", self._table),
            REPORT_PATH: ("POST", self._report),
            ACTIVATE_PATH: ("POST", self._activate),
            USAGE_PATH: ("POST", self._usage),
            IDENTITY_PATH: ("POST", self._identity),
            NOTICE_PATH: ("POST", self._notice),
        }
        self._seen: dict[tuple[str, str], RouterSeen] = {}
        self._endpoints = Shares(MAX_ENDPOINTS)
        self._bodies = Shares(MAX_BODIES)
        self._renewing: set[str] = set()

    def current(self) -> tuple[RouterSeen, ...]:
        """The router processes that reported of late."""
        now = self._clock.monotonic()
        return tuple(seen for seen in self._seen.values() if now - seen.at <= FORGET_AFTER)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            status, headers, body = self._answer(environ)
        except _Refused as error:
            status, body = error.status, json.dumps({"code": error.code, "message": str(error)}).encode()
            headers = [("Content-Type", "application/json"), ("Connection", "close"), *error.headers]
        except Exception:
            log.exception("a router's request failed", path=environ.get("PATH_INFO"))
            status, headers = "500 Internal Server Error", [("Content-Type", "application/json")]
            body = json.dumps({"code": "internal_error", "message": "see the log of the control plane"}).encode()
        if body or not status.startswith(("204", "304")):
            headers = [*headers, ("Content-Length", str(len(body)))]
        start_response(status, headers)
        return [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        who = self._authenticate(environ)
        route = self._routes.get(environ["PATH_INFO"])
        if route is None:
            raise _Refused("404 Not Found", "not_found", f"the paths here are {', '.join(self._routes)}")
        method, view = route
        if environ["REQUEST_METHOD"] != method:
            raise _Refused("405 Method Not Allowed", "method_not_allowed", f"use {method}", Allow=method)
        self._learn_epoch(environ, who)
        return view(environ, who)

    def _authenticate(self, environ: dict[str, Any]) -> str:
        """The router's id, which is its certificate's; on the one path that is theirs, the
        control plane whose certificate it is."""
        router_id = str(environ.get(_ID_VARIABLE, ""))[: MAX_NAME + 1]
        presented = environ.get(PEER)
        try:
            if not isinstance(presented, Presented):
                raise NotAdmitted("unauthorised", presented or "the peer showed no certificate")
            if environ["PATH_INFO"] == NOTICE_PATH:
                if presented.identity.kind == "controlplane":
                    return str(presented.identity)
                raise NotAdmitted(
                    "unauthorised", f"the certificate is that of {presented.identity}: this path is not for it"
                )
            if not router_id:  # no router: one that shows another's certificate says who it is
                agent = presented.identity.kind == "node"
                words = _NO_AGENTS if agent else f"the header {ROUTER_ID_HEADER} does not say which router asks"
                raise NotAdmitted("unauthorised", f"the certificate is that of {presented.identity}, and {words}")
            self._identities.admit(presented, "router", router_id)
        except NotAdmitted as error:
            self._refusals.tell(
                "router refused",
                router=router_id[:64],
                peer=sender(environ),
                certificate=str(presented.identity) if isinstance(presented, Presented) else "",
                code=error.code,
                why=error,
            )
            raise _Refused("403 Forbidden", error.code, str(error)) from error
        return router_id

    def _learn_epoch(self, environ: dict[str, Any], router_id: str) -> None:
        """A router with a table of a higher epoch than ours, or of another leader's same one,
        is a reason to doubt that we lead (AGT-04)."""
        match = _EPOCH.fullmatch(environ.get(_EPOCH_VARIABLE, ""))
        if match is None:
            return
        epoch, leader = int(match[1]), match[2] or ""
        ours, us = self._leads()
        if epoch > ours or (epoch == ours and leader and leader != us):
            self._inbox.offer(EpochSeen(router_id, epoch, leader))

    def _table(self, environ: dict[str, Any], _router_id: str) -> tuple[str, list[tuple[str, str]], bytes]:
        query = parse_qs(environ.get("QUERY_STRING", ""), max_num_fields=8)
        generation = query.get("generation", [""])[-1]
        try:
            wait = float(query.get("wait", ["0"])[-1])
        except ValueError:
            wait = -1.0
        if not 0 <= wait <= MAX_WAIT:
            raise _Refused("400 Bad Request", "validation_failed", f"wait must be 0 to {MAX_WAIT:g} seconds")
        body = self._publisher.wait(generation, wait)
        self._authenticate(environ)  # it may have been revoked while it waited
        if body is not None:
            return "200 OK", [("Content-Type", "application/json"), ("Cache-Control", "no-store")], body
        if not generation:
            raise _busy("there is no route table yet: try again")
        return "304 Not Modified", [], b""

    def _report(self, environ: dict[str, Any], router_id: str) -> tuple[str, list[tuple[str, str]], bytes]:
        report: Report = self._decode(environ, router_id, self._reports, MAX_REPORT)
        key, holds = (router_id, report.boot), PROCESS + len(report.endpoints)
        if key not in self._seen:
            self._forget()
        before = self._seen[key].holds if key in self._seen else 0
        if not self._endpoints.take(router_id, holds - before):
            words = (
                f"the reports of {router_id} name too many endpoints: no router's may name more than it leaves free "
                f"of {MAX_ENDPOINTS}"
            )
            self._refusals.tell("report refused", router=router_id, peer=sender(environ), code="busy", why=words)
            raise _busy(words)
        now = self._clock.monotonic()
        self._seen[key] = RouterSeen(router_id, report.boot, report.version[:64], report.generation[:64], now, holds)
        if not self._inbox.offer(RouterReported(router_id, report)):
            raise _busy("try again later")
        return "204 No Content", [], b""

    def _forget(self) -> None:
        """Drop the processes that no longer report."""
        current = {(seen.router_id, seen.boot): seen for seen in self.current()}
        for key in self._seen.keys() - current.keys():
            self._endpoints.give(key[0], self._seen[key].holds)
        self._seen = current

    def _activate(self, environ: dict[str, Any], router_id: str) -> tuple[str, list[tuple[str, str]], bytes]:
        """Answers how the model is routed now. Loading a model on demand (DEM-02)
        begins here: an event for the writer, and a wait for the model's next state."""
        asked: Activate = self._decode(environ, router_id, self._activations, MAX_ACTIVATE)
        answer = Activation(model=self._publisher.model(asked.model))
        return "200 OK", [("Content-Type", "application/json")], encode(answer)

    def _usage(self, environ: dict[str, Any], router_id: str) -> tuple[str, list[tuple[str, str]], bytes]:
        """Answers 204 once the batch is durable here, whether or not the store is there (STO-03)."""
        batch: UsageBatch = self._decode(environ, router_id, self._batches, MAX_REPORT)
        try:
            self._take_usage(router_id, batch)
        except SpoolFull as error:
            message = f"the batch was not kept, send it again: {error}"
            raise _Refused("503 Service Unavailable", "busy", message, **{"Retry-After": "5"}) from error
        return "204 No Content", [], b""

    def _notice(self, environ: dict[str, Any], who: str) -> tuple[str, list[tuple[str, str]], bytes]:
        """Another leads, as it says (HA-02)."""
        notice: Notice = self._decode(environ, who, self._notices, MAX_NOTICE)
        answer = Noted(leads=self._superseded(notice.epoch, notice.name))
        return "200 OK", [("Content-Type", "application/json"), ("Connection", "close")], encode(answer)

    def _identity(self, environ: dict[str, Any], router_id: str) -> tuple[str, list[tuple[str, str]], bytes]:
        """A new certificate of the same identity, and whom to trust (SEC-01)."""
        asked: Renewal = self._decode(environ, router_id, self._renewals, MAX_RENEWAL)
        presented: Presented = environ[PEER]
        certificate, fault = "", ""
        if asked.request and router_id in self._renewing:
            fault = "a certificate is being made for this router at this moment: try again"
        elif asked.request:
            self._renewing.add(router_id)
            try:
                after = self._identities.revoked_until(presented.identity)  # our clock may have been set back since
                chain = self._credentials.sign(presented.identity, asked.request.encode(), after)
                self._identities.record(presented, presented_in(chain))
                certificate = chain.decode()
            except (NotAdmitted, IdentityError) as error:
                fault = str(error)
                log.warning("a certificate was not renewed", router=router_id, why=error)
            else:
                log.info("certificate renewed", router=router_id)
            finally:
                try:
                    gevent.sleep(RENEW_PAUSE)
                finally:
                    self._renewing.discard(router_id)
        known = not asked.authorities or asked.authorities == self._credentials.digest
        answer = Renewed(
            certificate=certificate,
            authorities="" if known else self._credentials.authorities.decode(),
            renew=not certificate and self._identities.newest(presented) and self._credentials.outdated(presented),
            fault=fault,
        )
        return "200 OK", [("Content-Type", "application/json"), ("Cache-Control", "no-store")], encode(answer)

    def _decode(self, environ: dict[str, Any], router_id: str, decoder: Any, limit: int) -> Any:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length > limit:
            raise _Refused("413 Content Too Large", "body_too_large", f"the body may have {limit} bytes")
        if not self._bodies.take(router_id, length):
            raise _busy("too much is being read from this router at this moment: try again later")
        try:
            return decoder.decode(environ["wsgi.input"].read(length))
        except OSError as error:
            words = "the body ended before its announced length"
            raise _Refused("400 Bad Request", "validation_failed", words) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise _Refused("400 Bad Request", "validation_failed", str(error)) from error
        finally:
            self._bodies.give(router_id, length)


def _busy(message: str) -> _Refused:
    return _Refused("503 Service Unavailable", "busy", message, **{"Retry-After": "1"})
