"""The routers' listener of a running control plane."""

import threading
from pathlib import Path

import pytest
import requests

from llmgw.wire.routing import MAX_REPORT, Activation, Report, decode_table, encode
from tests.fakes.controlplane import ROUTER, ControlPlane, until
from tests.harness import identities

PATHS = (("GET", "table"), ("POST", "report"), ("POST", "activate"), ("POST", "usage"), ("POST", "identity"))


def ask(control_plane: ControlPlane, method: str, path: str, **options) -> requests.Response:
    with control_plane.router() as session:
        return session.request(method, f"{control_plane.routers}/router/v1/{path}", timeout=40, **options)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [("router", "router-2", ROUTER), ("router", ROUTER, "router-2"), ("router", ROUTER, ""), ("node", ROUTER, ROUTER)],
)
def test_every_path_asks_for_the_routers_identity(
    shared: ControlPlane, tmp_path: Path, kind: str, name: str, said: str
) -> None:
    """SEC-01: the table holds engine keys; whoever is not the router that it says it is gets nothing."""
    with shared.router(said, identities.ours().folder(tmp_path / "identity", kind, name)) as session:
        for method, path in PATHS:
            answer = session.request(method, f"{shared.routers}/router/v1/{path}", timeout=40)
            assert answer.status_code == 403 and answer.json()["code"] == "unauthorised", (path, answer.text)
            assert "endpoints" not in answer.text


def test_without_a_good_certificate_no_word_is_said(shared: ControlPlane, tmp_path: Path) -> None:
    """SEC-02: a stranger's certificate, an expired one and none end the handshake."""
    strange = identities.strangers().folder(tmp_path / "s", "router", ROUTER, trusts=[identities.ours().root])
    for folder in (strange, identities.ours().expired(tmp_path / "e", "router", ROUTER), None):
        with shared.router(ROUTER, folder) as session:
            session.cert = None if folder is None else session.cert
            for method, path in PATHS:
                with pytest.raises(requests.ConnectionError):
                    session.request(method, f"{shared.routers}/router/v1/{path}", timeout=40)


def test_a_poll_waits_for_a_change_and_no_longer(shared: ControlPlane) -> None:
    """RTR-03: 200 with the table, 304 after the wait, 200 at once when a key is made."""
    first = ask(shared, "GET", "table?wait=5")
    table = decode_table(first.content)
    assert first.status_code == 200 and table.models
    unchanged = ask(shared, "GET", f"table?generation={table.generation}&wait=0")
    assert unchanged.status_code == 304 and not unchanged.content
    answers: list[requests.Response] = []

    def poll(generation: str) -> None:
        """Until the key is in the table: the fleet may change too, and wakes a poll as well."""
        while True:
            answer = ask(shared, "GET", f"table?generation={generation}&wait=30")
            answers.append(answer)
            if answer.status_code != 200:
                return
            fresh = decode_table(answer.content)
            if {key.id for key in fresh.keys} - {key.id for key in table.keys}:
                return
            generation = fresh.generation

    polling = threading.Thread(target=poll, args=(table.generation,))
    polling.start()
    keys = f"{shared.api}/api/v1/keys"
    answer = requests.post(keys, json={"name": "wake", "models": ["small"]}, headers=shared.auth, timeout=20)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    polling.join(15)
    assert not polling.is_alive(), "the change did not end the wait"
    answer = answers[-1]
    assert answer.status_code == 200
    (key,) = [key for key in decode_table(answer.content).keys if key.id == made["id"]]
    assert key.models == ("sim-small",) and len(key.digest) == 64
    assert made["key"] not in answer.text
    assert requests.delete(f"{keys}/{made['id']}", headers=shared.auth, timeout=20).status_code == 200
    after = decode_table(ask(shared, "GET", "table").content)
    assert made["id"] not in {key.id for key in after.keys}
    assert after.generation != table.generation


@pytest.mark.parametrize("query", ["wait=31", "wait=-1", "wait=soon", "wait=nan"])
def test_waits_are_bounded(shared: ControlPlane, query: str) -> None:
    """RTR-13: nobody holds a connection for longer than agreed."""
    answer = ask(shared, "GET", f"table?{query}")
    assert answer.status_code == 400 and answer.json()["code"] == "validation_failed"


def test_reports_arrive_and_are_limited(shared: ControlPlane) -> None:
    """DEM-01: a report is taken; garbage, and what is too large, is not."""
    report = Report(boot="b1", sequence=1, version="9.9")
    assert ask(shared, "POST", "report", data=encode(report)).status_code == 204
    until(lambda: [r for r in shared.get("status")["routers"] if r["boot"] == "b1"], "the router in the status")
    assert shared.metric("llmgw_routers") == 1
    for body in (b"", b"{", b"[]", b'{"boot": 1}', b"[" * 100_000, b'{"x":' * 100_000):
        answer = ask(shared, "POST", "report", data=body)
        assert answer.status_code == 400 and answer.json()["code"] == "validation_failed", body[:20]
    large = ask(shared, "POST", "report", data=b" " * (MAX_REPORT + 1))
    assert large.status_code == 413 and large.json()["code"] == "body_too_large"
    chunked = ask(shared, "POST", "report", data=iter([b"{}"]))
    assert chunked.status_code == 411


def test_activation_answers_how_the_model_is_routed(shared: ControlPlane) -> None:
    """DEM-02: by name or alias; a model that is not there is null."""
    for name, found in (("sim-small", "sim-small"), ("small", "sim-small"), ("sim-off", "sim-off"), ("nope", None)):
        answer = ask(shared, "POST", "activate", json={"model": name})
        activation = Activation(model=None) if found is None else None
        body = answer.json()
        assert answer.status_code == 200
        assert (body == {} and activation is not None) if found is None else body["model"]["name"] == found


def test_other_paths_and_methods(shared: ControlPlane) -> None:
    """API-04: the same shape for what is not there."""
    assert ask(shared, "GET", "nope").json()["code"] == "not_found"
    wrong = ask(shared, "GET", "report")
    assert wrong.status_code == 405 and wrong.headers["Allow"] == "POST"
