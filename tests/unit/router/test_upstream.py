import pytest

from llmgw.wire.routing import Endpoint
from router.relay import is_finished
from router.upstream import UpstreamError, parse_answer, request_head

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("head", "status", "length", "chunked", "keep"),
    [
        (OK + b"Content-Length: 5\r\n\r\n", 200, 5, False, True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", 200, None, True, True),
        (OK + b"TRANSFER-ENCODING: Chunked\r\nConnection: close\r\n\r\n", 200, None, True, False),
        (OK + b"\r\n", 200, None, False, False),
        (OK + b"Content-Length: 5\r\nConnection: close\r\n\r\n", 200, 5, False, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", 200, 5, False, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n", 200, 5, False, True),
        (b"HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n", 503, 0, False, True),
        (b"HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n", 503, 0, False, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, 0, False, True),
        (b"HTTP/1.1 100 Continue\r\n\r\n", 100, 0, False, True),
    ],
)
def test_framing(head, status, length, chunked, keep):
    """RTR-09: how an answer ends, and whether its connection may be used again."""
    answer = parse_answer(head)
    assert (answer.status, answer.length, answer.chunked, answer.keep) == (status, length, chunked, keep)


@pytest.mark.parametrize(
    "head",
    [
        b"hello\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 999 X\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Content-Length: -5\r\n\r\n",
        OK + b"Content-Length: 5, 5\r\n\r\n",
        OK + b"X: a\nY: b\r\n\r\n",
        OK + b"X: a\x00b\r\n\r\n",
        OK + b"X : a\r\n\r\n",
        OK + b"X: a\r\n folded\r\n\r\n",
        OK + b"X: a\r\n" * 101 + b"\r\n",
    ],
)
def test_malformed_heads(head):
    """RTR-13: an answer whose end is unclear is no answer."""
    with pytest.raises(UpstreamError):
        parse_answer(head)


def test_what_passes():
    """RTR-13: fields about the content; none that is hop-by-hop, internal or sets anything at the client."""
    answer = parse_answer(
        OK + b"Content-Type: application/json\r\nRetry-After: 7\r\nSet-Cookie: a=b\r\nServer: x\r\nConnection: X-Y\r\n"
        b"X-Y: 1\r\nAccess-Control-Allow-Origin: *\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n"
    )
    assert answer.headers == b"content-type: application/json\r\nretry-after: 7\r\n"
    assert (answer.content_type, answer.retry_after) == (b"application/json", 7)


def test_request_head():
    """RTR-12, ENG-03: the engine's key, if it has one; addresses of IPv6 in brackets."""
    with_key = request_head(
        Endpoint(id="a", host="10.0.0.1", port=80, upstream_model="m", key="ek-x"), b"/v1/completions"
    )
    assert with_key == (
        b"POST /v1/completions HTTP/1.1\r\nhost: 10.0.0.1:80\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer ek-x\r\n"
    )
    keyless = request_head(Endpoint(id="a", host="::1", port=80, upstream_model="m"), b"/v1/x")
    assert keyless == b"POST /v1/x HTTP/1.1\r\nhost: [::1]:80\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    ("tls", "port", "prefix", "target", "host"),
    [
        (True, 443, "/v1", "/v1/completions", "api.example"),
        (True, 8443, "/openai/v1/", "/openai/v1/completions", "api.example:8443"),
        (False, 80, "", "/completions", "api.example"),
        (False, 443, "/v1beta/openai", "/v1beta/openai/completions", "api.example:443"),
    ],
)
def test_request_head_to_a_provider(tls, port, prefix, target, host):
    """CAT-10: its own path and host name; the port is left out where everybody does."""
    one = Endpoint(
        id="x", host="api.example", port=port, upstream_model="m", key="pk", external=True, tls=tls, prefix=prefix
    )
    assert request_head(one, b"/v1/completions").decode().split("\r\n") == [
        f"POST {target} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        "user-agent: llmgw",
        "authorization: Bearer pk",
        "",
    ]


@pytest.mark.parametrize("fault", [{"key": "a\r\nb"}, {"key": "\u20ac"}, {"prefix": "/a b"}, {"host": "h\nx"}])
def test_what_cannot_be_sent(fault):
    """RTR-13: nothing of it is sent."""
    fields = {"host": "h", "key": "k", "prefix": "/v1", **fault}
    with pytest.raises(UpstreamError, match="characters that cannot be sent"):
        request_head(Endpoint(id="x", port=1, upstream_model="m", external=True, **fields), b"/v1/x")


@pytest.mark.parametrize(
    ("tail", "finished"),
    [
        (b"data: [DONE]\n\n\r\n0\r\n\r\n", True),
        (b"data:[DONE]\r\n\r\n\r\n0\r\n\r\n", True),
        (b"\r\n5\r\ndata: [DO\r\n4\r\nNE]\n\r\n", True),
        (b'data: {"error":{"message":"x"}}\n\n\r\n0\r\n\r\n', True),
        (b"error: {}\n\n\r\n0\r\n\r\n", True),
        (b'data: {"choices":[]}\n\n\r\n0\r\n\r\n', False),
        (b'data: {"content":"it says error: no, then [DONE], \\"error\\": 1"}\n\n\r\n0\r\n\r\n', False),
        (b"", False),
    ],
)
def test_the_end_of_a_stream(tail, finished):
    """RTR-09: whole, or with an error of its own, or short."""
    assert is_finished(tail) == finished
