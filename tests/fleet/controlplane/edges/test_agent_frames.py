"""What a peer can send a running control plane: every fault ends its connection only."""

import socket
import ssl
import struct
from pathlib import Path

import msgspec
import pytest

from llmgw.wire.frames import MAX_FRAME, encode
from llmgw.wire.messages import Heartbeat, HeartbeatAck, Hello, Refuse, Welcome
from tests.fakes.controlplane import ControlPlane, until
from tests.harness import identities

HELLO = encode(Hello(node_id="node-1", version="t", oldest_protocol=1, newest_protocol=1))


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def packed(value: object) -> bytes:
    return frame(msgspec.msgpack.encode(value))


BAD = {
    "garbage": (b"\x00\x00\x00\x05hello", "bad_frame"),
    "another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame_too_large"),
    "an announced gigabyte": (struct.pack(">I", 1 << 30), "frame_too_large"),
    "one byte over the limit": (struct.pack(">I", MAX_FRAME + 1), "frame_too_large"),
    "an empty frame": (frame(b""), "bad_frame"),
    "not a map": (packed([1, 2, 3]), "bad_frame"),
    "no kind": (packed({"sequence": 1}), "bad_frame"),
    "a known kind with wrong fields": (packed({"type": "heartbeat", "sequence": "one"}), "bad_frame"),
    "a kind of the other direction": (packed({"type": "welcome", "session_id": "s"}), None),
    "deep nesting": (frame(b"\x91" * 5000 + b"\x90"), "bad_frame"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("after_hello", [False, True])
def test_bad_frames_end_their_session_with_a_code(shared: ControlPlane, name: str, after_hello: bool) -> None:
    """AGT-03: refused with the code, closed, logged with node and peer; the process lives."""
    data, code = BAD[name]
    agent = shared.agent().upgrade()
    if after_hello:
        agent.hello().expect(Welcome)
    elif code is None:
        code = "hello_expected"
    agent.sock.sendall(data)
    if code is None:  # a kind this side does not know is ignored: a newer agent may send it
        agent.register()
        agent.heartbeat(3)
        assert agent.expect(HeartbeatAck).sequence == 3
    else:
        assert agent.expect(Refuse).code == code
        assert agent.receive() is None
        peer = "{}:{}".format(*agent.sock.getsockname())
        until(lambda: any(peer in line and code in line and "node-1" in line for line in shared.log().splitlines()))
    agent.close()
    assert "Traceback" not in shared.log()
    assert shared.process is not None and shared.process.poll() is None


@pytest.mark.parametrize("after_hello", [False, True])
def test_a_truncated_frame_is_noticed(shared: ControlPlane, after_hello: bool) -> None:
    """AGT-03: a connection that ends within a frame is logged, and nothing of it is believed."""
    agent = shared.agent().upgrade()
    if after_hello:
        agent.hello().expect(Welcome)
    agent.sock.sendall(encode(Heartbeat(sequence=1))[:-2] if after_hello else HELLO[:-2])
    peer = "{}:{}".format(*agent.sock.getsockname())
    agent.close()
    until(lambda: any(peer in line and "unread=" in line for line in shared.log().splitlines()), "the log line")
    assert "Traceback" not in shared.log()


@pytest.mark.parametrize(("oldest", "newest", "code"), [(7, 9, "protocol_too_new"), (0, 0, "protocol_too_old")])
def test_a_protocol_we_do_not_speak_is_refused(shared: ControlPlane, oldest: int, newest: int, code: str) -> None:
    """DEP-03: told after hello, with the remedy."""
    agent = shared.agent().upgrade().hello(oldest_protocol=oldest, newest_protocol=newest)
    refuse = agent.expect(Refuse)
    assert refuse.code == code and refuse.message
    assert agent.receive() is None
    agent.close()


def test_hello_must_name_the_certificates_node(shared: ControlPlane) -> None:
    """SEC-01: the credential's identity must equal the node id."""
    agent = shared.agent().upgrade().hello(node_id="node-9")
    assert agent.expect(Refuse).code == "unauthorised"
    agent.close()


def test_hello_is_said_once(shared: ControlPlane) -> None:
    """AGT-03: a second hello ends the session."""
    agent = shared.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.hello()
    assert agent.expect(Refuse).code == "bad_frame"
    agent.close()


def test_a_newer_session_takes_over(shared: ControlPlane) -> None:
    """AGT-03: of two sessions of a node the older one is told `superseded`."""
    first = shared.agent().upgrade().hello()
    first.expect(Welcome)
    second = shared.agent().upgrade().hello()
    assert first.expect(Refuse).code == "superseded"
    assert first.receive() is None
    second.expect(Welcome)
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [("node", "node-1", "node-9"), ("node", "node-9", "node-1"), ("router", "node-1", "node-1")],
)
def test_another_identity_gets_no_session(
    shared: ControlPlane, tmp_path: Path, kind: str, name: str, said: str
) -> None:
    """SEC-01: 403 with the session code, and words that name both sides."""
    agent = shared.agent(said, identities.ours().folder(tmp_path / "identity", kind, name))
    agent.sock.sendall(agent.request())
    status, body = agent.answer()
    assert (status, body["code"]) == (403, "unauthorised")
    assert f"{kind} {name}" in body["message"] and said in body["message"], body
    agent.close()


def test_without_a_good_certificate_there_is_no_connection(shared: ControlPlane, tmp_path: Path) -> None:
    """SEC-02: a stranger's certificate, an expired one and none end the handshake; the log says why and whence."""
    strange = identities.strangers().folder(tmp_path / "s", "node", "node-1", trusts=[identities.ours().root])
    expired = identities.ours().expired(tmp_path / "e", "node", "node-1")
    for folder, shown in ((strange, True), (expired, True), (expired, False)):
        with socket.create_connection(shared.addresses["agents.listen"], timeout=20) as plain:
            peer = "{}:{}".format(*plain.getsockname())
            with pytest.raises(ssl.SSLError), identities.client(folder, shown=shown).wrap_socket(plain) as connection:
                connection.recv(1)
        until(lambda peer=peer: any(peer in line for line in shared.log().splitlines()), "the log line")
    assert "Traceback" not in shared.log()


def test_the_wrong_port_says_so(shared: ControlPlane) -> None:
    """SEC-02: who speaks another protocol gets one short answer at once, and one without TLS is let go."""
    agent = shared.agent()
    agent.sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
    assert agent.answer()[0] == 400
    agent.close()
    with socket.create_connection(shared.addresses["agents.listen"], timeout=20) as plain:
        plain.sendall(b"GET /agent/v1/session HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/1.1 101")
