"""What a worker process does with a client's connection: the one place that knows every
path and who may use it (RTR-01, RTR-12, RTR-14)."""

import _socket
import os
import random
import re
from collections.abc import Callable
from heapq import nsmallest
from itertools import count
from operator import attrgetter
from time import monotonic
from typing import Any

from gevent import getcurrent

from llmgw.runtime.logs import Logger
from llmgw.wire.routing import RoutedKey, RouteTable
from router import pages, rewrite, table
from router.delivery import Times
from router.errors import Refused, unready
from router.external import Pools
from router.http1 import ClientGone, ClientLink, Limits, Request, unquote
from router.keys import bearer
from router.link import NEVER, Expired, Reactor
from router.pick import draw, stick
from router.proxy import Proxy
from router.usage import CLIENT_LEFT, Done

log = Logger("router.service")

PROXIED = frozenset((b"/v1/chat/completions", b"/v1/completions"))
"""Paths whose requests go to an engine, under the same path there. One row is one path."""

PAGES = frozenset((b"/", b"/healthz", b"/readyz"))
"""Paths that need no key: exactly these (RTR-14)."""

MODELS = b"/v1/models"

_GET = b"GET, HEAD, OPTIONS"
_POST = b"POST, OPTIONS"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Service:
    """The data path of one process. ``routes`` is replaced whole by ``use``; ``record`` takes
    each request that came with a key and named a model, once it has ended."""

    def __init__(self, settings: Any, record: Callable[[Done], None]) -> None:
        self.reactor = Reactor()
        self.limits = Limits(settings)
        self.pools = Pools(self.reactor, settings["upstream.ca_file"], settings["timeouts.connect_external"])
        self._record = record
        self._rng = random.Random()  # noqa: S311 - spreads load
        self.routes: table.Routes | None = None
        self.ending = False
        self._public = not settings["listen"].loopback
        self._clients: set[ClientLink] = set()
        self._boot = os.urandom(8).hex().encode()
        self._requests = count(1)
        times = Times(
            connect=settings["timeouts.connect"],
            first_byte=settings["timeouts.first_byte"],
            answer=settings["timeouts.answer"],
            between=settings["timeouts.between_bytes"],
            buffered=settings["limits.buffered_answer"],
        )
        connections = settings["limits.connections"]
        self._crowded: int = connections - connections // 8
        self._proxy = Proxy(self.reactor, self.pools, times, self._rng, self._served)

    def use(self, fresh: RouteTable) -> None:
        """Route by ``fresh`` from now on."""
        if self._public and not fresh.auth and (self.routes is None or self.routes.table.auth):
            log.warning("keys are off and the listener is public: anyone who reaches it can use every model")
        self.routes = table.build(fresh, self.routes)
        self.pools.retain([live.endpoint for live in self.routes.live.values()])
        if self.routes.keys.unusable:
            log.warning("keys without a valid digest are ignored", keys=",".join(self.routes.keys.unusable))

    def end(self) -> None:
        """Begin to drain: idle connections close, busy ones close after their answer."""
        self.ending = True
        for client in list(self._clients):
            client.end()

    def make_room(self) -> None:
        """End connections if most of those allowed are used: first the ones that have been
        idle for longest, then those that have been sending a request's head for longest.
        Whoever opens many and asks nothing must not keep everybody else out. To be called
        every now and then."""
        excess = len(self._clients) - self._crowded + 1
        if excess <= 0:
            return
        spare = [client for client in self._clients if (client.idle or client.slow) and client.deadline < NEVER]
        for client in nsmallest(excess, spare, key=attrgetter("slow", "deadline")):
            client.deadline = 0.0  # the reactor's next round ends it

    # -------------------------------------------------------------- connections

    def serve(self, sock: _socket.socket) -> None:
        """Serve a connection until it ends. ``sock`` is non-blocking, and closed at the end."""
        client = ClientLink(self.reactor, sock, self.limits)
        client.ending = self.ending
        self._clients.add(client)
        try:
            while self._serve_one(client):
                pass
        except (ClientGone, Expired, OSError) as error:
            log.debug("client connection ended", why=repr(error))
        finally:
            self._clients.discard(client)
            client.close()

    def _serve_one(self, client: ClientLink) -> bool:
        """One request. Returns whether the connection goes on."""
        request = None
        try:
            request = client.read_request()
            if request is None:
                return False
            request.id = self._request_id(request)
            if client.ending:
                request.keep = False
            return self._dispatch(client, request)
        except Refused as refused:
            return self._refuse(client, request, refused)
        except (ClientGone, Expired, OSError):
            raise
        except Exception:
            # The client is told nothing of an error of ours but that it is ours.
            log.exception("request failed", request=request.id.decode() if request is not None else "-")
            return self._refuse(client, request, Refused("internal_error", "An error of the router's own.", close=True))
        finally:
            client.owner = None

    def _refuse(self, client: ClientLink, request: Request | None, refused: Refused) -> bool:
        if client.begun:
            return False  # part of an answer is out already: only its missing end can tell
        keep = request is not None and request.keep and not refused.close
        read = request is not None and (request.read or request.length == 0)
        if keep and request is not None and not read:
            keep = read = client.discard(request)
        client.respond(request, refused.error.status, refused.headers + self.reactor.date, refused.body, keep)
        if refused.close or not read:
            self._linger(client)
        return keep

    def _linger(self, client: ClientLink) -> None:
        """Let a client read its answer, unless others wait for the connection."""
        if len(self._clients) < self._crowded:
            client.linger()

    def _request_id(self, request: Request) -> bytes:
        given = request.headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        return b"req-%b-%x" % (self._boot, next(self._requests))

    # ----------------------------------------------------------------- requests

    def _dispatch(self, client: ClientLink, request: Request) -> bool:
        path = request.path
        method = request.method
        if path in PROXIED:
            if method == b"POST":
                return self._ask(client, request)
            return self._other_method(client, request, _POST)
        if path in PAGES or path == MODELS or path.startswith(MODELS + b"/"):
            if method not in (b"GET", b"HEAD"):
                return self._other_method(client, request, _GET)
            return self._show(client, request, self._page(request))
        if method == b"OPTIONS" and path == b"*":
            return self._other_method(client, request, b"GET, HEAD, POST, OPTIONS")
        self._authenticate(request)
        raise Refused("not_found", f"There is nothing at {_shown(unquote(path))}.")

    def _other_method(self, client: ClientLink, request: Request, allow: bytes) -> bool:
        if request.method == b"OPTIONS":
            return self._show(client, request, pages.Page(204, b"allow: " + allow + b"\r\n", b""))
        raise Refused("method_not_allowed", f"Use {allow.partition(b',')[0].decode()} here.", allow=allow)

    def _page(self, request: Request) -> pages.Page:
        path = request.path
        if path == b"/":
            return pages.landing(request.headers)
        if path == b"/healthz":
            return pages.healthz()
        if path == b"/readyz":
            return pages.readyz(self.routes, self.ending)
        key = self._authenticate(request)
        routes = self._routes()
        if path == MODELS:
            return pages.models(routes, key)
        name = unquote(path[len(MODELS) + 1 :])
        page = pages.model(routes, key, name)
        if page is None:
            raise _unknown(name)
        return page

    def _show(self, client: ClientLink, request: Request, page: pages.Page) -> bool:
        keep = request.keep and (request.length == 0 or client.discard(request))
        client.respond(request, page.status, page.headers + self.reactor.date, page.body, keep)
        if request.length != 0 and not request.read:
            self._linger(client)
        return keep

    def _ask(self, client: ClientLink, request: Request) -> bool:
        began = monotonic()
        key = self._authenticate(request)
        routes = self._routes()
        client.check_length(request)
        self._check_type(request)
        body = client.read_body(request)
        if self.routes is not routes:  # a body can take minutes; what was revoked meanwhile is
            key = self._authenticate(request)
            routes = self._routes()
        try:
            asked = rewrite.read(body)
        except rewrite.BodyFault as fault:
            raise Refused(fault.code, str(fault), param=fault.param) from fault
        name = asked.model
        done = Done(began, request.id.decode(), "" if key is None else key.id, "", CLIENT_LEFT, name)
        if asked.stream:
            done.stream = True
        try:
            route = routes.models.get(name)
            drawn = route is None
            if route is None:
                route = self._draw(routes, key, name)
            self._check_route(route, key, name, done)
            client.owner = getcurrent()
            if client.gone:
                raise ClientGone
            return self._proxy.serve((client, request, asked, body, done), route, drawn)
        except (ClientGone, Expired, OSError):
            raise
        except rewrite.BodyFault as fault:
            refused = Refused(fault.code, str(fault), param=fault.param)
            done.status, done.code = refused.error.status, refused.error.code
            raise refused from fault
        except Refused as refused:
            done.status, done.code = refused.error.status, refused.error.code
            raise
        except BaseException:
            done.status, done.code = 500, "internal_error"
            raise
        finally:
            if client.begun:
                done.first_byte = client.answered_at - began
            done.duration = monotonic() - began
            self._record(done)

    @staticmethod
    def _check_type(request: Request) -> None:
        headers = request.headers
        kind = headers.get(b"content-type")
        if kind is not None and kind.partition(b";")[0].strip().lower() != b"application/json":
            raise Refused("unsupported_media_type", "Send JSON, with Content-Type: application/json.")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refused("unsupported_media_type", "Send the body without a Content-Encoding.")

    def _authenticate(self, request: Request) -> RoutedKey | None:
        """The key a request came with, ``None`` where keys are off."""
        routes = self._routes()
        if not routes.table.auth:
            return None
        given = request.headers.get(b"authorization")
        if given is None:
            raise Refused("invalid_api_key", "Send an API key, as Authorization: Bearer KEY.")
        key = routes.keys.find(bearer(given), self.reactor.wall)
        if key is None:
            raise Refused("invalid_api_key", "The API key is not valid here: it is wrong, revoked or has expired.")
        return key

    def _routes(self) -> table.Routes:
        if self.routes is None:
            raise Refused("no_route_table", "The router has just started and knows no model yet.")
        return self.routes

    def _served(self, name: str) -> table.Route | None:
        """The route of a model as it is now, ``None`` once nobody may be sent there."""
        route = self.routes.models.get(name) if self.routes is not None else None
        return None if route is None or route.model.state in ("off", "stopped") else route

    def _draw(self, routes: table.Routes, key: RoutedKey | None, name: str) -> table.Route:
        """One of the models that a weighted alias stands for (CAT-13): of those that the key
        may use, and rather one that has an endpoint."""
        split = routes.splits.get(name)
        if split is None:
            raise _unknown(name)
        targets = [target for target in split.targets if pages.may_use(key, target[0].model, name)]
        if not targets:
            raise _not_allowed(name)
        targets = [target for target in targets if _routed(target[0])] or targets
        if split.sticky and key is not None:
            return stick(targets, name, key.id)
        return draw(targets, self._rng)

    @staticmethod
    def _check_route(route: table.Route, key: RoutedKey | None, name: str, done: Done) -> None:
        """Refuse a model that the key may not use, or that nobody can answer for."""
        model = route.model
        done.model = model.name
        if not pages.may_use(key, model, name):
            raise _not_allowed(name)
        # What people switched off or stopped has no fallback either.
        if not _routed(route) and (model.state in ("off", "stopped") or not route.fallbacks):
            raise unready(model)


def _routed(route: table.Route) -> bool:
    return bool(route.endpoints) and route.model.state not in ("off", "stopped")


def _not_allowed(name: str) -> Refused:
    return Refused("model_not_allowed", f"This API key may not use the model {_shown(name)}.", param="model")


def _unknown(name: str) -> Refused:
    return Refused("model_not_found", f"The model {_shown(name)} does not exist.", param="model")


def _shown(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."
