"""The control plane's end of sessions, for tests of the real agent: a listener on loopback
that a test scripts by hand. TLS, as each side has to show who it is; threads."""

import contextlib
import json
import queue
import socket
import tempfile
import threading
from pathlib import Path

from llmgw.wire import frames
from llmgw.wire.messages import Heartbeat, HeartbeatAck, Hello, Register, Welcome
from tests.fakes.duplex import Duplex
from tests.harness import identities

ACCEPT = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: llmgw-agent/1\r\n\r\n"


class Peer:
    """One agent's connection. ``inbox`` holds what it sent, heartbeats apart; ``uri`` is the
    identity that its certificate shows."""

    def __init__(self, connection, head):
        self.connection = connection
        self.head = head
        self.uri = identities.uri_of(connection.tls)
        self.inbox = queue.Queue()
        self.heartbeats = queue.Queue()
        self.closed = threading.Event()
        self.acknowledge = True

    def send(self, message):
        self.connection.sendall(frames.encode(message))

    def take(self, kind, timeout=45, where=lambda message: True):
        """The next message of a kind for which ``where`` holds; others are passed over."""
        while True:
            message = self.inbox.get(timeout=timeout)
            if isinstance(message, kind) and where(message):
                return message

    def close(self):
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class ControlPlane:
    """``welcome``, any message, is sent to each hello (``None``: nothing). ``refuse_upgrade``
    answers with that status, code and message instead. It shows what is in ``folder``:
    ``show`` changes it; ``faults`` are handshakes that failed."""

    def __init__(self, authority=None):
        self.authority = authority or identities.ours()
        self.faults = []
        with tempfile.TemporaryDirectory() as folder:
            self.show(self.authority.controlplane(Path(folder)))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.sessions = queue.Queue()
        self.heads = []
        self.peers = []
        self.refuse_upgrade = None
        self.welcome = Welcome(
            session_id="s1", protocol=1, version="0.1.0", epoch=1, heartbeat_seconds=0.2, silence_seconds=5.0
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def show(self, folder):
        """Present and trust what an identity folder holds, from the next connection on."""
        self.context = identities.server(folder)

    def session(self, timeout=45):
        """The next session: its peer, hello and first registration."""
        peer = self.sessions.get(timeout=timeout)
        return peer, peer.take(Hello), peer.take(Register)

    def close(self):
        self.listener.close()
        for peer in self.peers:
            peer.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, plain):
        try:
            plain.settimeout(10)
            connection = Duplex(self.context.wrap_socket(plain, server_side=True))
        except OSError as error:
            self.faults.append(error)
            plain.close()
            return
        try:
            self._speak(connection)
        except OSError as error:
            self.faults.append(error)
            connection.close()

    def _speak(self, connection):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = connection.recv(1)
            if not data:
                return
            head += data
        self.heads.append(head.decode())
        if self.refuse_upgrade is not None:
            status, code, message = self.refuse_upgrade
            body = json.dumps({"code": code, "message": message}).encode()
            connection.sendall(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
            connection.close()
            return
        connection.sendall(ACCEPT)
        peer = Peer(connection, self.heads[-1])
        self.peers.append(peer)
        decoder = frames.up_decoder()
        while True:
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            if not data:
                peer.closed.set()
                return
            for message in decoder.feed(data):
                self._received(peer, message)

    def _received(self, peer, message):
        if isinstance(message, Heartbeat):
            peer.heartbeats.put(message)
            if peer.acknowledge:
                with contextlib.suppress(OSError):
                    peer.send(HeartbeatAck(sequence=message.sequence))
            return
        peer.inbox.put(message)
        if isinstance(message, Hello):
            if self.welcome is not None:
                peer.send(self.welcome)
            self.sessions.put(peer)
