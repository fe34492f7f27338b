"""An HTTP listener over TLS: what a peer does to its connection is no error of ours (SEC-01, SEC-02)."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.ssl import SSLSocket

from controlplane.listeners.connection import peer_name
from controlplane.listeners.handshake import Handshakes
from controlplane.listeners.http import HttpListener, sender
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address
from tests.harness import identities as made
from tests.unit.controlplane.edges.peers import credentials, until

HALF = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"


@pytest.fixture
def served() -> list[str]:
    """Requests that began, and what became of the body of each."""
    return []


@pytest.fixture
def listener(tmp_path: Path, served: list[str]) -> Iterator[HttpListener]:
    """Reads the body, and answers whatever becomes of that, as our applications do."""

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        served.append("began")
        try:
            environ["wsgi.input"].read(100)
            served.append("read")
        except OSError as error:
            served.append(str(error))
        start_response("400 Bad Request", [("Content-Length", "2")])
        return [b"no"]

    handshakes = Handshakes(credentials(tmp_path / "plane").mutual)
    made_listener = HttpListener(Address("127.0.0.1", 0), application, Logger("test"), 1000, handshakes, mutual=True)
    yield made_listener.start()
    made_listener.stop(0.1)


def leave(sock: Any) -> None:
    """End the connection without the farewell of TLS, and read what still comes."""
    socket.socket.shutdown(sock, socket.SHUT_WR)


def garble(sock: Any) -> None:
    """Send what no key of the connection made."""
    os.write(sock.fileno(), b"\x17\x03\x03\x00\x20" + b"x" * 32)


@pytest.mark.parametrize("does", [leave, garble])
def test_who_breaks_its_connection_leaves_no_traceback(
    listener: HttpListener, served: list[str], tmp_path: Path, does: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """SEC-02: anybody could fill the log with tracebacks otherwise, of a join listener without a certificate."""
    plain = socket.create_connection(listener.address, timeout=20)
    context = made.client(made.ours().router(tmp_path / "router", "r1"))
    with SSLSocket(sock=plain, _context=context) as peer:
        peer.sendall(HALF)
        until(lambda: served)
        does(peer)
        until(lambda: len(served) > 1)
        with gevent.Timeout(20), suppress(ConnectionResetError):
            while socket.socket.recv(peer, 65536):
                pass
    assert served[1] != "read"
    assert capfd.readouterr().err == ""


def test_who_speaks_plain_http_is_told_in_the_shape_of_other_errors(listener: HttpListener) -> None:
    """API-04, SEC-01: with a request's id too; the agents' listener answers as it does to any request."""
    with socket.create_connection(listener.address, timeout=20) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while more := plain.recv(65536):
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    said = json.loads(body)
    assert head.startswith(b"HTTP/1.1 400 ") and "this port speaks TLS" in said["message"]
    assert said["code"] == "validation_failed" and f"X-Request-Id: {said['request_id']}".encode() in head


@pytest.mark.parametrize(
    ("address", "name"),
    [(("::1", 1234, 0, 0), "[::1]:1234"), (("127.0.0.1", 1234), "127.0.0.1:1234"), ("", "")],
)
def test_peers_are_named_as_addresses_are_written(address: Any, name: str) -> None:
    """SEC-02: an IPv6 host stands in brackets, in log lines and in what is kept of a join token's use."""
    assert peer_name(address) == name
    if address:
        assert sender({"REMOTE_ADDR": address[0], "REMOTE_PORT": str(address[1])}) == name
