"""Events as a list and as a stream, through the process."""

import signal
import socket
import time

import pytest
import requests

from controlplane.services.events import MAX_OF_ONE
from llmgw.wire.messages import Welcome
from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.controlplane.api.client import Client, problem


def something_happens(plane: ControlPlane) -> None:
    """An agent comes and goes."""
    agent = plane.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.close()


def test_events_over_http(own: ControlPlane) -> None:
    """API-04: through the real server: no length, ids, headers; it ends at once with the process."""
    admin = Client(own.start().api, own.token)
    something_happens(own)
    until(lambda: admin.get("events").json()["events"], "the first events")
    known = admin.get("events", params={"limit": 1}).json()["events"][0]["id"]
    headers = {**admin.headers, "Accept": "text/event-stream", "Last-Event-ID": "long-gone"}
    with requests.get(f"{own.api}/api/v1/events", headers=headers, stream=True, timeout=20) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert "Content-Length" not in answer.headers and answer.headers["Cache-Control"] == "no-store"
        lines = answer.iter_lines(chunk_size=1)
        assert next(line for line in lines if line.startswith(b"event")) == b"event: gap"
        assert next(line for line in lines if line.endswith(known.encode())) == b"id: " + known.encode()
        began = time.monotonic()
        own.tell(signal.SIGTERM)
        assert b'data: {"message":"the control plane stops: connect again"}' in list(lines)
        assert time.monotonic() - began < 10
    assert own.stop() == 0


def test_a_stream_for_a_time(plane: ControlPlane, admin: Client) -> None:
    """API-04: as a script needs it."""
    answer = admin.get("events", params={"watch": "true", "seconds": "0"})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.text.endswith('event: end\ndata: {"message":"the time asked for is over"}\n\n')


@pytest.mark.parametrize(
    ("query", "headers", "path"),
    [
        ({"seconds": "1"}, {}, "seconds"),
        ({"watch": "true", "cursor": "x"}, {}, "cursor"),
        ({"watch": "true"}, {"Last-Event-ID": "x" * 101}, "Last-Event-ID"),
        ({"since": "soon"}, {}, "since"),
        ({"until": "2030-01-01T00:00:00"}, {}, "until"),
        ({"limit": "1001"}, {}, "limit"),
    ],
)
def test_what_events_cannot_be_asked(admin: Client, query: dict[str, str], headers: dict[str, str], path: str) -> None:
    """API-04: with its place."""
    body = problem(admin.get("events", params=query, headers=headers), 422, "validation_failed")
    assert [fault["path"] for fault in body["faults"]] == [path]


def test_a_client_that_goes_away_is_forgotten(own: ControlPlane) -> None:
    """API-04: its place is free again with the next thing that is sent to it."""
    own.start()
    head = f"GET /api/v1/events?watch=true HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {own.token}\r\n\r\n"
    socks = [socket.create_connection(own.addresses["admin.listen"], timeout=10) for _ in range(MAX_OF_ONE)]
    for sock in socks:
        sock.sendall(head.encode())
        assert sock.recv(12) == b"HTTP/1.1 200"
    admin = Client(own.api, own.token)
    problem(admin.get("events", params={"watch": "true", "seconds": "0"}), 503, "busy")
    for sock in socks:
        sock.close()

    def free() -> bool:
        something_happens(own)
        return admin.get("events", params={"watch": "true", "seconds": "0"}).status_code == 200

    until(free, "a place for another watcher")
