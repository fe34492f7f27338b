"""Puts the admin API together.

On loopback it answers only to its own name (against DNS rebinding). Everywhere it takes
no change from a page of another site, and nothing without a token but what tells nobody
anything: the OpenAPI document, its page, ``/healthz`` and ``/metrics``.
"""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, g, request

from controlplane.api import (
    audit,
    catalog,
    definitions,
    docs,
    errors,
    events,
    health,
    holds,
    identities,
    keys,
    labels,
    loglevel,
    models,
    nodes,
    openapi,
    replicas,
    requests,
    scopes,
    secrets,
    settings,
    status,
    tokens,
    usage,
    users,
)
from controlplane.api.base import EXTENSION, NEEDS, PREFIX, said, services
from controlplane.services.auth import require
from controlplane.services.context import Services
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Fault

log = Logger("llmgw.api")

MAX_BODY = 1024 * 1024
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
_SAFE = ("GET", "HEAD", "OPTIONS")
RESOURCES = (
    *(status, nodes, labels, holds, models, catalog, replicas, keys, scopes, usage, requests, events),
    *(settings, loglevel, users, tokens, identities, secrets, audit),
)
OPEN = ("docs", "health")
"""Blueprints that need no token."""


class _App(Flask):
    def log_exception(self, exc_info: Any) -> None:  # noqa: ARG002 - Flask's signature
        """Into the log under the request id; the client sees no traceback."""
        log.exception("a request failed", request_id=errors.request_id(), method=request.method, path=request.path)


def create_app(services: Services, version: str, *, loopback: bool = True) -> Flask:
    """The WSGI application of the admin listener. ``loopback``: it listens there alone."""
    app = _App("llmgw.api", static_folder=None)
    app.config.update(
        API_TITLE="llmgw admin API",
        API_VERSION=version,
        OPENAPI_VERSION="3.1.0",
        MAX_CONTENT_LENGTH=MAX_BODY,
        MAX_FORM_MEMORY_SIZE=0,
    )
    app.url_map.merge_slashes = False  # its redirects would answer with a page
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions[EXTENSION] = services
    api = errors.AdminApi(app)
    for module in RESOURCES:
        api.register_blueprint(module.blueprint, url_prefix=PREFIX)
    document = openapi.complete(definitions.describe(api.spec.to_dict()))
    app.register_blueprint(docs.blueprint_of(document), url_prefix=PREFIX)
    app.register_blueprint(health.blueprint)
    errors.install(app)
    _all_have_roles(app)
    app.before_request(_checks(_query_names(document), loopback))
    app.after_request(_finish)
    return app


def _all_have_roles(app: Flask) -> None:
    """An operation that nobody thought of the roles of is a fault of ours, not open to all."""
    for rule in app.url_map.iter_rules():
        if rule.endpoint not in NEEDS and rule.endpoint.partition(".")[0] not in OPEN:
            raise LookupError(f"the operation {rule.endpoint} names no roles")


def _checks(queries: dict[tuple[str, str], set[str]], loopback: bool) -> Callable[[], Response | None]:
    def check() -> Response | None:
        errors.request_id()
        if loopback and _host_name(f"//{request.host}") not in LOOPBACK_NAMES:
            return errors.respond("bad_host", "the Host header must be a loopback name or address", 421)
        origin = request.headers.get("Origin")
        if request.method not in _SAFE and origin is not None and _authority(origin) != request.host:
            return errors.respond("bad_origin", "the request comes from a web page of another site", 403)
        if request.method != "OPTIONS":
            _authenticate()
        if request.method not in _SAFE and request.content_length and request.mimetype != "application/json":
            return errors.respond("unsupported_media_type", "send the body as application/json", 415)
        return _check_query(queries)

    return check


def _authenticate() -> None:
    """Who asks, and whether they may. Raises ``Refused``. Paths that do not exist are
    answered as such to everybody: what there is is in the OpenAPI document."""
    if request.endpoint is None or request.endpoint not in NEEDS:
        return
    g.principal = services().auth.principal(request.headers.get("Authorization"), request.remote_addr or "")
    require(g.principal, NEEDS[request.endpoint])


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _host_name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _check_query(queries: dict[tuple[str, str], set[str]]) -> Response | None:
    if request.endpoint not in NEEDS or request.url_rule is None or request.method == "OPTIONS":
        return None
    path = re.sub(r"<(?:[^:>]+:)?([^>]+)>", r"{\1}", request.url_rule.rule)
    known = queries.get((path, "GET" if request.method == "HEAD" else request.method), set())
    unknown = [name for name in request.args if name not in known]
    if not unknown:
        return None
    faults = [Fault(name[:100], "is not a query parameter here") for name in unknown[:100]]
    return errors.respond("validation_failed", "the request has faults", 422, faults)


def _query_names(spec: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    return {
        (path, method.upper()): {
            parameter["name"] for parameter in operation.get("parameters", ()) if parameter.get("in") == "query"
        }
        for path, operations in spec["paths"].items()
        for method, operation in operations.items()
        if isinstance(operation, dict)
    }


def _finish(response: Response) -> Response:
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Request-Id"] = errors.request_id()
    if request.method == "OPTIONS" and response.status_code == 200:
        response.status_code = 204
        response.headers.pop("Content-Type", None)
    if "replayed" in g:
        response.headers["Idempotency-Replayed"] = "true"
    if "etag" in g and response.status_code < 300:
        _tag(response)
    if request.method not in _SAFE:
        log.info(
            "change asked for",
            method=request.method,
            path=request.path[:500],
            status=response.status_code,
            user=g.principal.user if "principal" in g else "nobody",
            said=said() or None,
            request_id=errors.request_id(),
        )
    return response


def _tag(response: Response) -> None:
    """The ETag; and 304 without a body if the client has that version already."""
    response.headers["ETag"] = g.etag
    if request.method in ("GET", "HEAD") and not g.live and request.if_none_match.contains_weak(g.etag.strip('"')):
        response.status_code = 304
        response.set_data(b"")
        for name in ("Content-Type", "Content-Length"):
            response.headers.pop(name, None)
