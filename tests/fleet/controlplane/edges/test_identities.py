"""Identities against a running control plane: joining, revoking, renewing, and who is refused."""

import json
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests

from llmgw.identity import authority, joining
from llmgw.identity.names import Identity, IdentityError
from llmgw.identity.pem import presented
from llmgw.runtime.settings import parse_address
from llmgw.wire.frames import encode
from llmgw.wire.messages import Credential, Heartbeat, HeartbeatAck, Hello, Refuse, Renew, Welcome
from llmgw.wire.routing import Renewal, Renewed
from llmgw.wire.routing import encode as to_json
from tests.fakes.controlplane import ROUTER, ControlPlane, until
from tests.harness import identities

SILENT = 1000


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """For tests whose names do not meet."""
    folder = tmp_path_factory.mktemp("identities")
    control_plane = ControlPlane(folder, nodes=("node-1", "leaving"), agents__hello="3s").start()
    yield control_plane
    assert control_plane.stop() == 0, control_plane.log()
    assert "Traceback" not in control_plane.log(), control_plane.log()[-5000:]


def change(control_plane: ControlPlane, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = requests.request(
        method, f"{control_plane.api}/api/v1/{path}", json=body, headers=control_plane.auth, timeout=20
    )
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def token(control_plane: ControlPlane, name: str, kind: str = "node") -> Any:
    return change(control_plane, "POST", "join-tokens", {"kind": kind, "name": name}, status=201)


def join(made: Any, name: str, folder: Path, kind: str = "node") -> Any:
    return joining.join(
        parse_address(made["join"]),
        joining.parse(made["token"]),
        Identity(kind, name),
        folder,  # type: ignore[arg-type]
    )


# ---------------------------------------------------------------- joining


def test_a_node_joins_with_its_token_once(plane: ControlPlane, tmp_path: Path) -> None:
    """SEC-02: the certificate opens a session; the token is shown once, good once, for one node."""
    made = token(plane, "gpu-7")
    given = join(made, "gpu-7", tmp_path / "gpu-7")
    assert given.identity == Identity("node", "gpu-7")
    assert plane.agent("gpu-7", tmp_path / "gpu-7").upgrade().hello().expect(Welcome)
    with pytest.raises(IdentityError, match=r"was used already, from 127\.0\.0\.1:\d+: make another .*join_refused"):
        join(made, "gpu-7", tmp_path / "again")
    other = token(plane, "gpu-8")
    with pytest.raises(IdentityError, match=r"is for node gpu-8, not for node gpu-9"):
        join(other, "gpu-9", tmp_path / "gpu-9")
    with pytest.raises(IdentityError, match=r"is for node gpu-8, not for router gpu-8"):
        join(other, "gpu-8", tmp_path / "gpu-8", kind="router")
    join(other, "gpu-8", tmp_path / "gpu-8")  # what was refused has not used it up
    listed = {row["name"]: row for row in plane.get("join-tokens")["join_tokens"]}
    assert listed["gpu-7"]["state"] == "used" and "token" not in listed["gpu-7"]
    known = plane.get("identities/node/gpu-7")
    assert known["enrolled_by"] == "join token of local" and known["serial"] == given.serial
    entries = [row["operation"] for row in plane.get("audit")["audit"] if row["target"].startswith("node/gpu-7")]
    assert entries == ["identities.join"]
    for secret in (made["token"].split(".")[1], other["token"].split(".")[1]):
        assert secret not in plane.log() and secret not in json.dumps(plane.get("audit"))


def test_a_wrong_secret_tells_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    """SEC-02: no token, another secret and ten tries: one answer; then the right one is refused too. Our log and the
    token's state tell which it was."""
    made = token(plane, "guessed")
    head, secret, pin = made["token"].split(".")
    wrong = {**made, "token": ".".join((head, secret[:-4] + "AAAA", pin))}
    for _ in range(10):
        with pytest.raises(IdentityError, match="there is no such join token"):
            join(wrong, "guessed", tmp_path / "guessed")
    with pytest.raises(IdentityError, match="there is no such join token"):
        join(made, "guessed", tmp_path / "guessed")
    assert plane.get(f"join-tokens/{made['id']}")["state"] == "void"
    assert f"a wrong secret for join token {made['id']}, 10 of 10 that make it void" in plane.log()
    assert f"join token {made['id']} is void, for 10 wrong secrets were tried: make another" in plane.log()


def test_the_join_listener_serves_nothing_else(plane: ControlPlane) -> None:
    """SEC-02: other paths, other methods, a large body and garbage are refused in words."""
    session = identities.session(identities.ours().node(plane.directory / "n", "node-1"))
    url = f"https://{plane.addresses['join.listen']}"
    for method, path in (("GET", "/"), ("GET", "/metrics"), ("PUT", "/join/v1/authorities")):
        answer = session.request(method, url + path, timeout=10)
        assert answer.status_code == 404 and "llmgw join" in answer.json()["message"], path
    path = url + joining.CERTIFICATE_PATH
    assert session.post(path, data=b"x" * 100_000, timeout=10).status_code == 413
    for body in (b"", b"{}", b"[" * 1000, json.dumps({"token": 1}).encode()):
        answer = session.post(path, data=body, timeout=10)
        assert answer.status_code == 400 and answer.json()["code"] == "bad_request"
    body = {"token": "x", "kind": "controlplane", "name": "evil", "request": "y"}
    answer = session.post(path, json=body, timeout=10)
    assert answer.status_code == 403 and "llmgw ctl cert issue controlplane" in answer.json()["message"]


# ---------------------------------------------------------------- revoking, removing


def test_a_revocation_counts_at_once_and_after_a_restart(plane: ControlPlane, tmp_path: Path) -> None:
    """SEC-02: the session ends, no other opens, a new join does; a restart changes nothing."""
    folder = tmp_path / "stolen-1"
    join(token(plane, "stolen-1"), "stolen-1", folder)
    agent = plane.agent("stolen-1", folder).upgrade().hello()
    agent.expect(Welcome)
    unused = token(plane, "stolen-1")
    gone = change(plane, "POST", "identities/node/stolen-1/revoke", {"reason": "stolen"})
    assert gone["join_tokens_removed"] == [unused["id"]]
    with pytest.raises(IdentityError, match="there is no such join token"):
        join(unused, "stolen-1", tmp_path / "unused")
    assert agent.expect(Refuse).code == "revoked"

    def refused() -> Any:
        again = plane.agent("stolen-1", folder)
        again.sock.sendall(again.request())
        return again.answer()

    assert refused()[0] == 403 and refused()[1]["code"] == "revoked" and "stolen" in refused()[1]["message"]
    (problem,) = (row for row in plane.get("status")["problems"] if "stolen-1" in row["subject"])
    assert problem["kind"] == "certificate" and "llmgw ctl nodes add stolen-1" in problem["message"]
    assert plane.stop() == 0
    plane.start()
    assert refused()[1]["code"] == "revoked"
    join(token(plane, "stolen-1"), "stolen-1", tmp_path / "new")
    assert plane.agent("stolen-1", tmp_path / "new").upgrade().hello().expect(Welcome)
    assert refused()[1]["code"] == "revoked", "the old certificate stays revoked"


def nodes(control_plane: ControlPlane) -> set[str]:
    return {node["id"] for node in control_plane.get("nodes")["nodes"]}


def test_a_removed_node_is_gone_until_it_joins_anew(plane: ControlPlane, tmp_path: Path) -> None:
    """REC-13: out of the fleet with its session; If-Match, then 204, then 404."""
    agent = plane.agent("leaving").upgrade().hello()
    agent.expect(Welcome)
    version = requests.get(f"{plane.api}/api/v1/identities/node/leaving", headers=plane.auth, timeout=10).headers[
        "ETag"
    ]
    stale = requests.delete(
        f"{plane.api}/api/v1/identities/node/leaving", headers={**plane.auth, "If-Match": '"99"'}, timeout=10
    )
    assert stale.status_code == 412 and version in stale.text.replace("\\", "")
    change(plane, "DELETE", "identities/node/leaving", status=204)
    assert agent.expect(Refuse).code in ("revoked", "unknown_node")
    until(lambda: "leaving" not in nodes(plane), "the node is gone")
    again = change(plane, "DELETE", "identities/node/leaving", status=404)
    assert again["code"] == "not_found" and "it was removed at" in again["message"]
    join(token(plane, "leaving"), "leaving", tmp_path / "anew")
    assert plane.agent("leaving", tmp_path / "anew").upgrade().hello().expect(Welcome)
    assert "leaving" in nodes(plane)


def test_a_router_that_waits_for_a_table_gets_none_once_it_is_revoked(plane: ControlPlane) -> None:
    """SEC-02: keys of engines do not go to who was revoked while it waited."""
    session = plane.router("router-9")
    url = f"{plane.routers}/router/v1/table"
    generation = session.get(f"{url}?wait=5", timeout=20).json()["generation"]
    answers: list[requests.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(session.get(f"{url}?generation={generation}&wait=20", timeout=40))
    )
    waiting.start()
    change(plane, "POST", "identities/router/router-9/revoke", {"reason": "stolen"})
    requests.post(f"{plane.api}/api/v1/keys", json={"name": "x"}, headers=plane.auth, timeout=10)  # a new table
    waiting.join(30)
    assert answers[0].status_code == 403 and answers[0].json()["code"] == "revoked"
    assert session.get(url, timeout=20).status_code == 403


def test_a_certificate_of_another_is_told_of_the_name_it_was_shown_for(plane: ControlPlane, tmp_path: Path) -> None:
    """SEC-01: also if no node of that name ever was: somebody may try names."""
    thief = plane.agent("nobody", identities.ours().node(tmp_path / "thief", "thief"))
    thief.sock.sendall(thief.request())
    assert thief.answer()[0] == 403
    (problem,) = (row for row in plane.get("status")["problems"] if row["subject"] == "node nobody")
    assert problem["kind"] == "refused"
    assert "the certificate is that of node thief, not of node nobody" in problem["message"]


# ---------------------------------------------------------------- renewing


def test_agents_and_routers_renew(plane: ControlPlane, tmp_path: Path) -> None:
    """SEC-01: over the session and the routers' listener; the new certificate is good."""
    folder = identities.ours().node(tmp_path / "node-1", "node-1")
    agent = plane.agent("node-1", folder).upgrade().hello()
    agent.expect(Welcome)
    key = authority.new_key()
    agent.send(Renew(request=authority.request(Identity("node", "node-1"), key).decode()))
    chain = agent.expect(Credential).certificate
    (folder / "key.pem").write_bytes(key)
    (folder / "certificate.pem").write_text(chain)
    assert plane.agent("node-1", folder).upgrade().hello().expect(Welcome)
    assert plane.get("identities/node/node-1")["serial"] == presented(chain.encode()).serial
    key = authority.new_key()
    asked = Renewal(request=authority.request(Identity("router", ROUTER), key).decode(), authorities="0" * 64)
    session = plane.router()
    answer = session.post(f"{plane.routers}/router/v1/identity", data=to_json(asked), timeout=20)
    given = msgspec.json.decode(answer.content, type=Renewed)
    assert presented(given.certificate.encode()).identity == Identity("router", ROUTER)
    assert "BEGIN CERTIFICATE" in given.authorities and not given.renew and not given.fault
    answer = session.post(f"{plane.routers}/router/v1/identity", data=to_json(Renewal(request="x")), timeout=20)
    refused = msgspec.json.decode(answer.content, type=Renewed)
    assert "cannot be read" in refused.fault and not refused.certificate


def test_a_new_certificate_of_ours_is_shown_after_a_signal(plane: ControlPlane) -> None:
    """SEC-08: without a restart, and sessions stand."""
    agent = plane.agent().upgrade().hello()
    agent.expect(Welcome)
    before = plane.metric('llmgw_certificate_expires_timestamp_seconds{certificate="server"')
    identities.ours().folder(plane.identity, "controlplane", "controlplane", issuer=True)
    assert plane.metric('llmgw_certificate_expires_timestamp_seconds{certificate="server"') >= before
    plane.tell(signal.SIGHUP)
    until(lambda: "identity loaded" in plane.log(), "the new certificate")
    assert plane.agent("node-2").upgrade().hello().expect(Welcome)
    agent.register().heartbeat(1)
    assert agent.expect(HeartbeatAck).sequence == 1


# ---------------------------------------------------------------- who holds others up


def test_a_thousand_silent_connections_harm_nobody(plane: ControlPlane) -> None:
    """AGT-03, SEC-02: before and during the TLS handshake; others come in and go on meanwhile, and
    the silent are let go with a line in the log."""
    agent = plane.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    silent = []
    for number in range(SILENT):
        sock = socket.create_connection(plane.addresses["agents.listen"], timeout=20)
        if number % 2:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        silent.append(sock)
    began = time.monotonic()
    for sequence in range(1, 4):
        agent.heartbeat(sequence)
        assert agent.expect(HeartbeatAck).sequence == sequence
        other = plane.agent(f"node-{sequence + 1}").upgrade().hello()
        other.expect(Welcome)
        other.close()
    assert time.monotonic() - began < 5.0
    for sock in silent:
        sock.settimeout(30)
        with suppress(ConnectionResetError):
            assert sock.recv(100) == b""
        sock.close()
    until(lambda: plane.metric("llmgw_agent_connections_refused_total") >= SILENT, "all are refused")
    assert plane.metric("llmgw_agent_connections_pending") == 0
    log = plane.log()
    assert "did not finish the TLS handshake in time" in log
    assert "more are refused for this reason" in log and log.count("a TLS handshake failed") < SILENT / 2
    assert agent.sock.fileno() >= 0
    agent.heartbeat(9)
    assert agent.expect(HeartbeatAck).sequence == 9


def test_a_frame_of_20_mb_is_refused_in_words(plane: ControlPlane) -> None:
    """AGT-03: before it is read; the peer that sends all of it hears why, others are unharmed."""
    other = plane.agent("node-2").upgrade().hello()
    other.expect(Welcome)
    agent = plane.agent().upgrade()
    size = 20 * 1024 * 1024

    def send() -> None:
        hello = encode(Hello(node_id="node-1", version="t", oldest_protocol=1, newest_protocol=1))
        with suppress(OSError):
            agent.sock.sendall(hello + struct.pack(">I", size) + b"x" * size)

    sending = threading.Thread(target=send)
    sending.start()
    refuse = agent.expect(Refuse)
    assert refuse.code == "frame_too_large" and "20971520" in refuse.message
    sending.join(30)
    assert "frame_too_large" in plane.log()
    other.register().heartbeat(1)
    assert other.expect(HeartbeatAck)


@pytest.mark.parametrize("listener", ["agents.listen", "routers.listen", "join.listen"])
def test_plain_http_is_told_to_speak_tls(plane: ControlPlane, listener: str) -> None:
    """SEC-01: an answer that a person with curl can read, and a line in the log."""
    answer = requests.get(f"http://{plane.addresses[listener]}/", timeout=10)
    assert answer.status_code == 400 and "TLS" in answer.json()["message"]
    with socket.create_connection(plane.addresses[listener], timeout=10) as sock:
        sock.sendall(b"\x00\x01\x02 no protocol at all")
        with suppress(ConnectionResetError):
            assert sock.recv(100) == b""
    until(lambda: plane.log().count("spoke HTTP without TLS") >= 1, "the log line")
    until(lambda: "does not speak TLS" in plane.log(), "the log line")


def test_each_wrong_certificate_is_explained_to_both(plane: ControlPlane, tmp_path: Path) -> None:
    """SEC-01: the log names the fault and the peer; the peer's TLS library gets its alert."""
    ours, strangers = identities.ours(), identities.strangers()
    cases = {
        "has expired": (ours.expired(tmp_path / "e", "node", "node-1"), True, "CERTIFICATE_EXPIRED"),
        "authority that we do not trust": (
            strangers.folder(tmp_path / "s", "node", "node-1", trusts=[ours.root]),
            True,
            "UNKNOWN_CA",
        ),
        "showed no certificate": (ours.node(tmp_path / "n", "node-1"), False, "CERTIFICATE_REQUIRED"),
    }
    for words, (folder, shown, alert) in cases.items():
        with socket.create_connection(plane.addresses["agents.listen"], timeout=20) as plain:
            peer = "{}:{}".format(*plain.getsockname())
            with (
                pytest.raises(ssl.SSLError) as raised,
                identities.client(folder, shown=shown).wrap_socket(plain) as sock,
            ):
                sock.recv(1)
        assert alert in (raised.value.reason or ""), (words, raised.value)
        until(
            lambda peer=peer, words=words: any(peer in line and words in line for line in plane.log().splitlines()),
            words,
        )
    agent = plane.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    agent.send(Heartbeat(sequence=1))
    assert agent.expect(HeartbeatAck)
