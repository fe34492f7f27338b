"""Error codes. Append only: a code, once released, keeps its meaning.

``ROUTER`` codes appear in answers to API clients (RTR-02), ``SESSION`` codes in a
refused agent session, ``SHARD`` codes in a shard's exit, ``REASON`` codes in
placement verdicts, ``ADMIN`` codes in answers of the admin API.
"""

from typing import NamedTuple


class ApiError(NamedTuple):
    """How one failure is told to a client of the router.

    ``status`` is the HTTP status, ``type`` the OpenAI error type. ``retry`` says
    whether trying again can help; if not, ``x-should-retry: false`` is sent, which
    the official SDKs obey.
    """

    code: str
    status: int
    type: str
    retry: bool


def _table(*rows: ApiError) -> dict[str, ApiError]:
    return {row.code: row for row in rows}


ROUTER = _table(
    ApiError("invalid_request", 400, "invalid_request_error", False),
    ApiError("invalid_json", 400, "invalid_request_error", False),
    ApiError("missing_model", 400, "invalid_request_error", False),
    ApiError("invalid_api_key", 401, "authentication_error", False),
    ApiError("model_not_allowed", 403, "permission_error", False),
    ApiError("not_found", 404, "invalid_request_error", False),
    ApiError("model_not_found", 404, "invalid_request_error", False),
    ApiError("model_off", 404, "invalid_request_error", False),
    ApiError("method_not_allowed", 405, "invalid_request_error", False),
    ApiError("request_timeout", 408, "invalid_request_error", True),
    ApiError("body_too_large", 413, "invalid_request_error", False),
    ApiError("unsupported_media_type", 415, "invalid_request_error", False),
    ApiError("headers_too_large", 431, "invalid_request_error", False),
    ApiError("rate_limit_exceeded", 429, "rate_limit_error", True),
    ApiError("queue_full", 429, "rate_limit_error", True),
    ApiError("internal_error", 500, "server_error", True),
    ApiError("upstream_error", 502, "server_error", True),
    ApiError("model_loading", 503, "server_error", True),
    ApiError("model_parked", 503, "server_error", False),
    ApiError("model_unplaceable", 503, "server_error", True),
    ApiError("system_stopped", 503, "server_error", False),
    ApiError("overloaded", 503, "server_error", True),
    ApiError("no_route_table", 503, "server_error", True),
    ApiError("upstream_timeout", 504, "server_error", True),
)
"""Every code the router can answer with, and its HTTP mapping."""

SESSION = {
    "bad_frame": "a frame could not be read: the connection is closed",
    "frame_too_large": "a frame is larger than the limit: the connection is closed",
    "hello_expected": "the first frame of a session must be hello",
    "register_expected": "a session must register before it sends anything else",
    "bad_request": "the request to open a session cannot be read",
    "unauthorised": "the credential is missing, wrong, or belongs to another node",
    "unknown_node": "the node is not enrolled",
    "protocol_too_old": "the peer speaks only older protocols: upgrade it",
    "protocol_too_new": "the peer speaks only newer protocols: upgrade this side",
    "not_leader": "this control plane does not lead: go to the address given",
    "superseded": "the same node opened a newer session",
    "shutting_down": "the control plane is stopping: reconnect after the spread given",
    "timeout": "nothing was heard from the peer for too long",
    "overloaded": "too many registrations at once: try again later",
    "revoked": "the identity was revoked: join it anew",
    "join_refused": "the join token is wrong, used, expired, or for another identity",
    "no_issuer": "this control plane cannot sign certificates: it has no issuing authority",
    "epoch_unproven": "the peer has obeyed a higher epoch: the control plane checks whether it leads",
}

SHARD = {
    "invalid_spec": "the shard spec cannot be run on this node",
    "engine_missing": "the engine is not installed on this node, or was not seen to run",
    "weights_missing": "the weights are not where the source says",
    "device_missing": "a device of the placement does not exist on this node",
    "device_busy": "a foreign process holds memory of a device of the placement",
    "memory_short": "the node has less memory available than the profile claims",
    "port_in_use": "the port is taken by another process",
    "launch_failed": "the engine's process could not be started",
    "exited": "the engine's process ended by itself",
    "startup_timeout": "the engine did not become ready in time",
    "stale_epoch": "the command came from a control plane that no longer leads",
    "stopped": "stopped as commanded",
    "not_found": "the agent knows no such shard",
    "agent_error": "the agent failed while it handled the command",
}

REASON = {
    "node_unreachable": "the node is not in session",
    "node_cordoned": "the node is cordoned",
    "engine_not_ready": "the engine is not installed and seen to run there",
    "engine_probing": "the node has not looked for the engine yet",
    "label_mismatch": "the node lacks a label that node_selector asks for",
    "no_device_of_class": "the node has no usable device of the profile's class",
    "devices_claimed": "too few devices of the class are free",
    "memory_claimed": "the memory left after claims is less than min_memory_gb",
    "cores_claimed": "the cores left after claims are fewer than cpu_cores",
    "ports_exhausted": "no port of the node's range is free",
    "backoff": "the model failed recently and waits before the next try",
    "parked": "the model failed too often in a row",
    "settling": "the control plane has just started and waits for agents",
    "quarantined": "the plan for this model broke an invariant; see the log",
    "no_nodes": "no node is enrolled",
    "domain_held": "a person holds the node's rack, row or another domain of it: nothing new there",
    "source_not_fetched": "the node's agent cannot fetch weights from such a source",
    "multi_node": "a replica over several nodes is not placed by this release",
    "serving_stopped": "an operator stopped serving; llmgw start ends that",
    "lease_in_doubt": "the store has not renewed the lease: nothing is placed, scaled or stopped until it does",
}

ADMIN = {
    "validation_failed": "the request has faults; each is listed with its place",
    "not_found": "no such resource",
    "conflict": "the resource is not in a state that allows this",
    "method_not_allowed": "the resource does not have this method",
    "unsupported_media_type": "send application/json",
    "body_too_large": "the request body exceeds the limit",
    "bad_origin": "the request comes from a web page of another site",
    "bad_host": "the Host header is not this listener's own name",
    "store_unavailable": "the store does not answer: nothing was changed",
    "busy": "the control plane is too busy: try again later",
    "catalog_invalid": "the catalog has faults; the one in use stays",
    "unauthenticated": "the request carries no token, or one that is not valid",
    "forbidden": "the token's user lacks the role that this needs",
    "precondition_failed": "the resource changed since it was read, or If-Match does not fit",
    "idempotency_conflict": "the Idempotency-Key was used for another request",
    "defined_in_file": "the model is written in a catalog file: change it there",
    "source_unusable": "the weights' source does not exist, cannot be reached or is refused",
    "internal_error": "an error of our own; the log has the details under the request id",
    "not_leader": "this control plane stands by: ask the one that leads",
    "timeout": "no request came in time over a new connection",
}
