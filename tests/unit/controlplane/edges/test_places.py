"""Connections of an HTTP listener: who goes when there are too many (AGT-03, SEC-02)."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import MagicMock

import gevent
import pytest
from gevent import socket

from controlplane.listeners.http import HttpListener
from controlplane.listeners.join import JoinApplication
from controlplane.listeners.places import Places
from controlplane.listeners.routers import RouterApplication
from llmgw.identity.joining import CERTIFICATE_PATH
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address

MOST = 4
OK = b"HTTP/1.1 200"


class Guest:
    def __init__(self, *, reading: bool = True, who: str = "") -> None:
        self.reading = reading
        self.who = who
        self.left = False

    def leave(self) -> None:
        self.left = True


def test_who_asked_for_nothing_goes_first() -> None:
    """Of those that are waited for the oldest that is new, then who was served longest ago; nobody that is served."""
    places = Places(3)
    first, second, third = (Guest() for _ in range(3))
    assert all(places.come(guest) for guest in (first, second, third))
    places.served(first)
    second.reading = False
    assert places.come(fourth := Guest(reading=False))
    assert (first.left, second.left, third.left) == (False, False, True)
    assert places.come(Guest(reading=False))
    assert first.left and not fourth.left and places.taken == 3
    assert not places.come(Guest())
    places.go(second)
    assert places.come(Guest())
    places.served(third)
    assert places.taken == 3, "who went is gone"


def test_no_identity_has_more_than_it_leaves_free() -> None:
    """SEC-01, RTR-03: a router that opens connection after connection, each of them at work, takes its own
    places and nobody else's; of those that wait for its next request the oldest goes for a new one."""

    def guest(who: str, *, reading: bool = False) -> Guest:
        return Guest(reading=reading, who=who)

    places = Places(8)
    held = [guest("router a") for _ in range(4)]
    assert all(places.come(each) for each in held)
    assert not places.come(guest("router a"))
    assert places.come(other := guest("router b", reading=True)) and places.come(guest("router b"))
    assert not places.come(guest("router a")) and not other.left
    places.served(held[0])
    held[0].reading = True
    assert places.come(guest("router a")) and held[0].left
    places.go(held[0])
    assert places.taken == 6, "who went twice leaves one place"
    assert places.come(guest("router c")) and places.come(guest("router d"))
    assert places.come(guest("router e")), "who has none yet gets that of whoever waits"
    assert not places.come(guest("router f")) and [other.left] == [True]
    nobody = Places(2)
    assert nobody.come(Guest(reading=False)) and nobody.come(Guest(reading=False)), "nobody shares with nobody"


@pytest.fixture
def listener() -> Iterator[HttpListener]:
    """Answers at once, ``/slow`` when told to."""
    going = gevent.event.Event()

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/slow":
            going.wait(20)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    made = HttpListener(Address("127.0.0.1", 0), application, Logger("test"), max_body=10, most=MOST).start()
    made.going = going  # type: ignore[attr-defined]
    yield made
    going.set()
    made.stop(0.1)


def ask(listener: HttpListener, path: str = "/") -> Any:
    sock = socket.create_connection(listener.address, timeout=10)
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return sock


def rest(sock: Any) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def test_silent_peers_give_way_and_are_told(listener: HttpListener) -> None:
    """AGT-03: with every place taken by who says nothing, or half a request, each newcomer is answered."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(listener.address, timeout=10)) for _ in range(MOST)]
        silent[0].sendall(b"GET / HT")
        kept = stack.enter_context(ask(listener))
        assert kept.recv(12) == OK
        for _ in range(MOST - 1):
            assert stack.enter_context(ask(listener)).recv(12) == OK
        for sock in silent:
            answer = rest(sock)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"asked for nothing while too many others came" in answer
        with gevent.Timeout(10):
            while not kept.recv(1000).endswith(b"ok"):
                pass
        kept.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(12) == OK, "who was served stays longer than who was not"


def test_requests_that_are_worked_for_are_not_displaced(listener: HttpListener) -> None:
    """AGT-03: they are answered, and the newcomer is told to try again."""
    with ExitStack() as stack:
        slow = [stack.enter_context(ask(listener, "/slow")) for _ in range(MOST)]
        gevent.sleep(0.1)
        with ask(listener) as sock:
            answer = rest(sock)
        assert answer.startswith(b"HTTP/1.1 503 ") and json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "busy"
        listener.going.set()  # type: ignore[attr-defined]
        assert all(sock.recv(12) == OK for sock in slow)


def test_the_first_request_must_come_in_time(listener: HttpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """AGT-03: 408 with words; a connection that was served ends without, for the words could be taken for an answer."""
    monkeypatch.setattr("controlplane.listeners.http.HEAD", 0.2)
    monkeypatch.setattr("controlplane.listeners.http.IDLE", 0.2)
    with socket.create_connection(listener.address, timeout=10) as silent:
        answer = rest(silent)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"no request came in 0.2 s" in answer
    with ask(listener) as sock:
        assert rest(sock).endswith(b"ok")


@pytest.mark.parametrize("what", ["join", "routers"])
def test_a_body_that_breaks_off_is_no_error_of_ours(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """SEC-02: anybody could fill the log with tracebacks otherwise."""

    class Broken:
        def read(self, _length: int) -> bytes:
            raise OSError("unexpected end of file while reading request")

    told: list[str] = []
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "9", "wsgi.input": Broken(), "PATH_INFO": CERTIFICATE_PATH}
    app: Any
    if what == "join":
        app = JoinApplication(None, None, SystemClock())  # type: ignore[arg-type]
        (body,) = app(environ, lambda status, _headers: told.append(status))
        assert b"ended before" in body and told == ["400 Bad Request"]
    else:
        app = RouterApplication(
            MagicMock(),
            MagicMock(),
            credentials=MagicMock(),
            identities=MagicMock(),
            clock=SystemClock(),
            leads=MagicMock(),
            superseded=MagicMock(),
            take_usage=MagicMock(),
        )
        with pytest.raises(Exception, match="ended before"):
            app._decode(environ, "r1", MagicMock(), 100)
    assert not [record for record in caplog.records if record.exc_info]
