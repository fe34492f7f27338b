"""The control plane as a process: start, stop, reload, and what it says when it cannot."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
import yaml

from llmgw.wire.messages import Goodbye, HeartbeatAck, ShardChanged, ShardStatus, Start, Welcome
from llmgw.wire.routing import decode_table
from tests.fakes.controlplane import CATALOG, ROUTER, ControlPlane, until
from tests.harness import identities


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "controlplane.main", *arguments], capture_output=True, text=True, timeout=20, check=False
    )


@pytest.fixture
def started(tmp_path: Path):
    control_plane = ControlPlane(tmp_path).start()
    yield control_plane
    control_plane.stop()


def test_from_an_agents_registration_to_a_route(started: ControlPlane) -> None:
    """REC-24, RTR-03: register, get a start, become ready, be in the route table with a key."""
    agent = started.agent().upgrade().hello()
    welcome = agent.expect(Welcome)
    assert welcome.epoch == 1 and welcome.heartbeat_seconds == 10.0
    agent.register()
    start = agent.expect(Start)
    assert start.spec.model == "sim-small" and start.spec.engine_key.startswith("ek-")
    agent.send(ShardChanged(status=ShardStatus(spec=start.spec.without_secret(), state="ready", pid=4242)))

    router = started.router()

    def table():
        return decode_table(router.get(f"{started.routers}/router/v1/table", timeout=5).content)

    until(lambda: any(model.endpoints for model in table().models), "the endpoint")
    models = {model.name: model for model in table().models}
    (endpoint,) = models["sim-small"].endpoints
    assert endpoint.key == start.spec.engine_key and endpoint.port == start.spec.port
    assert models["sim-huge"].state == "unplaceable" and "999" in models["sim-huge"].reason
    assert not models["sim-off"].listed

    status = started.get("status")
    assert status["nodes"]["connected"] == 1 and not status["settling"]["active"]
    assert any(problem["subject"] == "sim-huge" for problem in status["problems"])
    assert started.metric('llmgw_model_ready_replicas{model="sim-small"}') == 1
    assert started.metric('llmgw_model_unplaceable{model="sim-huge"}') == 1
    assert "llmgw_node_cpu_utilization_percent{" not in requests.get(f"{started.api}/metrics", timeout=5).text
    events = started.get("events?model=sim-small")["events"]
    assert {"place"} <= {event["kind"] for event in events}
    written = (started.state / "decisions.jsonl").read_text()
    assert "ek-" not in written and start.spec.replica_id in written
    assert start.spec.engine_key not in started.log()
    agent.heartbeat(7)
    assert agent.expect(HeartbeatAck).sequence == 7
    agent.close()


def test_a_stop_says_goodbye_and_is_quick(started: ControlPlane) -> None:
    """HA-02: agents are told, with a spread; the process is gone within two seconds."""
    agent = started.agent().upgrade().hello()
    agent.expect(Welcome)
    router = started.router()
    generation = decode_table(router.get(f"{started.routers}/router/v1/table?wait=5", timeout=10).content).generation
    folder = identities.ours().router(started.directory / "poll", ROUTER)
    poll = identities.client(folder).wrap_socket(socket.create_connection(started.addresses["routers.listen"]))
    poll.sendall(
        f"GET /router/v1/table?generation={generation}&wait=30 HTTP/1.1\r\nHost: x\r\n"
        f"Llmgw-Router: {ROUTER}\r\n\r\n".encode()
    )
    began = time.monotonic()
    started.tell(signal.SIGTERM)
    assert agent.expect(Goodbye).spread_seconds >= 1
    assert agent.receive() is None
    assert started.stop() == 0
    assert time.monotonic() - began < 2.0
    poll.close()


def test_the_epoch_rises_with_every_start_and_keys_stay(started: ControlPlane) -> None:
    """AGT-04, ENG-03: also after kill -9; API keys and the engine secret outlive it."""
    made = requests.post(f"{started.api}/api/v1/keys", json={"name": "kept"}, headers=started.auth, timeout=5).json()
    first = started.agent().upgrade().hello()
    assert first.expect(Welcome).epoch == 1
    first.register()
    key = first.expect(Start).spec
    started.stop(signal.SIGKILL)
    first.close()
    started.start()
    assert [k["id"] for k in started.get("keys")["keys"]] == [made["id"]]
    again = started.agent().upgrade().hello()
    assert again.expect(Welcome).epoch == 2
    again.register(shards=(ShardStatus(spec=key.without_secret(), state="ready", pid=1),))

    router = started.router()

    def endpoints():
        answer = router.get(f"{started.routers}/router/v1/table?wait=1", timeout=5)
        return [e for m in decode_table(answer.content).models for e in m.endpoints]

    until(endpoints, "the adopted endpoint")
    assert endpoints()[0].key == key.engine_key
    again.close()


def test_a_second_control_plane_is_kept_out(shared: ControlPlane) -> None:
    """HA-01: the lock on the database names the process that holds it."""
    second = run("--config", str(shared.config))
    assert second.returncode == 2
    assert f"another control plane uses it (process {shared.process.pid})" in second.stderr
    assert "give this one a state_dir of its own" in second.stderr, "the store is in it"
    assert "Traceback" not in second.stderr


def test_a_reload_takes_what_is_valid_and_keeps_what_is_not(started: ControlPlane) -> None:
    """CAT-06, SEC-01: an invalid catalog is refused whole with all faults, an unusable identity with the reason;
    what is whole is in force at once, for connections to come."""
    agent = started.agent().upgrade().hello()
    agent.expect(Welcome)
    shown = agent.sock.getpeercert()
    started.catalog.write_text("models: {a: {scalin: 1, profiles: []}, b: 7}")
    (started.identity / "certificate.pem").write_text("none")
    tree = yaml.safe_load(started.config.read_text())
    started.config.write_text(yaml.safe_dump({**tree, "log": {"level": "debug"}}))
    started.tell(signal.SIGHUP)
    until(lambda: "the catalog was refused" in started.log(), "the refusal")
    assert all(place in started.log() for place in ("models.a.scalin", "models.a.profiles", "models.b"))
    assert started.get("catalog")["models"] == sorted(CATALOG["models"])
    assert len(started.get("catalog")["refused"]) == 3
    assert any(problem["kind"] == "catalog" for problem in started.get("status")["problems"])
    assert started.get("log-level") == {"level": "debug"}
    until(lambda: "the identity on disk cannot be used, the one in use stays" in started.log(), "the refused identity")
    assert f"{started.identity}/certificate.pem" in started.log()
    other = started.agent("node-2").upgrade().hello()
    other.expect(Welcome)
    assert other.sock.getpeercert() == shown
    identities.ours().controlplane(started.identity)
    started.catalog.write_text(yaml.safe_dump({"models": {"only": CATALOG["models"]["sim-off"]}}))
    started.tell(signal.SIGHUP)
    until(lambda: started.get("catalog")["models"] == ["only"], "the new catalog")
    assert "refused" not in started.get("catalog")
    until(lambda: "identity loaded" in started.log(), "the new identity")
    assert started.agent("node-3").sock.getpeercert() != shown
    for one in (agent, other):
        one.register()
        one.heartbeat(1)
        assert one.expect(HeartbeatAck).sequence == 1
        one.close()


def test_check_finds_everything_at_once(tmp_path: Path) -> None:
    """CAT-01: --check tells all faults of all files and exits with 2, or 0 when all is well."""
    good = ControlPlane(tmp_path)
    assert run("--config", str(good.config), "--check").returncode == 0
    assert not good.state.exists(), "a check makes nothing"
    good.catalog.write_text("models: {a: {profiles: []}, b: 7}")
    identities.ours().router(good.identity, "elsewhere")
    (good.identity / "key.pem").chmod(0o644)
    checked = run("--config", str(good.config), "--check")
    assert checked.returncode == 2
    for place in ("models.a", "models.b", "is that of router elsewhere", "chmod 600", "\n  identity: "):
        assert place in checked.stderr, checked.stderr
    assert "Traceback" not in checked.stderr


def test_an_address_in_use_names_the_setting(tmp_path: Path) -> None:
    """DOC-01: which listener, which address, why."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        control_plane = ControlPlane(tmp_path, admin__listen=address)
        failed = run("--config", str(control_plane.config))
    assert failed.returncode == 2
    assert f"admin.listen: cannot listen on {address}: Address already in use" in failed.stderr
    assert "Traceback" not in failed.stderr
