"""The request that opens an agent session, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.listeners.upgrade import MAX_HEAD, UpgradeError, UpgradeRequest, check_start, parse
from llmgw.wire.errors import SESSION

GOOD = [
    b"GET /agent/v1/session HTTP/1.1",
    b"Host: cp:7001",
    b"Connection: Upgrade",
    b"Upgrade: llmgw-agent/1",
    b"Llmgw-Node: node-1",
]


def head(*lines: bytes) -> bytes:
    return b"\r\n".join(lines) + b"\r\n\r\n"


def changed(index: int, *lines: bytes) -> bytes:
    return head(*GOOD[:index], *lines, *GOOD[index + 1 :])


def test_the_request_as_agents_send_it() -> None:
    """AGT-03: names in any case, the connection option among others, an empty body."""
    assert parse(head(*GOOD)) == UpgradeRequest("node-1")
    assert parse(changed(2, b"connection: keep-alive,  upgrade", b"Content-Length: 0")).node_id == "node-1"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (changed(0, b"POST /agent/v1/session HTTP/1.1"), 400, "bad_request"),
        (changed(0, b"GET /agent/v1/session HTTP/1.0"), 400, "bad_request"),
        (changed(0, b"GET  /agent/v1/session HTTP/1.1"), 400, "bad_request"),
        (changed(0, b"GET / HTTP/1.1"), 404, "bad_request"),
        (changed(0, b"GET http://cp/agent/v1/session HTTP/1.1"), 404, "bad_request"),
        (changed(1), 400, "bad_request"),
        (changed(1, b"Host: a", b"Host: a"), 400, "bad_request"),
        (changed(2), 426, "bad_request"),
        (changed(3), 426, "bad_request"),
        (changed(3, b"Upgrade: websocket"), 426, "bad_request"),
        (changed(3, b"Upgrade: llmgw-agent/2"), 426, "protocol_too_new"),
        (changed(4, GOOD[4], GOOD[4]), 400, "bad_request"),
        (changed(4), 400, "bad_request"),
        (changed(4, b"Llmgw-Node: ../etc"), 400, "bad_request"),
        (changed(4, b"Llmgw-Node: " + b"n" * 254), 400, "bad_request"),
        (head(*GOOD, b"Content-Length: 5"), 400, "bad_request"),
        (head(*GOOD, b"Transfer-Encoding: chunked"), 400, "bad_request"),
        (head(*GOOD, b" folded"), 400, "bad_request"),
        (head(*GOOD, b"No-Colon"), 400, "bad_request"),
        (head(*GOOD, b"Space : x"), 400, "bad_request"),
        (head(*GOOD, b"X: a\nY: b"), 400, "bad_request"),
        (head(*GOOD, b"X: a\x00b"), 400, "bad_request"),
        (head(*GOOD, *[b"X-%d: y" % n for n in range(61)]), 431, "bad_request"),
    ],
)
def test_anything_else_is_refused(data: bytes, status: int, code: str) -> None:
    """SEC-02: exactly this request or none, each refusal with its code."""
    with pytest.raises(UpgradeError) as refused:
        parse(data)
    assert refused.value.status.startswith(str(status))
    assert refused.value.code == code in SESSION


def test_what_cannot_become_a_request_is_refused_at_its_first_bytes() -> None:
    """SEC-02: another protocol or an endless head is not waited for."""
    check_start(b"G")
    check_start(b"GET /agent")
    for data in (b"\x16\x03\x01", b"GETX", b"get /"):
        with pytest.raises(UpgradeError):
            check_start(data)
    with pytest.raises(UpgradeError) as refused:
        check_start(b"GET /" + b"a" * MAX_HEAD)
    assert refused.value.status.startswith("431")


@given(st.binary(max_size=300))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    """SEC-02: garbage is refused in words, whatever it is."""
    for sent in (data, head(*GOOD[:-1], data), changed(0, data)):
        try:
            parse(sent + b"\r\n\r\n")
        except UpgradeError as error:
            assert error.code in SESSION
