"""What agents, administrators and the disk can do to a control plane, and what it costs."""

import json
import os
import signal
import socket as native
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import gevent
import pytest
import requests
from gevent import socket
from gevent.event import Event

from controlplane.api.base import Figure
from controlplane.events import Decision, FrameReceived
from controlplane.inbox import PER_SESSION, Inbox
from controlplane.journal import Journal
from controlplane.listeners.http import HttpListener
from controlplane.listeners.registration import fault
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.daemon import reload_when
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address
from llmgw.wire.messages import CommandResult, Device, EngineInstall, Inventory, Register
from tests.fakes.controlplane import ControlPlane, until

# ---------------------------------------------------------------- agents


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        (Inventory(address="192.0.2.1"), "is not loopback"),
        (Inventory(address="metadata.internal"), "is not loopback"),
        (Inventory(address=""), "is not loopback"),
        (
            Inventory(address="127.0.0.1", devices=(Device(uuid="GPU-1"), Device(uuid="GPU-1"))),
            "'GPU-1' is named twice",
        ),
        (
            Inventory(address="127.0.0.1", engines=(EngineInstall(name="sim", state="ready"),) * 2),
            "an engine is named twice",
        ),
    ],
)
def test_registrations_that_are_not_taken(inventory: Inventory, words: str) -> None:
    """AGT-01, SEC-03: before anything is built on them."""
    assert words in (fault(Register(inventory=inventory)) or "")


def test_registrations_that_are_taken() -> None:
    """AGT-01: any loopback address, devices with names of their own."""
    for address in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        devices = (Device(uuid="GPU-1"), Device(uuid="GPU-2"))
        assert fault(Register(inventory=Inventory(address=address, devices=devices))) is None


def test_an_address_elsewhere_ends_the_session(shared: ControlPlane) -> None:
    """SEC-03: over the wire, with the remedy in the refusal."""
    agent = shared.agent().upgrade().hello()
    agent.register(inventory=Inventory(address="198.51.100.7"))
    while (message := agent.receive()) is not None:
        last = message
    assert last.code == "bad_frame" and "setting address" in last.message
    assert shared.get("nodes/node-1").get("address") != "198.51.100.7"
    agent.close()


def test_one_session_cannot_fill_the_queue() -> None:
    """REC-01: a peer that floods waits for itself; others go on."""
    inbox = Inbox()
    frame = FrameReceived("loud", CommandResult(command_id="c", outcome="accepted"))
    flood = gevent.spawn(lambda: [inbox.put(frame) for _ in range(10 * PER_SESSION)])
    gevent.sleep(0.01)
    assert len(inbox) == PER_SESSION and not flood.ready()
    with gevent.Timeout(1):
        inbox.put(FrameReceived("quiet", frame.message))
    taken = 0
    while not (flood.ready() and len(inbox) == 0):
        taken += inbox.take() is not None
        assert len(inbox) <= PER_SESSION + 1
        gevent.sleep(0)
    assert taken == 10 * PER_SESSION + 1


# ---------------------------------------------------------------- administrators


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_figure_that_json_cannot_write_is_unknown(value: float | None) -> None:
    """API-01: answers are JSON, whatever was measured."""
    assert Figure()._serialize(value) is None


def test_reloads_run_one_at_a_time() -> None:
    """CAT-06: of two files the one read last counts; a burst of signals costs one more reading."""
    asked, running, longest, done = Event(), 0, 0, 0

    def reload() -> None:
        nonlocal running, longest, done
        running += 1
        longest = max(longest, running)
        gevent.sleep(0.01)
        running -= 1
        done += 1

    worker = gevent.spawn(reload_when, asked, reload)
    asked.set()
    gevent.sleep(0.002)
    for _ in range(50):
        asked.set()
    gevent.sleep(0.05)
    worker.kill()
    assert (longest, done) == (1, 2)


# ---------------------------------------------------------------- the disk


def test_a_journal_that_was_removed_begins_anew(tmp_path: Path) -> None:
    """REC-02: what is reported as durable is in a file that has a name."""
    committed: list[int] = []
    file = tmp_path / "decisions.jsonl"
    journal = Journal(file, SystemClock(), committed.append).start()
    for batch in (1, 2):
        journal.commit(batch, [Decision("place", f"decision {batch}")])
        with gevent.Timeout(5):
            while batch not in committed:
                gevent.sleep(0.005)
        assert f"decision {batch}" in file.read_text()
        file.unlink()
    journal.stop()


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
    began = time.monotonic()
    answer = requests.post(f"{control_plane.api}/api/v1/catalog/reload", headers=control_plane.auth, timeout=10)
    assert answer.status_code == 422 and "no regular file" in answer.text
    assert time.monotonic() - began < 3
    until(lambda: "the catalog was not reloaded" in control_plane.log(), "the refusal in the log")
    assert control_plane.get("catalog")["models"] == ["sim-huge", "sim-off", "sim-small"]
    assert control_plane.stop() == 0


def test_a_head_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    """API-04: a byte now and then does not hold a connection for ever."""
    monkeypatch.setattr("controlplane.listeners.http.HEAD", 0.2)
    monkeypatch.setattr("controlplane.listeners.http.IDLE", 0.2)
    listener = HttpListener(Address("127.0.0.1", 0), lambda *_: [b""], Logger("test"), max_body=10).start()
    try:
        for first in (b"GET / HTTP/1.1\r\n", b"G"):
            sock = socket.create_connection(listener.address)
            sock.sendall(first)
            began = time.monotonic()
            with gevent.Timeout(5), suppress(OSError):
                while True:
                    sock.sendall(b"x")
                    gevent.sleep(0.05)
            assert 0.1 < time.monotonic() - began < 2
            sock.close()
    finally:
        listener.stop(0.1)


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
    sock = native.create_connection(shared.addresses["admin.listen"], timeout=10)
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
