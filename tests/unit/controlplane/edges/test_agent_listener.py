"""The agents' listener over real sockets, in this process: limits in time and number."""

from pathlib import Path
from unittest.mock import MagicMock

import gevent
import pytest
from gevent import socket
from gevent.event import Event

from controlplane.events import FrameReceived, SessionClosed, SessionOpened
from controlplane.identities import Credentials
from controlplane.inbox import Inbox
from controlplane.listeners import connection as connection_module
from controlplane.listeners import door as door_module
from controlplane.listeners.agents import AgentListener
from controlplane.store.values import Enrolled
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.settings import Address
from llmgw.wire.frames import encode
from llmgw.wire.messages import Forget, Goodbye, Heartbeat, HeartbeatAck, Refuse, ShardKey
from tests.harness import identities as made
from tests.unit.controlplane.edges.peers import HELLO, Peer, credentials, known, request, take, until

NODE_1 = Enrolled("node", "node-1", 1.0, "tests")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return credentials(tmp_path_factory.mktemp("identity") / "controlplane")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.ours().node(tmp_path_factory.mktemp("identity") / "node-1", "node-1")


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def make(inbox: Inbox, ours: Credentials):
    listeners = []

    def build(**options) -> AgentListener:
        listener = AgentListener(
            Address("127.0.0.1", 0),
            inbox,
            ours,
            known(inbox, NODE_1),
            SystemClock(),
            **{"silence": 5.0, **options},
        ).start()
        listeners.append(listener)
        return listener

    yield build
    for listener in listeners:
        listener.stop(0.1)


@pytest.fixture
def peer(node: Path):
    return lambda listener: Peer(listener.address, node)


def test_a_session_is_told_from_open_to_close(make, peer, inbox: Inbox) -> None:
    """AGT-03: open, frames in order, close, each once."""
    one = peer(make()).upgrade().hello()
    opened = take(inbox, SessionOpened)
    assert opened.node_id == "node-1" and opened.hello == HELLO
    one.sock.sendall(encode(Heartbeat(sequence=1)))
    assert take(inbox, FrameReceived) == FrameReceived(opened.session, Heartbeat(sequence=1))
    one.sock.close()
    assert take(inbox, SessionClosed) == SessionClosed(opened.session, "the agent closed the connection")


def test_frames_that_came_with_the_request_are_not_lost(make, peer, inbox: Inbox) -> None:
    """AGT-03: an eager agent may send hello and more in one segment with the request."""
    one = peer(make())
    one.sock.sendall(request() + encode(HELLO) + encode(Heartbeat(sequence=9)))
    take(inbox, SessionOpened)
    assert take(inbox, FrameReceived).message.sequence == 9
    one.sock.close()


def test_a_silent_session_ends(make, peer, inbox: Inbox) -> None:
    """AGT-03: nothing heard for the silence: refused with `timeout`, closed, told."""
    one = peer(make(silence=0.2)).upgrade().hello()
    (refuse,) = one.frames()
    assert isinstance(refuse, Refuse) and refuse.code == "timeout"
    assert "nothing was heard for 0.2 s" in take(inbox, SessionClosed).reason


@pytest.mark.parametrize("stage", ["nothing", "half a handshake", "no request", "half a request", "no hello"])
def test_hello_must_come_in_time(make, node: Path, stage: str) -> None:
    """SEC-02: a connection that says nothing, or half of it, does not stay, and is told so in what it speaks."""
    listener = make(hello=0.2)
    if stage in ("nothing", "half a handshake"):
        plain = socket.create_connection(listener.address)
        plain.settimeout(5)
        if stage == "half a handshake":
            plain.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert plain.recv(100) == b""
    else:
        one = Peer(listener.address, node)
        if stage == "half a request":
            one.sock.sendall(b"GET /agent/v1/session HTTP/1.1\r\nHo")
        elif stage == "no hello":
            (refuse,) = one.upgrade().frames()
            assert isinstance(refuse, Refuse) and (refuse.code, refuse.message) == ("timeout", "no hello in 0.2 s")
        if stage != "no hello":
            answer = one.answer()
            assert answer.startswith(b"HTTP/1.1 408 ") and b"no hello in 0.2 s" in answer
    until(lambda: listener.pending == 0)
    assert listener.sessions == 0 and listener.refused == 1


def test_connections_before_hello_are_bounded(make, peer) -> None:
    """SEC-02: beyond the bound a connection is answered and closed; a session does not count."""
    listener = make(max_pending=2)
    session = peer(listener).upgrade().hello()
    gevent.sleep(0)
    held = [peer(listener), peer(listener)]
    with gevent.Timeout(20):
        while listener.pending < 2:
            gevent.sleep(0.01)
    turned_away = peer(listener)
    answer = turned_away.answer()
    assert answer.startswith(b"HTTP/1.1 503 ") and b'"overloaded"' in answer
    held[0].sock.close()
    with gevent.Timeout(20):
        while listener.pending > 1:
            gevent.sleep(0.01)
    peer(listener).upgrade()
    assert listener.sessions == 1
    session.sock.close()


def test_close_sends_the_refusal_before_the_end(make, peer, inbox: Inbox) -> None:
    """AGT-03: what the loop wants to say last arrives, also if the peer goes on sending."""
    listener = make()
    one = peer(listener).upgrade().hello()
    session = take(inbox, SessionOpened).session
    stop = Event()

    def chatter() -> None:
        sequence = 0
        while not stop.is_set():
            sequence += 1
            try:
                one.sock.sendall(encode(Heartbeat(sequence=sequence)))
            except OSError:
                return
            gevent.sleep(0)

    talking = gevent.spawn(chatter)
    listener.send(session, HeartbeatAck(sequence=1))
    listener.close(session, Refuse(code="superseded", message="a newer session"))
    frames = []
    while not any(isinstance(frame, Refuse) for frame in frames):
        frames += one.decoder.feed(one.sock.recv(65536))
    stop.set()
    talking.join()
    one.sock.close()
    assert [type(frame) for frame in frames] == [HeartbeatAck, Refuse]
    assert take(inbox, SessionClosed).reason == "a newer session"
    listener.send(session, HeartbeatAck(sequence=2))  # a session that is gone takes nothing


def test_a_peer_that_does_not_read_is_cut_off(make, peer, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-02: what waits for one connection is bounded."""
    monkeypatch.setattr(connection_module, "MAX_QUEUED", 256 * 1024)
    listener = make()
    one = peer(listener).upgrade().hello()
    session = take(inbox, SessionOpened).session
    large = Forget(shards=tuple(ShardKey("r" * 1000, 0, 1) for _ in range(20)))
    with gevent.Timeout(10):
        while listener.sessions:
            listener.send(session, large)
            gevent.sleep(0)
    assert "does not read" in take(inbox, SessionClosed).reason
    one.sock.close()


def test_a_stop_says_goodbye_to_everybody(make, peer) -> None:
    """HA-02: goodbye with a spread, then the end, in bounded time."""
    listener = make()
    peers = [peer(listener).upgrade().hello() for _ in range(5)]
    with gevent.Timeout(20):
        while listener.sessions < 5:
            gevent.sleep(0.01)
    with gevent.Timeout(20):
        listener.stop(0.5)
    for one in peers:
        (goodbye,) = one.frames()
        assert isinstance(goodbye, Goodbye) and goodbye.spread_seconds >= 1


def test_a_session_knows_the_machine_that_it_comes_from(
    make, inbox: Inbox, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-02: for status, which compares it with the address that the node gives."""
    monkeypatch.setattr(door_module, "peer_name", lambda _: "10.0.0.7:5")
    agent = Peer(make().address, node).upgrade().hello()
    assert take(inbox, SessionOpened).elsewhere == "10.0.0.7"
    agent.sock.close()


@pytest.mark.parametrize(
    ("peer", "came_in_at", "came_from"),
    [
        ("127.0.0.1:5", "127.0.0.1", ""),
        ("127.9.9.9:5", "127.0.0.1", ""),
        ("::1:5", "::1", ""),
        ("10.0.0.8:5", "10.0.0.8", ""),
        ("10.0.0.7:5", "10.0.0.8", "10.0.0.7"),
        ("2001:db8::7:5", "2001:db8::8", "2001:db8::7"),
    ],
)
def test_who_comes_to_the_address_that_it_comes_from_is_on_this_machine(
    peer: str, came_in_at: str, came_from: str
) -> None:
    """CLI-02: also an agent that has its control plane's name on the network."""
    sock = MagicMock()
    sock.getsockname.return_value = (came_in_at, 7001)
    assert connection_module.elsewhere(peer, sock) == came_from
