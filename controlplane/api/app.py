"""Puts the admin API together.

It answers only to its own name (against DNS rebinding) and to no page of another
site (against forged requests): until there are logins, loopback is the credential.
"""

import re
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, request

from controlplane.api import catalog, errors, events, health, keys, loglevel, models, nodes, replicas, settings, status
from controlplane.api.base import EXTENSION, PREFIX, actor
from controlplane.services.context import Services
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Fault

log = Logger("llmgw.api")

MAX_BODY = 1024 * 1024
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
_SAFE = ("GET", "HEAD", "OPTIONS")


class _App(Flask):
    def log_exception(self, exc_info: Any) -> None:  # noqa: ARG002 - Flask's signature
        """Into the log under the request id; the client sees no traceback."""
        log.exception("a request failed", request_id=errors.request_id(), method=request.method, path=request.path)


def create_app(services: Services, version: str) -> Flask:
    """The WSGI application of the admin listener."""
    app = _App("llmgw.api", static_folder=None)
    app.config.update(
        API_TITLE="llmgw admin API",
        API_VERSION=version,
        OPENAPI_VERSION="3.1.0",
        OPENAPI_URL_PREFIX=PREFIX,
        OPENAPI_JSON_PATH="openapi.json",
        MAX_CONTENT_LENGTH=MAX_BODY,
        MAX_FORM_MEMORY_SIZE=0,
    )
    app.url_map.merge_slashes = False  # its redirects would answer with a page
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions[EXTENSION] = services
    api = errors.AdminApi(app)
    for module in (status, nodes, models, replicas, keys, catalog, events, settings, loglevel):
        api.register_blueprint(module.blueprint, url_prefix=PREFIX)
    app.register_blueprint(health.blueprint)
    errors.install(app)
    queries = _query_names(api.spec.to_dict())
    app.before_request(lambda: _check(queries))
    app.after_request(_finish)
    return app


def _check(queries: dict[tuple[str, str], set[str]]) -> Response | None:
    if _host_name(f"//{request.host}") not in LOOPBACK_NAMES:
        return errors.respond("bad_host", "the Host header must be a loopback name or address", 421)
    if request.method in _SAFE:
        return _check_query(queries)
    origin = request.headers.get("Origin")
    if origin is not None and _authority(origin) != request.host:
        return errors.respond("bad_origin", "the request comes from a web page of another site", 403)
    if request.content_length and request.mimetype != "application/json":
        return errors.respond("unsupported_media_type", "send the body as application/json", 415)
    return _check_query(queries)


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
    if request.url_rule is None or not request.url_rule.rule.startswith(PREFIX):
        return None
    path = re.sub(r"<(?:[^:>]+:)?([^>]+)>", r"{\1}", request.url_rule.rule)
    known = queries.get((path, request.method), set())
    unknown = [name for name in request.args if name not in known]
    if not unknown:
        return None
    faults = [Fault(name, "is not a query parameter here") for name in unknown]
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
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Request-Id"] = errors.request_id()
    if request.method not in _SAFE:
        log.info(
            "change asked for",
            method=request.method,
            path=request.path,
            status=response.status_code,
            actor=actor(),
            request_id=errors.request_id(),
        )
    return response
