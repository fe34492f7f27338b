"""What agents, administrators and the disk can do to a running control plane."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from llmgw.wire.messages import Inventory
from tests.fakes.controlplane import ControlPlane, until


@pytest.mark.parametrize("address", ["0.0.0.0", "224.0.0.1", "169.254.169.254", "a b"])
def test_an_address_of_nowhere_ends_the_session(shared: ControlPlane, address: str) -> None:
    """SEC-03: routers would send prompts and an engine's key there; over the wire, with the remedy in the refusal."""
    agent = shared.agent().upgrade().hello()
    agent.register(inventory=Inventory(address=address))
    while (message := agent.receive()) is not None:
        last = message
    assert last.code == "bad_frame" and "setting address" in last.message
    assert shared.get("nodes/node-1").get("address") != address
    agent.close()


@pytest.mark.parametrize(
    ("request_line", "headers", "body", "status"),
    [
        ("POST catalog/reload", {"Origin": "http://["}, b"", 403),
        ("GET status", {"Host": "["}, b"", 421),
        ("POST keys", {}, b'{"name": "\\ud800"}', 400),
        ("POST nodes/node-1/cordon", {}, b'{"reason": "\\ud800"}', 400),
        ("POST keys", {}, b'{"name": "x", "expires": "0001-01-01T00:00:00+23:59"}', 422),
        ("POST keys", {}, '{"name": "\u009b31m"}'.encode(), 422),
        ("POST keys", {}, '{"name": "\u202egnp"}'.encode(), 422),
    ],
)
def test_requests_that_are_wrong_in_odd_ways(
    shared: ControlPlane, request_line: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    """API-04: told to the client, not an error of our own."""
    method, path = request_line.split()
    answer = requests.request(
        method,
        f"{shared.api}/api/v1/{path}",
        headers={"Content-Type": "application/json", **shared.auth, **headers},
        data=body,
        timeout=10,
    )
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] != "internal_error"


@pytest.mark.parametrize("listener", ["join.listen", "admin.listen"])
def test_silent_strangers_leave_files_for_others(tmp_path: Path, listener: str) -> None:
    """AGT-03, API-04: with a hard limit far below what all bounds need, which is told with the remedy."""
    few = 256
    plane = ControlPlane(tmp_path)
    allow = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({few}, {few}))"
    plane.program = ["-c", f"{allow}; runpy.run_module('controlplane.main', run_name='__main__', alter_sys=True)"]
    silent: list[socket.socket] = []
    plane.start()
    try:
        for _ in range(2 * few):
            silent.append(socket.create_connection(plane.addresses[listener], timeout=20))
        began = time.monotonic()
        for _ in range(3):
            assert plane.get("status")["epoch"]
            agent = plane.agent().upgrade().hello()
            assert type(agent.receive()).__name__ == "Welcome"
            agent.close()
        assert time.monotonic() - began < 5.0, "nobody waited until the silent were given up"
        log = plane.log()
        assert "fewer files may be open than connections need" in log and "LimitNOFILE=" in log
        assert "Traceback" not in log
    finally:
        for sock in silent:
            sock.close()
        plane.stop()


def test_a_start_without_a_journal(tmp_path: Path) -> None:
    """DEP-03: exit status 2 and a sentence, in good time, never a traceback."""
    control_plane = ControlPlane(tmp_path)
    (control_plane.state / "decisions.jsonl").mkdir(mode=0o700, parents=True)
    control_plane.state.chmod(0o700)
    command = [sys.executable, "-m", "controlplane.main", "--config", str(control_plane.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2, done.stderr
    assert "the decision journal" in done.stderr and "Traceback" not in done.stderr


def test_a_pipe_as_catalog_holds_nothing_up(tmp_path: Path) -> None:
    """CAT-06: a reload of what is no file is refused at once, as often as it is asked for."""
    control_plane = ControlPlane(tmp_path).start()
    control_plane.catalog.unlink()
    os.mkfifo(control_plane.catalog)
    for _ in range(20):
        control_plane.tell(signal.SIGHUP)
    answer = requests.post(f"{control_plane.api}/api/v1/catalog/reload", headers=control_plane.auth, timeout=20)
    assert answer.status_code == 422 and "no regular file" in answer.text
    until(lambda: "the catalog was not reloaded" in control_plane.log(), "the refusal in the log")
    assert control_plane.get("catalog")["models"] == ["sim-huge", "sim-off", "sim-small"]
    assert control_plane.stop() == 0


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n", 414),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(200)), 431),
        (b"garbage\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n", 400),
        (b"POST /api/v1/keys HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n", 411),
    ],
)
def test_heads_that_are_none(shared: ControlPlane, head: bytes, status: int) -> None:
    """API-04: what the server refuses before there is a request has the one shape too, and an id."""
    sock = socket.create_connection(shared.addresses["admin.listen"], timeout=10)
    sock.sendall(head + b"\r\n")
    data = b""
    with suppress(OSError):
        while more := sock.recv(65536):
            data += more
    sock.close()
    told, _, body = data.partition(b"\r\n\r\n")
    lines = dict(line.split(": ", 1) for line in told.decode().split("\r\n")[1:])
    assert int(told.split()[1]) == status
    answer = json.loads(body)
    assert set(answer) == {"code", "message", "request_id"}
    assert lines["Content-Type"] == "application/json" and lines["X-Request-Id"] == answer["request_id"]
