"""Connections are open files: their bounds fit the limit, and its end is told in words (AGT-03)."""

import errno
import resource
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.server import StreamServer

from controlplane.listeners import door, files, handshake, http, join
from controlplane.listeners.files import LEAST, SHARE, TOGETHER, WANTED, within
from controlplane.listeners.http import HttpListener
from llmgw.runtime.daemon import allow_many_files
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address

BOUNDS = [
    *[handshake.MAX_WAITING] * 4,
    *[http.MAX_CONNECTIONS] * 2,
    join.MOST,
]


def allow(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(files.resource, "getrlimit", lambda _: (soft, soft))


def test_all_bounds_together_are_known() -> None:
    """AGT-03: else the limit would be judged by what is not so."""
    assert sum(BOUNDS) == TOGETHER


@pytest.mark.parametrize("soft", [512, 1024, 4096, 40_000])
def test_bounds_leave_files_for_sessions_and_ourselves(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    """AGT-03: whoever says nothing goes before there is no file for anybody else."""
    allow(monkeypatch, soft)
    assert sum(map(within, BOUNDS)) <= soft * SHARE + LEAST
    assert all(LEAST <= within(bound) < bound for bound in BOUNDS) and within(3) == 3


@pytest.mark.parametrize("soft", [WANTED, resource.RLIM_INFINITY])
def test_bounds_are_as_they_are_where_files_suffice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soft: int
) -> None:
    """AGT-03: and nothing is told at the start."""
    allow(monkeypatch, soft)
    allow_many_files(WANTED)
    assert [within(bound) for bound in BOUNDS] == BOUNDS and not caplog.records


def test_a_limit_that_is_too_low_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """AGT-03, RTR-13: at the start."""
    allow(monkeypatch, 1024)
    allow_many_files(WANTED)
    told = caplog.records[0].__dict__["fields"]
    assert told["limit"] == 1024 and f"LimitNOFILE={WANTED}" in told["remedy"]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """No file is left for a connection, for as long as the list is not empty; what is in it is raised."""
    left: list[int] = [errno.EMFILE] * 3
    accept = StreamServer.do_read

    def do_read(server: Any) -> Any:
        if left:
            raise OSError(left.pop(), "no files")
        return accept(server)

    monkeypatch.setattr(StreamServer, "do_read", do_read)
    monkeypatch.setattr(files, "PAUSE", 0.01)
    yield left


def test_the_end_of_files_is_told_in_words(
    full: list[int], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """AGT-03: without a traceback, and who waits is accepted later."""
    assert issubclass(door._Server, files.Accepting)
    listener = HttpListener(Address("127.0.0.1", 0), lambda *_: [b""], Logger("test"), max_body=10).start()
    try:
        with socket.create_connection(listener.address, timeout=20) as peer:
            peer.sendall(b"GARBAGE\r\n\r\n")
            with gevent.Timeout(20):
                assert peer.recv(100).startswith(b"HTTP/1.1 400 ")
    finally:
        listener.stop(0.1)
    assert not full and capfd.readouterr().err == ""
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [*["a connection waits to be accepted"] * 3, "request refused"]
