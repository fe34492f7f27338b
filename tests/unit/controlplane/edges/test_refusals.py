"""What peers send and are refused for is told sparingly, and no peer rules the log (SEC-02, SEC-03)."""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from gevent import socket

from controlplane.inbox import Inbox
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.http import HttpListener
from controlplane.listeners.join import JoinApplication
from controlplane.listeners.refusals import LONGEST, PER, REASONS, TOLD, Refusals
from controlplane.services.joining import JoinRefused
from controlplane.store.values import Enrolled
from llmgw.identity.joining import CERTIFICATE_PATH
from llmgw.runtime.clock import ManualClock, SystemClock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address
from tests.harness import identities as made
from tests.unit.controlplane.edges.peers import Peer, credentials, known

FLOOD = 3 * TOLD


def fields(log: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """Of every line, in order."""
    return [record.__dict__["fields"] for record in log.records]


def test_a_flood_is_a_few_lines_and_hides_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """SEC-03: whatever the flood says of itself; and after a while it is told again."""
    clock = ManualClock()
    refusals = Refusals(Logger("test"), clock)
    for number in range(FLOOD):
        refusals.tell("refused", peer="p", code="bad_request", why=f"made up {number}")
    assert [line["why"] for line in fields(caplog)[:TOLD]] == [f"made up {number}" for number in range(TOLD)]
    assert fields(caplog)[TOLD:] == [{"what": "refused", "code": "bad_request"}]
    refusals.tell("refused", peer="p", code="unknown", why="another")
    refusals.tell("refused otherwise", code="bad_request", why="the same of something else")
    assert [line["why"] for line in fields(caplog)[TOLD + 1 :]] == ["another", "the same of something else"]
    assert refusals.count == FLOOD + 2
    clock.advance(PER)
    refusals.tell("refused", code="bad_request", why="again")
    assert fields(caplog)[-1] == {"code": "bad_request", "why": "again"}


def test_one_certificate_hides_none_of_another(caplog: pytest.LogCaptureFixture) -> None:
    """SEC-01, SEC-03: whose it is was signed, not made up; there are bounds all the same."""
    refusals = Refusals(Logger("test"), ManualClock())
    for whose in ("router a", "router b"):
        for _ in range(FLOOD):
            refusals.tell("refused", certificate=whose, code="revoked", why="stolen")
    assert [line["certificate"] for line in fields(caplog)] == [*["router a"] * (TOLD + 1), *["router b"] * (TOLD + 1)]
    for number in range(10 * REASONS):
        refusals.tell("refused", certificate=f"node {number}", code="revoked", why="stolen")
    assert len(caplog.records) == 2 * (TOLD + 1) + (REASONS - 2) + TOLD + 1
    refusals.tell("refused", code="unknown", why="another")
    assert fields(caplog)[-1]["why"] == "another"


def test_what_is_told_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """SEC-03: every field, whatever it is."""
    Refusals(Logger("test"), ManualClock()).tell("refused", code="c", why=ValueError("x" * 9999), name="y" * 9999)
    assert {name: len(value) for name, value in fields(caplog)[0].items()} == {
        "name": LONGEST,
        "code": 1,
        "why": LONGEST,
    }


def test_made_up_kinds_hide_no_other_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """SEC-02: nobody needs a certificate to name one to the join listener."""
    joining = MagicMock()
    joining.join.side_effect = JoinRefused("join_refused", "no such token", "void", "token t is void")
    application = JoinApplication(MagicMock(), joining, ManualClock())

    def ask(kind: str) -> str:
        told: list[str] = []
        data = json.dumps({"token": "t", "kind": kind, "name": "n", "request": "r"}).encode()
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": CERTIFICATE_PATH, "CONTENT_LENGTH": str(len(data))}
        application({**environ, "wsgi.input": BytesIO(data)}, lambda status, _headers: told.append(status[:3]))
        return told[0]

    for number in range(500):
        assert ask(f"k{number}") == "400"
    assert len(caplog.records) == TOLD + 1
    assert ask("node") == "403"
    assert fields(caplog)[-1]["why"] == "token t is void" and application.refused == 501


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        (lambda number: b"GARBAGE %d\r\n\r\n" % number, 400),
        (lambda number: b"POST / HTTP/1.1\r\nContent-Length: x%d\r\n\r\n" % number, 400),
        (lambda number: b"GET / HTTP/1.1\r\nX: %s\r\n\r\n" % (b"%d" % number * 70_000), 431),
    ],
)
def test_requests_that_cannot_be_read_fill_no_log(
    caplog: pytest.LogCaptureFixture, request_of: Callable[[int], bytes], status: int
) -> None:
    """SEC-03: each is answered, and a few are told."""
    listener = HttpListener(
        Address("127.0.0.1", 0), lambda *_: [b""], Logger("test"), max_body=10, clock=ManualClock()
    ).start()
    try:
        for number in range(FLOOD):
            with socket.create_connection(listener.address, timeout=20) as peer:
                peer.sendall(request_of(number))
                assert peer.recv(100).startswith(b"HTTP/1.1 %d " % status)
    finally:
        listener.stop(0.1)
    assert len(caplog.records) == TOLD + 1
    assert {line["code"] for line in fields(caplog)} == {str(status)}


def test_bad_hellos_fill_no_log(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """SEC-03: of who has a certificate either."""
    inbox, node = Inbox(), made.ours().node(tmp_path / "node-1", "node-1")
    listener = AgentListener(
        Address("127.0.0.1", 0),
        inbox,
        credentials(tmp_path / "controlplane"),
        known(inbox, Enrolled("node", "node-1", 1.0, "tests")),
        SystemClock(),
    ).start()
    try:
        for _ in range(TOLD + 5):
            peer = Peer(listener.address, node).upgrade()
            peer.sock.sendall(b"\x00\x00\x00\x02{}")
            assert peer.answer()
            peer.sock.close()
    finally:
        listener.stop(0.1)
    told = [record for record in caplog.records if "refused" in record.getMessage()]
    assert len(told) == TOLD + 1 and listener.bad_frames == TOLD + 5
