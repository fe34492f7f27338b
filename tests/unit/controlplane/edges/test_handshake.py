"""TLS handshakes of a listener: what no peer can hold up, and who does not speak TLS (AGT-03, SEC-01)."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket

from controlplane.listeners.handshake import Handshakes
from llmgw.identity.tls import explain
from tests.unit.controlplane.edges.peers import credentials


def wrapped(folder: Path, limit: float = 10.0) -> tuple[Any, Any]:
    """A peer's end, and what becomes of ours."""
    handshakes = Handshakes(credentials(folder).mutual, limit=limit)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    return here, gevent.spawn(handshakes.wrap_socket, there)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "spoke HTTP without TLS"),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07", "does not speak TLS"),
        (b"\x16\x03\x01\x00\x05hello", "no secure connection comes about"),
        (b"", "left without a word"),
    ],
)
def test_who_does_not_speak_tls(tmp_path: Path, said: bytes, words: str) -> None:
    """SEC-01: a scanner, or a client at the wrong port, leaves one line and no traceback."""
    here, ours = wrapped(tmp_path)
    here.sendall(said)
    if not said:
        here.shutdown(socket.SHUT_WR)
    with pytest.raises(OSError) as refused:
        ours.get(timeout=20)
    here.close()
    assert words in explain(refused.value), explain(refused.value)


@pytest.mark.parametrize("drip", [False, True])
def test_a_handshake_takes_its_time_and_no_more(tmp_path: Path, drip: bool) -> None:
    """SEC-01: neither silence nor a byte now and then holds a connection for long."""
    here, ours = wrapped(tmp_path, limit=0.3)
    hello = b"\x16\x03\x01\x02\x00" + bytes(512)
    with gevent.Timeout(20):
        for place in range(len(hello)):
            if ours.ready():
                break
            if drip:
                with suppress(OSError):
                    here.send(hello[place : place + 1])
            gevent.sleep(0.01)
    assert ours.ready()
    here.close()
    with pytest.raises(OSError, match="in time"):
        ours.get()
