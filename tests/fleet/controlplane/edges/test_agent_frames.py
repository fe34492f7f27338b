"""What a peer can send a running control plane: every fault ends its connection only."""

import struct

import msgspec
import pytest

from llmgw.wire.frames import MAX_FRAME, encode
from llmgw.wire.messages import Heartbeat, HeartbeatAck, Hello, Refuse, Welcome
from tests.fakes.controlplane import NODE_TOKEN, Agent, ControlPlane, until

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


def test_hello_must_name_the_tokens_node(shared: ControlPlane) -> None:
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
    ("node", "token"),
    [("node-1", "wrong-token-of-some-length"), ("node-9", f"{NODE_TOKEN}-node-1"), ("node-1", f"{NODE_TOKEN}-node-9")],
)
def test_a_wrong_credential_is_one_answer(shared: ControlPlane, node: str, token: str) -> None:
    """SEC-01: 401 with the session code, the same words for every fault, no token in the log."""
    agent = Agent(shared.addresses["agents.listen"], node, token)
    agent.sock.sendall(agent.request())
    status, body = agent.answer()
    assert (status, body["code"]) == (401, "unauthorised")
    assert "fleet_tokens" in body["message"]
    assert token not in shared.log()
    agent.close()


def test_the_wrong_port_says_so(shared: ControlPlane) -> None:
    """SEC-02: a browser or a TLS client gets one short answer at once."""
    for data, status in ((b"POST / HTTP/1.1\r\n\r\n", 400), (b"\x16\x03\x01\x02\x00", 400)):
        agent = shared.agent()
        agent.sock.sendall(data)
        assert agent.answer()[0] == status
        agent.close()
