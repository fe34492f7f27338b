"""Garbage to every listener while the installation serves: it is refused, and nothing else happens."""

import os
import random
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from llmgw.wire import frames
from llmgw.wire.messages import Heartbeat, Hello, Inventory, Register
from llmgw.wire.versions import PROTOCOL, UPGRADE
from tests.harness import Cluster, identities, until
from tests.harness.layout import NODE, ROUTER_ID
from tests.harness.streams import OpenStream

Make = Callable[..., Cluster]


@pytest.fixture
def serving(cluster: Make, models: dict[str, Any]) -> Iterator[tuple[Cluster, OpenStream, Any]]:
    """A cluster with a stream that must not break, and the processes that must live on."""
    c = cluster({"endless": models["endless"]}).start()
    client = c.client(c.serve("endless"))
    stream = OpenStream(client, "endless", max_tokens=20_000)
    stream.goes_on()
    engines = c.engine_pids()
    yield c, stream, client
    stream.goes_on()
    stream.close()
    for part in (c.controlplane, c.agent, c.router):
        assert part.running, f"{part.name} died:\n{part.tail()}"
        assert part.starts == 1
        assert "Traceback" not in part.output, part.output[part.output.index("Traceback") :][:3000]
    assert c.engine_pids() == engines
    assert c.node_in_session()
    assert c.answers(client, "endless")


def send(port: int, data: bytes, context: ssl.SSLContext | None, wait: float = 0.3, close: bool = False) -> bytes:
    """Send bytes, by TLS if there is a context, and return what comes back until the peer closes or says nothing
    for a moment."""
    received = b""
    # A peer that already hung up, or says nothing, is an answer too.
    with ExitStack() as stack, suppress(OSError):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        if context is not None:
            connection = stack.enter_context(context.wrap_socket(connection))
        connection.sendall(data)
        if close:
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(wait)
        while piece := connection.recv(65536):
            received += piece
    return received


GARBAGE = [
    b"\x00" * 512,
    b"\xff\xfe\xfd" * 300,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(5000)) + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
]


def test_garbage_to_every_http_listener(serving: tuple[Cluster, OpenStream, Any]) -> None:
    """RTR-13, API-02, SEC-01: refused with a 4xx or a closed connection; never a 200, never a 5xx. To the listeners
    for nodes and routers both in the clear, where TLS is asked for, and by whom they let in."""
    c, _, _ = serving
    node = identities.client(c.layout.nodes[NODE].identity)
    router = identities.client(c.layout.router_state / "identity")
    nobody = identities.client(c.layout.nodes[NODE].identity, shown=False)
    (site,) = c.layout.control_planes.values()
    doors = [(port, None) for port in (site.admin, site.agents, site.routers, site.join, c.router_port)]
    doors += [(site.agents, node), (site.routers, router), (site.join, nobody)]
    rng = random.Random(7)
    noise = [rng.randbytes(rng.randint(1, 4000)) for _ in range(30)]
    for port, context in doors:
        for data in [*GARBAGE, *noise]:
            answer = send(port, data, context, wait=0.1, close=bool(len(data) % 2))
            status = answer[9:12]
            assert not answer or not answer.startswith(b"HTTP/") or status[:1] == b"4" or status in (b"501", b"505"), (
                port,
                data[:60],
                answer[:200],
            )


def upgrade(c: Cluster, folder: Path | None = None, node: str = NODE) -> ssl.SSLSocket:
    """A connection after its upgrade request was sent: with the node's identity, or what is in ``folder``."""
    plain = socket.create_connection(("127.0.0.1", c.agents_port), timeout=5)
    connection = identities.client(folder or c.layout.nodes[NODE].identity).wrap_socket(plain)
    head = [
        "GET /agent/v1/session HTTP/1.1",
        "Host: x",
        "Connection: Upgrade",
        f"Upgrade: {UPGRADE}",
        f"Llmgw-Node: {node}",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode())
    return connection


def head_of(connection: socket.socket) -> bytes:
    """The answer's head, up to its empty line."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(1)
        if not piece:
            break
        data += piece
    return data


def closed(connection: socket.socket) -> bytes:
    """What the peer still says before it closes. Fails if it does not close."""
    data = b""
    connection.settimeout(8)
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        return data
    return data


def hello(oldest: int = PROTOCOL, newest: int = PROTOCOL, node: str = NODE) -> bytes:
    """A hello frame."""
    return frames.encode(Hello(node_id=node, version="0", oldest_protocol=oldest, newest_protocol=newest))


def test_wrong_credentials_get_no_session(serving: tuple[Cluster, OpenStream, Any], tmp_path: Path) -> None:
    """SEC-01, SEC-02: a stranger's certificate, an expired one, none, one of another kind or of another node: no
    session and no word about anybody; the true session stands."""
    c, _, _ = serving
    strange = identities.strangers().folder(tmp_path / "strange", "node", NODE, trusts=[identities.ours().root])
    expired = identities.ours().expired(tmp_path / "expired", "node", NODE)
    for context in (
        identities.client(strange),
        identities.client(expired),
        identities.client(c.layout.nodes[NODE].identity, shown=False),
    ):
        with (
            socket.create_connection(("127.0.0.1", c.agents_port), timeout=5) as plain,
            pytest.raises(ssl.SSLError),
            context.wrap_socket(plain) as connection,
        ):
            connection.recv(1)  # where TLS 1.3 tells that a certificate is refused
    other = identities.ours().node(tmp_path / "other", "node-x")
    router = identities.ours().router(tmp_path / "router", NODE)
    for folder, node in ((other, NODE), (router, NODE), (None, "someone-else")):
        with upgrade(c, folder, node) as connection:
            answer = head_of(connection) + closed(connection)
            assert answer.startswith(b"HTTP/1.1 403"), answer
            assert b'"unauthorised"' in answer
    assert {node["id"] for node in c.api("nodes")["nodes"]} == {NODE}


def test_frames_that_cannot_be_read_end_only_their_session(serving: tuple[Cluster, OpenStream, Any]) -> None:
    """AGT-03: truncated, oversized, garbage, wrong order, wrong version: the connection ends with
    a reason, the process lives, and the agent is back in session."""
    c, _, _ = serving
    too_large = struct.pack(">I", frames.MAX_FRAME + 1)
    register = frames.encode(Register(inventory=Inventory(address="127.0.0.1")))
    attempts: dict[str, bytes] = {
        "oversized": too_large + b"x" * 1000,
        "garbage": struct.pack(">I", 64) + os.urandom(64),
        "no hello": register,
        "heartbeat first": frames.encode(Heartbeat(sequence=1)),
        "too old": hello(-2, -1),
        "too new": hello(PROTOCOL + 1000, PROTOCOL + 1001),
        "another node": hello(node="someone-else"),
        "two hellos": hello() + hello(),
        "garbage after hello": hello() + struct.pack(">I", 3) + b"\xc1\xc1\xc1",
    }
    for name, data in attempts.items():
        with upgrade(c) as connection:
            assert head_of(connection).startswith(b"HTTP/1.1 101"), name
            connection.sendall(data)
            closed(connection)
    with upgrade(c) as truncated:
        assert head_of(truncated).startswith(b"HTTP/1.1 101")
        truncated.sendall(hello()[:7])
    # The hellos in its name superseded its session: it waits half a minute, so that two agents of
    # one name do not throw each other out in a rush.
    until(c.node_in_session, 50, "the agent is back in session")
    assert "too" in c.controlplane.output


def test_garbage_to_the_admin_and_router_interfaces(serving: tuple[Cluster, OpenStream, Any], tmp_path: Path) -> None:
    """API-04: wrong bodies and methods get the error body, not a page and not a 500."""
    c, _, _ = serving
    for method, path, body in (
        ("POST", "keys", b"{"),
        ("POST", "keys", b'{"name": 5, "models": "x", "nonsense": 1}'),
        ("DELETE", "status", b""),
        ("GET", "nothing", b""),
        ("GET", "models/%00", b""),
        ("POST", "nodes/absent/cordon", b"[]"),
    ):
        head = {"Content-Type": "application/json", **c.auth}
        answer = requests.request(method, f"{c.admin_url}/api/v1/{path}", data=body, headers=head, timeout=10)
        assert 400 <= answer.status_code < 500, (method, path, answer.status_code, answer.text)
        assert answer.json()["code"], answer.text
    url = f"https://127.0.0.1:{c.routers_port}/router/v1"
    mine, another = routers(c.layout.router_state / "identity"), routers(identities.ours().node(tmp_path / "n", NODE))
    for path in ("table", "report", "activate", "usage", "identity"):
        method = "GET" if path == "table" else "POST"
        answer = another.request(method, f"{url}/{path}", data=b"{", timeout=10)
        assert answer.status_code == 403, (path, answer.text)
    for path in ("report", "identity"):
        for body in (b"", b"{", b"[]", b'{"boot": 1, "request": 1}', os.urandom(100)):
            answer = mine.post(f"{url}/{path}", data=body, timeout=10)
            assert answer.status_code == 400, (path, body, answer.text)


def routers(folder: Path) -> requests.Session:
    """A router's end, with the identity of a folder."""
    session = identities.session(folder)
    session.headers["Llmgw-Router"] = ROUTER_ID
    return session


def test_bad_requests_to_the_router(serving: tuple[Cluster, OpenStream, Any]) -> None:
    """RTR-02, RTR-13: JSON faults are the client's, in OpenAI's shape, with a stable code."""
    c, _, _ = serving
    head = {"Authorization": f"Bearer {c.secrets['key tests']}", "Content-Type": "application/json"}
    for body, code in (
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_request"),
        (b'{"model": 7}', None),
        (b'{"messages": []}', "missing_model"),
        (b'{"model": "endless"' + b" " * 10, "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
    ):
        answer = requests.post(f"{c.router_url}/v1/chat/completions", data=body, headers=head, timeout=10)
        assert answer.status_code == 400, (body, answer.text)
        assert code is None or answer.json()["error"]["code"] == code, (body, answer.text)
    assert requests.get(f"{c.router_url}/v1/nothing", headers=head, timeout=10).status_code == 404
    assert requests.get(f"{c.router_url}/v1/chat/completions", headers=head, timeout=10).status_code == 405
