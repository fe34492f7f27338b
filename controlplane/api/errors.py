"""One body for every error: ``{code, message, faults?, request_id}`` (API-04)."""

import secrets
from collections.abc import Iterator
from typing import Any

import marshmallow as ma
from flask import Flask, Response, g, jsonify, request
from flask_smorest import Api
from werkzeug.exceptions import HTTPException

from controlplane.api.base import Schema
from controlplane.services.errors import Refused
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Fault
from llmgw.wire.errors import ADMIN

log = Logger("llmgw.api")

_CODES = {
    400: "validation_failed",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "validation_failed",
    429: "busy",
    503: "busy",
}


class FaultSchema(Schema):
    """One thing wrong with the request: where, and what."""

    path = ma.fields.String(required=True, metadata={"description": "Place in the request, such as models[0]."})
    message = ma.fields.String(required=True)


class ErrorSchema(Schema):
    """Every error's body."""

    code = ma.fields.String(required=True, metadata={"enum": sorted(ADMIN)})
    message = ma.fields.String(required=True)
    faults = ma.fields.List(ma.fields.Nested(FaultSchema))
    request_id = ma.fields.String(required=True)


class AdminApi(Api):  # type: ignore[misc]
    """flask-smorest with our error body."""

    ERROR_SCHEMA = ErrorSchema

    def handle_http_exception(self, error: HTTPException) -> Response:
        """Errors of Flask, of the parser of arguments, and what a view did not expect."""
        status = error.code or 500
        code = _CODES.get(status, "validation_failed" if status < 500 else "internal_error")
        messages = getattr(error, "data", {}).get("messages")
        if messages is not None:
            return respond(code, "the request has faults", status, list(_faults(messages, "")))
        if status >= 500:
            return respond(code, ADMIN[code], status)
        if status == 405:
            ways = ", ".join(sorted(set(getattr(error, "valid_methods", None) or ()) - {"OPTIONS", "HEAD"}))
            words = f"{request.method[:20]} is not possible here; possible: {ways}"
            return respond(code, words, status, headers=dict(_allow(error)))
        if status == 404:
            return respond(code, "there is no such path; /api/v1/openapi.json lists them", status)
        return respond(code, error.description or ADMIN[code], status, headers=dict(_allow(error)))


def respond(
    code: str, message: str, status: int, faults: list[Fault] | None = None, headers: dict[str, str] | None = None
) -> Response:
    """An error's response."""
    body: dict[str, Any] = {"code": code, "message": message, "request_id": request_id()}
    if faults:
        body["faults"] = [{"path": fault.path, "message": fault.message} for fault in faults]
    response = jsonify(body)
    response.status_code = status
    response.headers.extend(headers or {})
    return response


def request_id() -> str:
    """The id under which the log has this request."""
    if "request_id" not in g:
        g.request_id = secrets.token_hex(8)
    return str(g.request_id)


def install(app: Flask) -> None:
    """Answer the services' refusals in the same shape."""

    @app.errorhandler(Refused)
    def refused(error: Refused) -> Response:
        return respond(error.code, str(error), error.status, list(error.faults), error.headers)


def _allow(error: HTTPException) -> Iterator[tuple[str, str]]:
    for name, value in error.get_headers():
        if name in ("Allow", "Retry-After"):
            yield name, value


_LOCATIONS = {"json", "query", "headers"}


def _faults(messages: Any, path: str) -> Iterator[Fault]:
    if isinstance(messages, dict):
        for key, value in messages.items():
            if not path and key in _LOCATIONS:
                yield from _faults(value, "")
            elif isinstance(key, int):
                yield from _faults(value, f"{path}[{key}]")
            else:
                place = "" if key == "_schema" else str(key)
                yield from _faults(value, f"{path}.{place}".strip("."))
    elif isinstance(messages, list | tuple):
        for message in messages:
            yield from _faults(message, path)
    else:
        yield Fault(path, str(messages))
