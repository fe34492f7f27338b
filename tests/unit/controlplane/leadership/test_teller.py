"""Who took the lease tells the one that had it, until that one leads no more (HA-02)."""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from controlplane.leadership import teller
from controlplane.leadership.lease import Holder
from controlplane.leadership.notice import MAX_NOTICE, NOTICE_PATH, Noted
from controlplane.leadership.teller import Teller
from llmgw.identity.folder import Folder
from llmgw.wire.routing import encode
from tests.harness import identities

LEADS, NOT = encode(Noted(leads=True)), encode(Noted(leads=False))


class Before:
    """The one that led: answers with ``bodies``, one after the other, as ``kind``."""

    def __init__(self, folder: Path, bodies: list[bytes], kind: str = "controlplane") -> None:
        made = identities.ours()
        made.controlplane(folder, "cp-1") if kind == "controlplane" else made.folder(folder, kind, "cp-1")
        self._tls = identities.server(folder)
        self._bodies = bodies
        self.asked: list[bytes] = []
        self.peers: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                with suppress(OSError), self._tls.wrap_socket(plain, server_side=True) as secure:
                    self.peers.append(identities.uri_of(secure))
                    data = b""
                    while not data.endswith(b"}"):
                        data += secure.recv(65536)
                    self.asked.append(data)
                    body = self._bodies.pop(0)
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                    secure.sendall(head.encode() + body)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Tells whoever led before; what the log says once it has ended, or after a while."""
    monkeypatch.setattr(teller, "EVERY", 0.02)
    caplog.set_level("INFO", "llmgw.leadership")
    folder = Folder(identities.ours().controlplane(tmp_path / "cp-2", "cp-2"))
    made: list[Teller] = []

    def tell(before: Holder | None, seconds: float = 10.0) -> list[str]:
        leadership: Any = SimpleNamespace(replaced=before, holder=Holder("cp-2"), epoch=7)
        made.append(Teller(leadership, folder, random.Random(1)))
        made[-1].start()
        if made[-1]._greenlet is not None:
            with gevent.Timeout(seconds, False):
                made[-1]._greenlet.join()
        return [record.message for record in caplog.records if record.name == "llmgw.leadership"]

    yield tell
    for each in made:
        each.stop()


def test_it_is_told_until_it_leads_no_more(told: Any, tmp_path: Path) -> None:
    """HA-02: with our certificate, name and epoch; what goes wrong is logged once."""
    before = Before(tmp_path / "cp-1", [LEADS, LEADS, b"x" * (MAX_NOTICE + 1), b"no JSON", NOT, NOT])
    warned, done = told(Holder("cp-1", {"routers": before.address}))
    assert warned.startswith("who led before was not told") and done == "who led before leads no more"
    assert len(before.asked) == 5 and set(before.peers) == {"llmgw:controlplane:cp-2"}
    assert before.asked[0].startswith(f"POST {NOTICE_PATH} HTTP/1.1\r\n".encode())
    assert before.asked[0].endswith(b'\r\n\r\n{"epoch":7,"name":"cp-2"}')


@pytest.mark.parametrize("addresses", [{}, {"routers": "nonsense"}, {"routers": "127.0.0.1:1"}])
def test_one_that_cannot_be_reached_is_tried_for_the_whole_term(told: Any, addresses: dict[str, str]) -> None:
    """HA-02: it costs nobody anything, and the log hears of it once."""
    assert len(told(Holder("cp-1", addresses), seconds=0.5)) == 1


def test_nobody_but_a_control_plane_is_told(told: Any, tmp_path: Path) -> None:
    """SEC-01: whoever else has the address by now."""
    before = Before(tmp_path / "cp-1", [NOT], kind="router")
    (warned,) = told(Holder("cp-1", {"routers": before.address}), seconds=0.5)
    assert warned.startswith("who led before was not told") and not before.asked


def test_who_took_the_lease_from_nobody_tells_nobody(told: Any) -> None:
    """HA-02: it was released."""
    assert told(None) == []
