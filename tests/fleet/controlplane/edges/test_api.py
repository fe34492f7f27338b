"""The admin API of a running control plane: every route, every way to be wrong."""

import json
import re
import sqlite3
import threading
import time

import pytest
import requests

from llmgw.wire.errors import ADMIN
from llmgw.wire.messages import HeartbeatAck, Welcome
from tests.fakes.controlplane import ControlPlane, until
from tests.harness.stalls import Stalls

BODIES = {
    ("post", "/api/v1/keys"): {"name": "x"},
    ("post", "/api/v1/models"): {"name": "x"},
    ("post", "/api/v1/nodes/{node_id}/cordon"): {"reason": "x"},
    ("put", "/api/v1/log-level"): {"level": "info"},
    ("post", "/api/v1/join-tokens"): {"kind": "node", "name": "joining"},
    ("post", "/api/v1/identities/{kind}/{name}/revoke"): {"reason": "x"},
}
NAMES = {"node_id": "node-1", "name": "sim-small", "replica_id": "none", "key_id": "none", "kind": "node"}


def call(control_plane: ControlPlane, method: str, path: str, **options) -> requests.Response:
    headers = {**control_plane.auth, **options.pop("headers", {})}
    return requests.request(method, control_plane.api + path, headers=headers, timeout=20, **options)


def problem(answer: requests.Response, status: int, code: str) -> dict:
    """The one shape of an error."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    body = answer.json()
    assert set(body) - {"faults"} == {"code", "message", "request_id"}
    assert body["code"] == code and code in ADMIN
    assert body["request_id"]
    assert "Traceback" not in answer.text and "<" not in answer.text[:1]
    return body


@pytest.fixture(scope="module")
def operations(shared: ControlPlane) -> list[tuple[str, str]]:
    spec = call(shared, "GET", "/api/v1/openapi.json").json()
    return [(method, path) for path, methods in spec["paths"].items() for method in methods if method != "parameters"]


def url(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda match: NAMES.get(match[1], "no-such-thing"), path)


def takes_body(spec: dict, method: str, path: str) -> bool:
    return "requestBody" in spec["paths"][path][method]


def test_the_description_is_openapi_3_1(shared: ControlPlane, operations: list[tuple[str, str]]) -> None:
    """API-01: every route is in it, each with a summary and the one error shape."""
    spec = call(shared, "GET", "/api/v1/openapi.json").json()
    assert spec["openapi"] == "3.1.0"
    assert {"/api/v1/status", "/api/v1/nodes/{node_id}/cordon", "/api/v1/keys", "/api/v1/whoami"} <= {
        path for _, path in operations
    }
    names = set()
    for method, path in operations:
        operation = spec["paths"][path][method]
        assert operation["summary"] and operation["tags"], (method, path)
        assert "$ref" in operation["responses"]["default"]
        names.add(operation["operationId"])
    assert len(names) == len(operations)
    assert spec["security"] == [{"bearer": []}]
    text = json.dumps(spec)
    for name in set(re.findall(r'"#/components/(\w+/\w+)"', text)):
        kind, _, leaf = name.partition("/")
        assert leaf in spec["components"][kind], name
    assert set(spec["components"]["schemas"]["Error"]["required"]) == {"code", "message", "request_id"}


def test_every_operation_answers_json(shared: ControlPlane, operations: list[tuple[str, str]]) -> None:
    """API-04: a success or an error of the one shape, never a page; nothing that exists is needed for it."""
    for method, path in operations:
        answer = call(shared, method, url(path), json=BODIES.get((method, path), {} if method != "get" else None))
        assert answer.headers["X-Request-Id"]
        if answer.status_code >= 400:
            assert answer.status_code in (404, 409, 422), (method, path, answer.text)
            problem(answer, answer.status_code, answer.json()["code"])
        elif answer.status_code != 204:
            assert answer.headers["Content-Type"] in ("application/json", "text/csv; charset=utf-8"), (method, path)
            assert answer.status_code in (200, 201, 202), (method, path, answer.text)


def test_wrong_methods(shared: ControlPlane, operations: list[tuple[str, str]]) -> None:
    """API-04: 405 with the allowed ones, whatever the method is called."""
    for path in {path for _, path in operations}:
        for method in ("TRACE", "BREW"):
            answer = call(shared, method, url(path))
            problem(answer, 405, "method_not_allowed")
            assert answer.headers["Allow"]


def test_unknown_query_parameters(shared: ControlPlane, operations: list[tuple[str, str]]) -> None:
    """API-04: refused by name on every route, also where others are known."""
    for method, path in operations:
        answer = call(shared, method, url(path) + "?surprise=1", json=BODIES.get((method, path), {}))
        body = problem(answer, 422, "validation_failed")
        assert body["faults"][0]["path"] == "surprise"


def test_unknown_body_fields(shared: ControlPlane, operations: list[tuple[str, str]]) -> None:
    """API-04: refused by name on every route that takes a body."""
    spec = call(shared, "GET", "/api/v1/openapi.json").json()
    seen = 0
    for method, path in operations:
        if takes_body(spec, method, path) and not path.endswith("/catalog/validate"):  # which tells all faults itself
            where = re.sub(r"{\w+}", "no-such-thing", path) if path.startswith("/api/v1/models/") else url(path)
            answer = call(shared, method, where, json={**BODIES.get((method, path), {}), "surprise": 1})
            body = problem(answer, 422, answer.json()["code"])
            assert any(fault["path"].endswith("surprise") for fault in body["faults"]), (method, path, body)
            seen += 1
    assert seen > 5


@pytest.mark.parametrize(
    ("data", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "validation_failed"),
        (b"\xff\xfe", "application/json", 400, "validation_failed"),
        (b"[1]", "application/json", 422, "validation_failed"),
        (b"null", "application/json", 422, "validation_failed"),
        (b'"text"', "application/json", 422, "validation_failed"),
        (b"name=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"x" * (1024 * 1024 + 1), "application/json", 413, "body_too_large"),
        (b"[" * 200_000, "application/json", 400, "validation_failed"),
    ],
)
def test_bodies_that_are_none(
    shared: ControlPlane, operations: list, *, data: bytes, kind: str, status: int, code: str
) -> None:
    """API-04: malformed, mistyped, too large, too deep."""
    spec = call(shared, "GET", "/api/v1/openapi.json").json()
    for method, path in operations:
        if takes_body(spec, method, path):
            problem(call(shared, method, url(path), data=data, headers={"Content-Type": kind}), status, code)


def test_all_faults_of_a_request_at_once(shared: ControlPlane) -> None:
    """API-04: each with its place."""
    answer = call(
        shared, "POST", "/api/v1/keys", json={"name": "", "models": ["ok", 7, "no way"], "expires": 3, "x": 1}
    )
    faults = {fault["path"] for fault in problem(answer, 422, "validation_failed")["faults"]}
    assert faults == {"name", "models[1]", "models[2]", "expires", "x"}


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"name": "n", "models": ["smal"]}, "models[0]", "did you mean small?"),
        ({"name": "n", "models": []}, "models", "leave it out for all models"),
        ({"name": "n", "expires": "tomorrow"}, "expires", "30d"),
        ({"name": "n", "expires": "2001-01-01T00:00:00Z"}, "expires", "future"),
        ({"name": "n", "expires": "2101-01-01T00:00:00"}, "expires", "time zone"),
        ({"name": "n", "expires": "0"}, "expires", "future"),
    ],
)
def test_what_a_key_must_be(shared: ControlPlane, body: dict, path: str, words: str) -> None:
    """SEC-03, API-04: faults found by the service have the same shape."""
    (fault,) = problem(call(shared, "POST", "/api/v1/keys", json=body), 422, "validation_failed")["faults"]
    assert fault["path"] == path and words in fault["message"]


def test_a_key_is_shown_once(shared: ControlPlane) -> None:
    """SEC-03: at least 128 bits, ours, in this answer only; revoking is final and repeatable."""
    answer = call(
        shared, "POST", "/api/v1/keys", json={"name": "once", "expires": "30d"}, headers={"Llmgw-Actor": "ada\t<b>"}
    )
    made = answer.json()
    assert answer.status_code == 201 and made["key"].startswith("sk-llmgw-") and len(made["key"]) >= 9 + 22
    assert made["created_by"] == "local (ada??b?)" and made["state"] == "active"
    listed = call(shared, "GET", "/api/v1/keys")
    assert made["key"] not in listed.text and made["id"] in listed.text
    database = (shared.state / "llmgw.db").read_bytes() + (shared.state / "llmgw.db-wal").read_bytes()
    assert made["key"].encode() not in database and made["key"] not in shared.log()
    gone = call(shared, "DELETE", f"/api/v1/keys/{made['id']}").json()
    assert gone["state"] == "revoked"
    again = call(shared, "DELETE", f"/api/v1/keys/{made['id']}").json()
    assert again["revoked_at"] == gone["revoked_at"]
    problem(call(shared, "DELETE", "/api/v1/keys/key-none"), 404, "not_found")


def test_names_that_do_not_exist_are_met_with_the_nearest(shared: ControlPlane) -> None:
    """API-04: 404 in words."""
    for path, words in (
        ("nodes/node-7", "did you mean node-1?"),
        ("models/sim-smal", "did you mean sim-small?"),
        ("models/sim-smal/explain", "did you mean sim-small?"),
        ("replicas/x", "there is no replica 'x'"),
    ):
        assert words in problem(call(shared, "GET", f"/api/v1/{path}"), 404, "not_found")["message"]
    for path in ("/", "/api/v1/nope", "/api/v1/nodes/", "/api//v1/nodes", "/static/x", "/api/v1/nodes/a/b/c"):
        problem(call(shared, "GET", path), 404, "not_found")


@pytest.mark.parametrize("alias", ["small", "org%2Fsmall:1b@main", "org/small:1b@main"])
def test_models_answer_to_their_aliases(shared: ControlPlane, alias: str) -> None:
    """CAT-02: also to one with a slash, written either way."""
    assert call(shared, "GET", f"/api/v1/models/{alias}").json()["name"] == "sim-small"
    assert call(shared, "GET", f"/api/v1/models/{alias}/explain").json()["model"] == "sim-small"
    assert call(shared, "POST", f"/api/v1/models/{alias}/retry").status_code == 202
    made = call(shared, "POST", "/api/v1/keys", json={"name": "n", "models": [alias.replace("%2F", "/")]})
    assert made.json()["models"] == ["sim-small"]


def test_a_model_that_is_off_is_not_retried(shared: ControlPlane) -> None:
    """CAT-05: off is deliberate."""
    problem(call(shared, "POST", "/api/v1/models/sim-off/retry"), 409, "conflict")


def test_a_cordon_is_intent_and_stays(shared: ControlPlane) -> None:
    """PLC-03: reason and actor are kept, apart from what the agent says."""
    call(shared, "POST", "/api/v1/nodes/node-1/cordon", json={"reason": "fan"}, headers={"Llmgw-Actor": "cli:ada"})
    until(lambda: "cordon" in shared.get("nodes/node-1"), "the cordon")
    assert shared.get("nodes/node-1")["cordon"]["actor"] == "local (cli:ada)"
    agent = shared.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    until(lambda: shared.get("nodes/node-1")["status"] == "connected", "the registration")
    assert shared.get("nodes/node-1")["cordon"]["reason"] == "fan"
    assert shared.get("models/sim-small/explain")["candidates"][0]["reasons"][0]["code"] == "node_cordoned"
    with sqlite3.connect(shared.state / "llmgw.db") as database:
        assert database.execute("SELECT cordon_reason FROM node_intents").fetchall() == [("fan",)]
    database.close()
    assert "cordon" not in call(shared, "POST", "/api/v1/nodes/node-1/uncordon").json()
    agent.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7000", "127.0.0.1.evil.example", "0.0.0.0", ""])
def test_only_our_own_name_is_answered(shared: ControlPlane, host: str) -> None:
    """API-02: a name that an attacker points at 127.0.0.1 is not ours (DNS rebinding)."""
    for path in ("/api/v1/status", "/api/v1/nope", "/healthz", "/metrics"):
        problem(call(shared, "GET", path, headers={"Host": host}), 421, "bad_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:7000"])
def test_loopback_names_are_ours(shared: ControlPlane, host: str) -> None:
    """API-02: whichever port a tunnel gave it."""
    assert call(shared, "GET", "/healthz", headers={"Host": host}).json() == {"status": "ok"}


def test_pages_of_other_sites_change_nothing(shared: ControlPlane) -> None:
    """API-02: a browser on this machine cannot be made to act."""
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        problem(call(shared, "POST", "/api/v1/catalog/reload", headers={"Origin": origin}), 403, "bad_origin")
    assert call(shared, "POST", "/api/v1/catalog/reload", headers={"Origin": shared.api}).status_code == 200


def test_settings_tell_their_origin_and_no_secret(shared: ControlPlane) -> None:
    """API-06: value, origin, default."""
    settings = {row["name"]: row for row in shared.get("settings")["settings"]}
    assert settings["agents.silence"]["origin"] == "default"
    assert settings["catalog"]["origin"] == str(shared.config)
    text = call(shared, "GET", "/api/v1/settings").text
    assert "at-0123" not in text and "rt-0123" not in text


def test_a_locked_store_delays_nobody_but_who_asks(shared: ControlPlane) -> None:
    """STO-03: with the database locked, changes are refused in words; heartbeats, reads and the hub go on."""
    agent = shared.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    assert shared.process is not None
    lock = sqlite3.connect(shared.state / "llmgw.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    answers = []
    slowest = 0.0
    asking = threading.Thread(target=lambda: answers.append(call(shared, "POST", "/api/v1/keys", json={"name": "n"})))
    with Stalls(shared.process.pid, shared.log_file) as stalls:
        asking.start()
        sequence = 100
        while asking.is_alive():
            sequence += 1
            began = time.monotonic()
            agent.heartbeat(sequence)
            while agent.expect(HeartbeatAck).sequence != sequence:
                pass
            assert shared.get("keys") is not None
            slowest = max(slowest, time.monotonic() - began)
        asking.join()
    until(
        lambda: any(row["subject"] == "database" for row in shared.get("status")["problems"]),
        "the problem in the status",
    )
    lock.execute("ROLLBACK")
    lock.close()
    agent.close()
    problem(answers[0], 503, "store_unavailable")
    assert answers[0].headers["Retry-After"]
    assert sequence > 110
    assert slowest < 0.5, "whoever waits for the lock waits two seconds"
    held, what = stalls.longest
    assert held < 0.1, what
    assert call(shared, "POST", "/api/v1/keys", json={"name": "n"}).status_code == 201
    assert not any(row["subject"] == "database" for row in shared.get("status")["problems"])
    # What waits between disk and store, such as retention, says so until its next try.
    until(lambda: not any(row["kind"] == "store" for row in shared.get("status")["problems"]), "no store's problem")
