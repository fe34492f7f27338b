"""What somebody with a token, and no good intentions, gets: through the process."""

import concurrent.futures
import socket
from typing import Any

import pytest
import yaml

from llmgw.wire.messages import Welcome
from llmgw.wire.routing import decode_table
from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.controlplane.api.client import Client, problem

SIM = {"engine": "sim", "source": "sim:", "min_memory_gb": 1}
OFF: dict[str, Any] = {"scaling": {"min": 0, "max": 0}, "profiles": [SIM]}


@pytest.fixture(scope="module")
def clients(plane: ControlPlane, tokens: dict[str, str]) -> dict[str, Client]:
    return {role: Client(plane.api, token) for role, token in tokens.items()}


def test_no_key_of_the_control_plane_reaches_a_router(own: ControlPlane) -> None:
    """SEC-03: even from an admin, and from a catalog file, a model whose key file is the
    control plane's own token is not routed, and its problem says why."""
    own.catalog.write_text(
        yaml.safe_dump(
            {
                "models": {
                    "file": {
                        "external": {
                            "url": "http://127.0.0.1:9/v1",
                            "model": "m",
                            "api_key_file": str(own.state / "admin.token"),
                        }
                    }
                }
            }
        )
    )
    admin = Client(own.start().api, own.token)
    external = {"url": "http://127.0.0.1:9/v1", "model": "m", "api_key_file": str(own.state / "admin.token")}
    assert admin.put("models/live", {"external": external}).status_code == 200

    def problems() -> list[str]:
        shown = [admin.get(f"models/{name}").json()["external"].get("problem") for name in ("file", "live")]
        return [words for words in shown if words]

    until(lambda: len(problems()) == 2, "both problems")
    assert all("holds a secret of the control plane itself" in words for words in problems())
    table = own.router().get(f"{own.routers}/router/v1/table", timeout=20)
    assert table.status_code == 200 and own.token.encode() not in table.content
    assert all(not model.endpoints for model in decode_table(table.content).models)


@pytest.mark.parametrize("role", ["operator", "owner"])
def test_a_key_file_is_an_admin_s_to_name(clients: dict[str, Client], role: str) -> None:
    """API-08: by every door that takes a definition."""
    external = {"url": "https://evil.example/v1", "model": "m", "api_key_file": "/etc/shadow"}
    definition = {"external": external, "owner": "acme/ml"}
    asked = clients[role]
    for answer in (
        asked.post("models", {"name": f"key-of-{role}", **definition}),
        asked.put(f"models/key-of-{role}", definition),
        asked.put(f"models/key-of-{role}?dry_run=true", definition),
    ):
        assert "an admin alone" in problem(answer, 403, "forbidden")["message"]
    assert clients["admin"].get(f"models/key-of-{role}").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "models", {"name": "twin", **OFF}, 201),
        ("POST", "keys", {"name": "twin"}, 201),
        ("POST", "models/sim-small/retry", {}, 202),
        ("POST", "catalog/reload", {}, 200),
        ("DELETE", "models/twin-gone", None, 200),
    ],
)
def test_twins_under_one_key_are_one_change(admin: Client, method: str, path: str, body: Any, status: int) -> None:
    """API-04: a client that asks again before it was answered gets the same answer, not that
    somebody was faster; the change is made, and in the audit, once."""
    admin.put("models/twin-gone", OFF)
    headers = {"Idempotency-Key": f"twins-{method}-{path}"}
    before = len(admin.get("audit", params={"limit": 1000}).json()["audit"])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: admin.call(method, path, json=body, headers=headers), range(8)))
    assert {answer.status_code for answer in answers} == {status}, [answer.text for answer in answers]
    assert sum("Idempotency-Replayed" not in answer.headers for answer in answers) >= 1
    assert len(admin.get("audit", params={"limit": 1000}).json()["audit"]) == before + 1


def test_one_user_does_not_take_every_stream(plane: ControlPlane, clients: dict[str, Client]) -> None:
    """API-04: the others still watch; the refusal says what to do."""
    address = plane.addresses["admin.listen"]
    token = clients["auditor"].headers["Authorization"]
    head = f"GET /api/v1/events?watch=true HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n".encode()
    socks = [socket.create_connection(address, timeout=10) for _ in range(20)]
    try:
        answers = []
        for sock in socks:
            sock.sendall(head)
            answers.append(sock.recv(12)[-3:])
        assert answers == [b"200"] * 16 + [b"503"] * 4
        query = {"watch": "true", "seconds": "0"}
        words = problem(clients["auditor"].get("events", params=query), 503, "busy")["message"]
        assert words.endswith("end one of them")
        assert clients["operator"].get("events", params=query).status_code == 200
    finally:
        for sock in socks:
            sock.close()


def test_a_flood_of_faults_is_short_and_holds_nobody(own: ControlPlane) -> None:
    """STO-03, AGT-02: bad catalogs of a megabyte, from somebody who may only read, while an
    agent beats: the answers are bounded, the hub is not held, the session goes on."""
    admin = Client(own.start().api, own.token)
    agent = own.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    bad: list[dict[str, Any]] = [
        {"models": {f"x{index}": {"zz": 1} for index in range(20_000)}},
        {"models": {"m": {f"k{index}": 1 for index in range(40_000)}}},
        {"models": {f"m{n}": {"fallbacks": [f"nope{k}" for k in range(16)], "profiles": [SIM]} for n in range(2000)}},
    ]
    for sequence, tree in enumerate(bad):
        agent.heartbeat(sequence + 1)
        answer = admin.post("catalog/validate", tree)
        assert answer.status_code == 200 and answer.json()["valid"] is False
        assert len(answer.json()["faults"]) == 1001 and len(answer.content) < 400_000
    assert admin.get("nodes/node-1").json()["status"] == "connected"
    agent.close()


def test_numbers_without_end_and_names_given_twice(admin: Client) -> None:
    """API-04: refused as the request's fault, with the place; it was a fault of ours (500)."""
    huge = b'{"scaling": {"min": 0, "max": ' + b"9" * 5000 + b'}, "profiles": []}'
    for data, words in ((huge, "digits"), (b'{"name": "one", "name": "two"}', "given twice")):
        answer = admin.call("PUT", "models/m", data=data, headers={"Content-Type": "application/json"})
        assert words in problem(answer, 400, "validation_failed")["message"]


@pytest.mark.parametrize("name", ["ad\u00ada", "a\u200bb", "\ufeffada", "a\U000e0041b", "a\u200fb"])
def test_a_name_holds_nothing_that_nobody_sees(admin: Client, name: str) -> None:
    """Two keys that look the same would not be."""
    body = problem(admin.post("keys", {"name": name}), 422, "validation_failed")
    assert body["faults"][0]["path"] == "name" and "nobody can see" in body["faults"][0]["message"]


def test_a_definition_is_kept_as_it_was_written(admin: Client) -> None:
    """CAT-06: fields come back in the order in which a person wrote them."""
    written = {"scaling": {"max": 0, "min": 0}, "class": "critical", "profiles": [SIM], "aliases": ["as-written"]}
    shown = admin.put("models/ordered", written).json()["definition"]
    assert list(shown) == list(written) and list(shown["scaling"]) == ["max", "min"]
    assert admin.delete("models/ordered").status_code == 200


def test_a_method_that_is_not_possible_says_which_are(admin: Client) -> None:
    """API-04: the remedy stands in the message."""
    words = problem(admin.post("settings/requests.log"), 405, "method_not_allowed")["message"]
    assert words == "POST is not possible here; possible: DELETE, GET, PUT"
