"""The OpenAPI document: what flask-smorest writes from the schemas, and what is the same
for every operation: who may use it, the headers, the errors (API-01, API-04, API-08)."""

from typing import Any

from llmgw.wire.errors import ADMIN

ABOUT = """\
Desired against actual, and every change that people make.

- **Tokens**: every request carries `Authorization: Bearer TOKEN`, but for this document, its page, `/healthz` and
  `/metrics`. Each operation names the roles that may use it.
- **Errors** have one body: `code`, `message`, `request_id`, and `faults` with the place of each, all at once.
- **Unknown is absent**: a value that is not known is left out. It is never 0.
- **Lists** have `limit` and `cursor`; an answer has `next` if there is more.
- **Changes** obey `Idempotency-Key`; those of things that have a version, `If-Match`.
"""

METHODS = ("get", "put", "post", "patch", "delete")

_REQUEST_ID = {
    "X-Request-Id": {
        "description": "The id under which the log has this request.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    }
}
_ETAG = {
    "ETag": {
        "description": "The version, of what has one; send it as If-Match with a change.",
        "schema": {"type": "string", "pattern": '^"[0-9]+"$'},
    }
}
_REPLAYED = {
    "Idempotency-Replayed": {
        "description": "It was carried out before, under this Idempotency-Key; the answer is what there is now.",
        "schema": {"type": "string", "enum": ["true"]},
    }
}
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "string"}}}
_CHALLENGE = {
    "WWW-Authenticate": {"description": "Always Bearer.", "required": True, "schema": {"type": "string"}},
}

_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Chosen by the client, new for each change. A second request with the same key is not carried "
    "out again. Kept for a day at least.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "description": "The ETag of the version to change; 412 if there is another one by now.",
    "schema": {"type": "string", "pattern": r'^(\*|(W/)?"[!#-~]{0,100}")$'},
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "description": "The ETag of the version at hand; 304 if it is the current one.",
    "schema": {"type": "string"},
}
_ACTOR = {
    "name": "Llmgw-Actor",
    "in": "header",
    "description": "Who asks, in the client's words, for the audit: no proof. 100 characters of it are kept, what "
    "would not be fit for a log is replaced.",
    "schema": {"type": "string"},
}

ERRORS: dict[str, tuple[str, str, str]] = {
    "BadRequest": ("The body cannot be read.", "validation_failed", "Not a valid JSON document."),
    "Unauthenticated": ("No token, or one that is not valid.", "unauthenticated", "the token was revoked"),
    "Forbidden": ("The user lacks the role.", "forbidden", "this needs the role admin; eve has auditor"),
    "NotFound": ("There is no such thing.", "not_found", "there is no node 'node-7': did you mean node-1?"),
    "Conflict": ("Not in a state that allows this.", "conflict", "there is a user 'eve' already"),
    "PreconditionFailed": (
        "It was changed since it was read.",
        "precondition_failed",
        'somebody changed it since you read it (it is at "4" now, you sent "3"): read it again, then repeat',
    ),
    "BodyTooLarge": ("The body exceeds the limit.", "body_too_large", "the body may have 1048576 bytes"),
    "UnsupportedMediaType": ("The body is no JSON.", "unsupported_media_type", "send the body as application/json"),
    "Invalid": (
        "The request has faults; each is listed with its place.",
        "validation_failed",
        "the request has faults",
    ),
    "Unavailable": ("The store or the writer does not answer.", "store_unavailable", "the store did not answer in 5 s"),
    "Error": ("Any other error.", "internal_error", ADMIN["internal_error"]),
}


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with what every operation has."""
    components = document.setdefault("components", {})
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "A user's token (adm-llmgw-...), or that in the file admin.token of the state_dir.",
        }
    }
    components["responses"] = {name: _error(name, *words) for name, words in ERRORS.items()}
    document["info"]["description"] = ABOUT
    document["security"] = [{"bearer": []}]
    _mend_patterns(document)
    document["servers"] = [{"url": "/", "description": "This control plane."}]
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                _operation(path, method, methods[method])
    return document


def _mend_patterns(node: Any) -> None:
    """Python's patterns as JSON Schema has them: anchored at both ends in its own words."""
    if isinstance(node, dict):
        pattern = node.get("pattern")
        if isinstance(pattern, str) and pattern.endswith(r"\Z"):
            node["pattern"] = f"^(?:{pattern[:-2]})$" if "|" in pattern else f"^{pattern[:-2]}$"
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _mend_patterns(inner)


def _error(name: str, description: str, code: str, message: str) -> dict[str, Any]:
    example: dict[str, Any] = {"code": code, "message": message, "request_id": "0f3a1c5be2d94a77"}
    if name == "Invalid":
        example["faults"] = [{"path": "name", "message": "Missing data for required field."}]
    headers = dict(_REQUEST_ID)
    if name == "Unavailable":
        headers |= _RETRY
    if name == "Unauthenticated":
        headers |= _CHALLENGE
    return {
        "description": description,
        "headers": headers,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}, "example": example}},
    }


def _operation(path: str, method: str, operation: dict[str, Any]) -> None:
    versioned, tagged = operation.pop("x-llmgw-versioned", False), operation.pop("x-llmgw-tagged", False)
    writes = operation.pop("x-llmgw-changes", method != "get")
    operation["operationId"] = operation.get("operationId") or _name(path, method)
    roles = ", ".join(operation["x-llmgw-roles"])
    told = f"Roles: {roles}."
    operation["description"] = f"{operation['description']}\n\n{told}" if operation.get("description") else told
    parameters = operation.setdefault("parameters", [])
    if writes:
        parameters += [_IDEMPOTENCY_KEY, _ACTOR]
    if versioned:
        parameters.append(_IF_MATCH)
    if tagged and not writes:
        parameters.append(_IF_NONE_MATCH)
    responses = {status: response for status, response in operation["responses"].items() if "$ref" not in response}
    for status, response in responses.items():
        if status.startswith("2"):
            response["headers"] = {**response.get("headers", {}), **_REQUEST_ID}
            response["headers"] |= _ETAG if tagged else {}
            response["headers"] |= _REPLAYED if writes else {}
    named = {"401": "Unauthenticated", "403": "Forbidden"}
    query = any(parameter.get("in") == "query" for parameter in parameters if isinstance(parameter, dict))
    if "{" in path:
        named["404"] = "NotFound"
    if writes:
        named |= {"409": "Conflict", "422": "Invalid", "503": "Unavailable"}
    if "requestBody" in operation:
        named |= {"400": "BadRequest", "413": "BodyTooLarge", "415": "UnsupportedMediaType"}
    if versioned:
        named["412"] = "PreconditionFailed"
    if query:
        named["422"] = "Invalid"
    if tagged and not writes:
        responses["304"] = {"description": "The version at hand is the current one.", "headers": _REQUEST_ID | _ETAG}
    for status, name in named.items():
        responses.setdefault(status, {"$ref": f"#/components/responses/{name}"})
    responses["default"] = {"$ref": "#/components/responses/Error"}
    operation["responses"] = dict(sorted(responses.items()))


def _name(path: str, method: str) -> str:
    words = [word.strip("{}").replace("-", "_") for word in path.removeprefix("/api/v1/").split("/")]
    return "_".join([method, *words])
