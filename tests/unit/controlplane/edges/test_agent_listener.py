"""The agents' listener over real sockets, in this process: limits in time and number."""

import gevent
import pytest
from gevent import socket
from gevent.event import Event

from controlplane.events import FrameReceived, SessionClosed, SessionOpened
from controlplane.inbox import Inbox
from controlplane.listeners import connection as connection_module
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.tokens import FleetTokens
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.settings import Address
from llmgw.wire.frames import down_decoder, encode
from llmgw.wire.messages import Forget, Goodbye, Heartbeat, HeartbeatAck, Hello, Refuse, ShardKey

TOKEN = "at-0123456789abcdef"
HELLO = Hello(node_id="node-1", version="t", oldest_protocol=1, newest_protocol=1)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def make(inbox: Inbox):
    made = []

    def build(**options) -> AgentListener:
        listener = AgentListener(
            Address("127.0.0.1", 0),
            inbox,
            lambda: FleetTokens({"node-1": TOKEN}),
            SystemClock(),
            **{"silence": 5.0, **options},
        ).start()
        made.append(listener)
        return listener

    yield build
    for listener in made:
        listener.stop(0.1)


class Peer:
    def __init__(self, listener: AgentListener) -> None:
        self.sock = socket.create_connection(listener.address)
        self.sock.settimeout(5)
        self.decoder = down_decoder()

    def upgrade(self) -> "Peer":
        self.sock.sendall(
            b"GET /agent/v1/session HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: llmgw-agent/1\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\nLlmgw-Node: node-1\r\n\r\n"
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.sock.recv(1)
        assert b" 101 " in head
        return self

    def hello(self) -> "Peer":
        self.sock.sendall(encode(HELLO))
        return self

    def frames(self) -> list:
        """Every frame until the end of the connection."""
        found = []
        while data := self.sock.recv(65536):
            found += self.decoder.feed(data)
        return found


def take(inbox: Inbox, kind: type) -> object:
    with gevent.Timeout(20):
        while True:
            event = inbox.take()
            if isinstance(event, kind):
                return event
            if event is None:
                inbox.wait(1)


def test_a_session_is_told_from_open_to_close(make, inbox: Inbox) -> None:
    """AGT-03: open, frames in order, close, each once."""
    peer = Peer(make()).upgrade().hello()
    opened = take(inbox, SessionOpened)
    assert opened.node_id == "node-1" and opened.hello == HELLO
    peer.sock.sendall(encode(Heartbeat(sequence=1)))
    assert take(inbox, FrameReceived) == FrameReceived(opened.session, Heartbeat(sequence=1))
    peer.sock.close()
    assert take(inbox, SessionClosed) == SessionClosed(opened.session, "the agent closed the connection")


def test_frames_that_came_with_the_request_are_not_lost(make, inbox: Inbox) -> None:
    """AGT-03: an eager agent may send hello and more in one segment with the request."""
    peer = Peer(make())
    peer.sock.sendall(
        b"GET /agent/v1/session HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: llmgw-agent/1\r\n"
        b"Authorization: Bearer "
        + TOKEN.encode()
        + b"\r\nLlmgw-Node: node-1\r\n\r\n"
        + encode(HELLO)
        + encode(Heartbeat(sequence=9))
    )
    take(inbox, SessionOpened)
    assert take(inbox, FrameReceived).message.sequence == 9
    peer.sock.close()


def test_a_silent_session_ends(make, inbox: Inbox) -> None:
    """AGT-03: nothing heard for the silence: refused with `timeout`, closed, told."""
    peer = Peer(make(silence=0.2)).upgrade().hello()
    (refuse,) = peer.frames()
    assert isinstance(refuse, Refuse) and refuse.code == "timeout"
    assert "nothing was heard for 0.2 s" in take(inbox, SessionClosed).reason


@pytest.mark.parametrize("stage", ["nothing", "half a request", "no hello"])
def test_hello_must_come_in_time(make, stage: str) -> None:
    """SEC-02: a connection that says nothing, or half of it, does not stay."""
    listener = make(hello=0.2)
    peer = Peer(listener)
    if stage == "half a request":
        peer.sock.sendall(b"GET /agent/v1/session HTTP/1.1\r\nHo")
    elif stage == "no hello":
        peer.upgrade()
    assert peer.frames() == []
    assert listener.pending == 0 and listener.sessions == 0 and listener.refused == 1


def test_connections_before_hello_are_bounded(make) -> None:
    """SEC-02: beyond the bound a connection is answered and closed; a session does not count."""
    listener = make(max_pending=2)
    session = Peer(listener).upgrade().hello()
    gevent.sleep(0)
    held = [Peer(listener), Peer(listener)]
    with gevent.Timeout(20):
        while listener.pending < 2:
            gevent.sleep(0.01)
    turned_away = Peer(listener)
    answer = turned_away.sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 503 ") and b'"overloaded"' in answer
    held[0].sock.close()
    with gevent.Timeout(20):
        while listener.pending > 1:
            gevent.sleep(0.01)
    Peer(listener).upgrade()
    assert listener.sessions == 1
    session.sock.close()


def test_close_sends_the_refusal_before_the_end(make, inbox: Inbox) -> None:
    """AGT-03: what the loop wants to say last arrives, also if the peer goes on sending."""
    listener = make()
    peer = Peer(listener).upgrade().hello()
    session = take(inbox, SessionOpened).session
    stop = Event()

    def chatter() -> None:
        sequence = 0
        while not stop.is_set():
            sequence += 1
            try:
                peer.sock.sendall(encode(Heartbeat(sequence=sequence)))
            except OSError:
                return
            gevent.sleep(0)

    talking = gevent.spawn(chatter)
    listener.send(session, HeartbeatAck(sequence=1))
    listener.close(session, Refuse(code="superseded", message="a newer session"))
    frames = []
    while not any(isinstance(frame, Refuse) for frame in frames):
        frames += peer.decoder.feed(peer.sock.recv(65536))
    stop.set()
    talking.join()
    peer.sock.close()
    assert [type(frame) for frame in frames] == [HeartbeatAck, Refuse]
    assert take(inbox, SessionClosed).reason == "a newer session"
    listener.send(session, HeartbeatAck(sequence=2))  # a session that is gone takes nothing


def test_a_peer_that_does_not_read_is_cut_off(make, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-02: what waits for one connection is bounded."""
    monkeypatch.setattr(connection_module, "MAX_QUEUED", 256 * 1024)
    listener = make()
    peer = Peer(listener).upgrade().hello()
    session = take(inbox, SessionOpened).session
    large = Forget(shards=tuple(ShardKey("r" * 1000, 0, 1) for _ in range(20)))
    with gevent.Timeout(10):
        while listener.sessions:
            listener.send(session, large)
            gevent.sleep(0)
    assert "does not read" in take(inbox, SessionClosed).reason
    peer.sock.close()


def test_a_stop_says_goodbye_to_everybody(make) -> None:
    """HA-02: goodbye with a spread, then the end, in bounded time."""
    listener = make()
    peers = [Peer(listener).upgrade().hello() for _ in range(5)]
    with gevent.Timeout(20):
        while listener.sessions < 5:
            gevent.sleep(0.01)
    with gevent.Timeout(20):
        listener.stop(0.5)
    for peer in peers:
        (goodbye,) = peer.frames()
        assert isinstance(goodbye, Goodbye) and goodbye.spread_seconds >= 1
