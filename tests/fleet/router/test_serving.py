"""One router process, real sockets: who may ask what, and what passes through."""

import json
import socket
import threading
import time

import pytest

from llmgw.wire.routing import RoutedModel
from router.service import MODELS, PAGES, PROXIED
from tests.fakes import upstream as fake
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, Client, Router, endpoint, routed_key, table_of, until

ENGINE_KEY = "ek-0123456789abcdef"
NARROW, EXPIRED = "sk-llmgw-narrow-0123456789abcdef", "sk-llmgw-expired-0123456789abcdef"
CHAT = '{"model":"m","messages":[]}'
STREAM = '{"model":"m","messages":[],"stream":true}'


def tables(upstream):
    return table_of(
        RoutedModel(name="m", state="ready", endpoints=(endpoint(upstream),), aliases=("the m", "org/m"), created=7),
        RoutedModel(name="hidden", state="ready", endpoints=(endpoint(upstream, "e2"),), listed=False),
        RoutedModel(name="loading", state="loading", reason="downloading, 3 of 16 GB", retry_after=17),
        RoutedModel(name="parked", state="parked", reason="failed 5 times: out of memory"),
        RoutedModel(name="unplaceable", state="unplaceable", reason="needs 80 GB, 24 GB free on n1"),
        RoutedModel(name="off", state="off"),
        RoutedModel(name="off-but-running", state="off", endpoints=(endpoint(upstream, "e3"),)),
        RoutedModel(name="stopped", state="stopped", reason="maintenance"),
        RoutedModel(name="just-left", state="ready"),
        keys=(routed_key(), routed_key(NARROW, "narrow", models=("m",)), routed_key(EXPIRED, "old", expires=1.0)),
    )


@pytest.fixture(scope="module")
def upstream():
    one = FakeUpstream(key=ENGINE_KEY)
    yield one
    one.stop()


@pytest.fixture(scope="module")
def router(tmp_path_factory, upstream):
    limits = {"header_bytes": 8192, "body_bytes": 200_000}
    timeouts = {"header": "300ms", "body": "400ms", "client_write": "1s"}
    with Router(tmp_path_factory.mktemp("router"), tables(upstream), limits=limits, timeouts=timeouts) as one:
        yield one


@pytest.fixture
def client(router):
    with router.connect() as one:
        yield one


# ------------------------------------------------------------------------ keys


@pytest.mark.parametrize(
    ("key", "model", "status", "code"),
    [
        ("", "m", 401, "invalid_api_key"),
        ("sk-llmgw-wrong", "m", 401, "invalid_api_key"),
        (EXPIRED, "m", 401, "invalid_api_key"),
        ("x" * 4000, "m", 401, "invalid_api_key"),
        (NARROW, "hidden", 403, "model_not_allowed"),
        (KEY, "nope", 404, "model_not_found"),
        (KEY, "off", 404, "model_off"),
        (KEY, "off-but-running", 404, "model_off"),
        (KEY, "loading", 503, "model_loading"),
        (KEY, "just-left", 503, "model_loading"),
        (KEY, "parked", 503, "model_parked"),
        (KEY, "unplaceable", 503, "model_unplaceable"),
        (KEY, "stopped", 503, "system_stopped"),
    ],
)
def test_who_gets_what_error(client, upstream, key, model, *, status, code):
    """RTR-02, RTR-12: the status and code of each refusal, and none reaches an engine."""
    seen = len(upstream.received)
    client.post(json.dumps({"model": model, "messages": []}), key=key)
    answer = client.answer()
    assert (answer.status, answer.code) == (status, code)
    assert len(upstream.received) == seen
    # The connection is good for the next request.
    client.post(CHAT)
    assert client.answer().status == 200


def test_a_refusal_says_why(client):
    """RTR-02: the table's reason and Retry-After reach the client."""
    client.post('{"model":"loading"}')
    answer = client.answer()
    assert "downloading, 3 of 16 GB" in answer.json["error"]["message"]
    assert answer.headers["retry-after"] == "17"
    assert "x-should-retry" not in answer.headers
    client.post('{"model":"parked"}')
    answer = client.answer()
    assert "failed 5 times: out of memory" in answer.json["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    client.post('{"model":"m"}', key="wrong")
    assert client.answer().headers["www-authenticate"] == "Bearer"


def test_a_key_may_use_its_models_by_every_name(client):
    """RTR-12: a model allowed is allowed by its aliases too."""
    client.post('{"model":"the m","messages":[]}', key=NARROW)
    assert client.answer().status == 200


def test_revocation_is_effective_at_once(tmp_path, upstream):
    """RTR-12: within one poll a key that left the table opens nothing, on open connections too."""
    with Router(tmp_path, tables(upstream)) as router, router.connect() as client:
        client.post(CHAT)
        assert client.answer().status == 200
        table = tables(upstream)
        router.control.publish(table_of(*table.models, generation="g2", keys=table.keys[1:]))

        def refused():
            client.post(CHAT)
            return client.answer().status == 401

        until(refused, 5, "the revocation")


def test_nothing_of_the_client_reaches_the_engine(client, upstream):
    """RTR-12: credentials, cookies and hop-by-hop fields stay here; the engine's own key goes."""
    client.post(
        CHAT,
        lines="X-Api-Key: client-secret\r\nCookie: a=client-secret\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
        "Proxy-Authorization: client-secret\r\nTE: trailers\r\nX-Forwarded-For: 1.2.3.4\r\nOpenAI-Organization: o\r\n",
    )
    assert client.answer().status == 200
    request = upstream.received[-1]
    names = [name for name, _ in request.header_list]
    assert sorted(names) == [b"authorization", b"content-length", b"content-type", b"host", b"x-request-id"]
    assert request.headers[b"authorization"] == f"Bearer {ENGINE_KEY}".encode()
    assert KEY.encode() not in request.raw_head
    assert b"client-secret" not in request.raw_head


def test_nothing_internal_reaches_the_client(client):
    """RTR-13: of an engine's fields only those about the content pass."""
    client.post(STREAM)
    answer = client.answer()
    assert sorted(answer.headers) == ["content-type", "date", "transfer-encoding", "x-request-id"]


# ----------------------------------------------------------------- pages, methods


def test_exactly_these_paths_need_no_key(router, client):
    """RTR-14: the exemption list is exact paths: prefixes, variants and everything else ask for a key."""
    for path in sorted(PAGES):
        assert router.get(path.decode()).status == 200
    others = [path.decode() for path in (*PROXIED, MODELS)]
    others += [
        "/healthz/",
        "/healthz/x",
        "/readyz/..",
        "//",
        "/healthz%2f",
        "/HEALTHZ",
        "/v1",
        "/v1/models/m",
        "/metrics",
        "/x",
    ]
    for path in others:
        expected = 405 if path.encode() in PROXIED else 401
        assert router.get(path).status == expected, path
    for path in PROXIED:
        client.post(CHAT, path=path.decode(), key="")
        assert client.answer().status == 401


def test_models(router):
    """RTR-01: the list holds models and aliases that the key may use and that are listed."""
    listed = router.get("/v1/models", f"Authorization: Bearer {KEY}").json
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == [
        "just-left",
        "loading",
        "m",
        "org/m",
        "parked",
        "stopped",
        "the m",
        "unplaceable",
    ]
    assert listed["data"][2] == {"id": "m", "object": "model", "created": 7, "owned_by": "llmgw", "root": "m"}
    narrow = router.get("/v1/models", f"Authorization: Bearer {NARROW}").json["data"]
    assert [entry["id"] for entry in narrow] == ["m", "org/m", "the m"]


@pytest.mark.parametrize("path", ["m", "the%20m", "org/m", "org%2Fm"])
def test_one_model(router, path):
    """RTR-01: by name or alias, escaped or not."""
    assert router.get(f"/v1/models/{path}", f"Authorization: Bearer {KEY}").json["root"] == "m"


@pytest.mark.parametrize(("name", "key"), [("nope", KEY), ("", KEY), ("off", KEY), ("hidden", NARROW)])
def test_no_such_model(router, name, key):
    """RTR-01, RTR-12: what a key may not use is not there for it."""
    answer = router.get(f"/v1/models/{name}", f"Authorization: Bearer {key}")
    assert (answer.status, answer.code) == (404, "model_not_found")


def test_methods(client):
    """RTR-18: HEAD is GET without a body, OPTIONS tells the methods, the rest is 405."""
    client.send("HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    head = client.answer(bodiless=True)
    assert (head.status, head.headers["content-length"]) == (200, "15")
    client.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n")
    options = client.answer()
    assert (options.status, options.headers["allow"]) == (204, "POST, OPTIONS")
    assert "content-length" not in options.headers
    client.send("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.answer().status == 204
    client.send("DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    refused = client.answer()
    assert (refused.status, refused.code, refused.headers["allow"]) == (405, "method_not_allowed", "GET, HEAD, OPTIONS")
    client.send(f"GET /v1/nothing HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n")
    assert client.answer().code == "not_found"
    client.send("CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.answer().status in (401, 404)


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/v1/nothing"])
@pytest.mark.parametrize("close", [False, True])
def test_the_connection_ends_when_the_client_asks(client, path, close):
    """RTR-18: and only then."""
    field = "Connection: close\r\n" if close else ""
    client.send(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{field}\r\n")
    assert (client.answer().headers.get("connection") == "close") == close
    if close:
        assert client.more() == b""
    else:
        client.post(CHAT)
        assert client.answer().status == 200


def test_a_stream_to_a_client_that_asks_for_the_end(client):
    """RTR-18: its connection ends after the stream, not before."""
    client.post(STREAM, lines="Connection: close\r\n")
    answer = client.answer()
    assert (answer.complete, answer.headers["connection"]) == (True, "close")
    assert client.more() == b""


def test_landing(router):
    """RTR-14: it shows the address the client used, escaped, and no data."""
    page = router.get("/", 'X-Forwarded-Host: ai.example"><script>alert(1)</script>', "X-Forwarded-Proto: https")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<script>" not in page.body
    assert b"https://ai.example&quot;&gt;&lt;script&gt;" in page.body
    assert b"hidden" not in page.body


def test_request_id(client, upstream):
    """RTR-18: a good one is kept, a bad one replaced; returned always and sent upstream."""
    client.post(CHAT, lines="X-Request-Id: my-id_1.2\r\n")
    assert client.answer().headers["x-request-id"] == "my-id_1.2"
    assert upstream.received[-1].headers[b"x-request-id"] == b"my-id_1.2"
    seen = set()
    for bad in ("a b", "x" * 129, '"><', ""):
        client.post("{", lines=f"X-Request-Id: {bad}\r\n")
        answer = client.answer()
        assert answer.status == 400
        seen.add(answer.headers["x-request-id"])
    assert len(seen) == 4
    assert all(made.startswith("req-") for made in seen)


# ------------------------------------------------------------------ what passes


def test_answers_pass(client, upstream):
    """RTR-01: the body goes as it came but for the model's name, and the answer comes back as it is."""
    body = (
        '{ "messages":[{"role":"user","content":"model \\u00e4 \\"org/m\\""}], "model" : "org/m","x":{"model":"org/m"}}'
    )
    client.post(body)
    assert client.answer().json["choices"][0]["message"]["content"] == fake.REPLY
    assert upstream.received[-1].body.decode() == body.replace('"model" : "org/m"', '"model" : "m"')
    client.post('{"model":"m","prompt":"x"}', path="/v1/completions")
    assert client.answer().json["object"] == "text_completion"
    assert upstream.received[-1].path == b"/v1/completions"


@pytest.mark.parametrize("usage", [False, True])
def test_streams_pass(client, usage):
    """RTR-09: every event as it came, [DONE], a clean end; the usage chunk only when asked for."""
    client.post(json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": usage}}))
    answer = client.answer()
    assert answer.complete
    assert answer.body == b"".join(fake.events("m", usage)) + fake.DONE


TRICKY = (
    b"data: 10\r\n\r\n",
    b'data:{"no":"space"}\n\n',
    b": a comment\r\n\r\n",
    "data: \U0001f600 \xe4\r\n\r\n".encode(),
    b"data: a\ndata: b\n\n",
    b"event: x\r\ndata: 0\r\n\r\n",
    fake.DONE,
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100000])
def test_any_split_of_a_stream_passes(client, upstream, size):
    """RTR-09: CRLF, no space after data:, UTF-8 and framing split across reads: byte for byte the same,
    and the engine's connection is clean for the next request."""
    raw = fake.HEAD_STREAM + b"".join(map(fake.chunked, TRICKY)) + b"0\r\nX-Sum: 1\r\n\r\n"
    upstream.script.append(fake.raw(*(raw[at : at + size] for at in range(0, len(raw), size)), pause=0.0002))
    client.post(STREAM)
    answer = client.answer()
    assert answer.complete
    assert answer.body == b"".join(TRICKY)
    connections = upstream.connections
    client.post(CHAT)
    assert client.answer().status == 200
    assert upstream.connections == connections


def test_a_stream_passes_as_it_comes(client, upstream):
    """RTR-09: nothing is held back until more comes."""
    release = threading.Event()
    first = fake.event({"choices": [1]})
    upstream.script.append(fake.hold(fake.chunked(first), release, fake.chunked(fake.DONE) + fake.LAST))
    client.post(STREAM)
    client.read_until(first)
    release.set()
    assert client.answer().body == first + fake.DONE


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_with_its_connection(client, upstream, stream):
    """RTR-09: close-delimited answers are framed anew and the client's connection goes on."""
    body = fake.event({"choices": []}) + fake.DONE if stream else b'{"choices":[]}'
    kind = b"text/event-stream" if stream else b"application/json"
    upstream.script.append(
        fake.raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\n\r\n", body[:9], body[9:], close_after=True, pause=0.01
        )
    )
    client.post(STREAM if stream else CHAT)
    answer = client.answer()
    assert (answer.body, answer.complete) == (body, True)
    client.post(CHAT)
    assert client.answer().status == 200


def test_a_chunked_answer_that_is_no_stream(client, upstream):
    """RTR-01: whole answers come in one piece with their length."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    upstream.script.append(fake.raw(head, fake.chunked(b'{"choices"'), fake.chunked(b":[]}") + fake.LAST, pause=0.01))
    client.post(CHAT)
    answer = client.answer()
    assert (answer.body, answer.headers["content-length"]) == (b'{"choices":[]}', "14")


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_a_large_answer_passes(client, upstream, framing):
    """RTR-13: what is larger than the router holds back is passed on piece by piece."""
    body = bytes(range(256)) * 12000
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    if framing == "length":
        raw = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    elif framing == "chunked":
        raw = (
            head + b"Transfer-Encoding: chunked\r\n\r\n" + fake.chunked(body[:99]) + fake.chunked(body[99:]) + fake.LAST
        )
    else:
        raw = head + b"\r\n" + body
    upstream.script.append(fake.raw(raw, close_after=framing == "close"))
    client.post(CHAT)
    answer = client.answer()
    assert answer.complete
    assert answer.body == body
    client.post(CHAT)
    assert client.answer().status == 200


def test_http10_stream(client):
    """RTR-09: a client of HTTP/1.0 gets the events without chunk framing, ended by the connection."""
    client.send(
        f"POST /v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Length: {len(STREAM)}\r\n\r\n{STREAM}"
    )
    answer = client.answer()
    assert "transfer-encoding" not in answer.headers
    assert answer.body == b"".join(fake.events("m")) + fake.DONE


def test_interim_answers_are_skipped(client, upstream):
    """RTR-13: 1xx of an engine are not the answer."""
    upstream.script.append(fake.raw(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + fake.json_answer(200, {"ok": 1})))
    client.post(CHAT)
    assert client.answer().json == {"ok": 1}


@pytest.mark.parametrize(
    ("status", "code"), [(400, "context_length_exceeded"), (404, 404), (422, 422), (429, 429), (500, 500), (501, 501)]
)
def test_an_engines_answer_about_the_request_is_passed_on(client, upstream, status, code):
    """RTR-08: 4xx and 500 are answers: not retried, not replaced."""
    seen = len(upstream.received)
    upstream.script.append(fake.refuse(status, {"error": {"message": "no", "code": code}}, b"Retry-After: 9\r\n"))
    client.post(CHAT)
    answer = client.answer()
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert answer.headers["retry-after"] == "9"
    assert len(upstream.received) == seen + 1


@pytest.mark.parametrize("status", [408, 429])
def test_an_error_without_a_body_gets_one(client, upstream, status):
    """RTR-02: SDKs retry at once without a body and Retry-After."""
    upstream.script.append(fake.raw(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status))
    client.post(CHAT)
    answer = client.answer()
    assert answer.status == status
    assert answer.json["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0


# ----------------------------------------------------------------------- limits


def test_pipelining(client):
    """RTR-13: requests sent together are answered in order."""
    one = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: "
    client.send(
        f"{one}{len(CHAT)}\r\n\r\n{CHAT}{one}{len(STREAM)}\r\n\r\n{STREAM}GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert client.answer().json["object"] == "chat.completion"
    assert client.answer().body.endswith(fake.DONE)
    assert client.answer().json == {"status": "ok"}


def test_expect_continue(client, upstream):
    """RTR-13: a client that waits for 100 Continue gets it, unless the answer is known before the body."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(CHAT)}\r\n"
    client.send(head + f"Authorization: Bearer {KEY}\r\n\r\n")
    client.read_until(b"HTTP/1.1 100 Continue\r\n\r\n")
    client.buffer = b""
    client.send(CHAT)
    assert client.answer().status == 200
    client.send(head + "\r\n")
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (401, "close")


def test_a_large_body_is_refused_in_json(router, client):
    """RTR-13: 413 that the client can read though it is still sending, announced or not."""
    body = json.dumps({"model": "m", "x": "a" * 300_000})
    client.post(body)
    assert client.answer().code == "body_too_large"
    with router.connect() as chunked:
        chunked.send(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        chunked.send(fake.chunked(body.encode()) + fake.LAST)
        assert chunked.answer().code == "body_too_large"


def test_a_refused_client_may_finish_sending(client):
    """RTR-13: a client that is still sending its body is not reset before it reads the answer."""
    client.send(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        "Content-Length: 300000\r\n\r\n"
    )
    for _ in range(10):
        client.send(b"a" * 30_000)
        time.sleep(0.01)
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (413, "close")


def test_a_body_in_many_pieces(client):
    """RTR-13: bodies up to the limit arrive however they are cut."""
    body = json.dumps({"model": "m", "x": "a" * 150_000}).encode()
    client.send(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    for at in range(0, len(body), 10007):
        client.send(body[at : at + 10007])
    assert client.answer().status == 200


def test_large_and_many_fields(router):
    """RTR-13: a head has a size and a number of fields."""
    for lines in (["X: " + "a" * 9000], [f"X-{nth}: 1" for nth in range(101)]):
        answer = router.get("/healthz", *lines)
        assert (answer.status, answer.code, answer.headers["connection"]) == (431, "headers_too_large", "close")


@pytest.mark.parametrize(
    "sent",
    [
        "GET /healthz HTTP/1.1\r\nHost: x\r\n",
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 50\r\n\r\n{{",
    ],
)
def test_slowloris(router, sent):
    """RTR-13: a head and a body have a time to arrive in, however steadily they drip."""
    with router.connect() as client:
        client.send(sent)
        started = time.monotonic()
        try:
            while time.monotonic() < started + 5 and not client.buffer:
                client.send(b"a")
                client.sock.settimeout(0.05)
                try:
                    client.more()
                except TimeoutError:
                    continue
        finally:
            client.sock.settimeout(10)
        assert time.monotonic() < started + 3
        answer = client.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")


def test_a_client_that_does_not_read(router, upstream):
    """RTR-13: a stream to a client that takes nothing is given up, and the engine's connection closed."""
    flood = fake.chunked(b"data: " + b"x" * 60000 + b"\n\n")
    ended = threading.Event()

    def pour(exchange):
        exchange.send(fake.HEAD_STREAM)
        exchange.connection.settimeout(10)
        try:
            for _ in range(2000):
                exchange.send(flood)
        except (BrokenPipeError, ConnectionResetError):
            ended.set()
        exchange.open = False

    upstream.script.append(pour)
    client = router.connect()
    client.post(STREAM)
    assert ended.wait(8)
    client.sock.close()
    until(lambda: inflight(router) == 0, 5, "the slot")


def test_a_slow_client_gets_everything(router, upstream):
    """RTR-09: a client slower than the engine loses nothing."""
    events = [fake.event({"n": nth, "pad": "x" * 30000}) for nth in range(200)]
    upstream.script.append(
        fake.raw(fake.HEAD_STREAM, *(fake.chunked(event) for event in events), fake.chunked(fake.DONE) + fake.LAST)
    )
    with Client(router.port, receive_buffer=65536) as client:
        client.post(STREAM)
        time.sleep(0.3)
        assert client.answer().body == b"".join(events) + fake.DONE


# ----------------------------------------------------------------- client gone


def inflight(router):
    """What the router's latest report says is in flight."""
    return sum(load.inflight for load in router.control.reports[-1].endpoints) if router.control.reports else -1


@pytest.mark.parametrize("body", [CHAT, STREAM])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_in_prefill(router, upstream, body, reset):
    """RTR-11: while the engine has said nothing, its connection ends within a second and the slot is freed."""
    ends = len(upstream.ended_at)
    seen = len(upstream.received)
    upstream.script.append(fake.silent)
    client = router.connect()
    client.post(body)
    until(lambda: len(upstream.received) > seen, 5, "the request")
    left = time.monotonic()
    if reset:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.sock.close()
    until(lambda: len(upstream.ended_at) > ends, 5, "the end of the engine's connection")
    assert upstream.ended_at[-1] - left < 1.0
    until(lambda: inflight(router) == 0, 5, "the slot")


def test_a_client_that_leaves_in_a_stream(router, upstream):
    """RTR-11: between two chunks as well."""
    ends = len(upstream.ended_at)

    def begin(exchange):
        exchange.send(fake.HEAD_STREAM + fake.chunked(fake.event({"n": 1})))
        exchange.wait_for_end()

    upstream.script.append(begin)
    client = router.connect()
    client.post(STREAM)
    client.read_until(b'"n"')
    left = time.monotonic()
    client.sock.close()
    until(lambda: len(upstream.ended_at) > ends, 5, "the end of the engine's connection")
    assert upstream.ended_at[-1] - left < 1.0
    until(lambda: inflight(router) == 0, 5, "the slot")


def test_a_client_that_leaves_with_a_request_pipelined(router, upstream):
    """RTR-11: what a client sent ahead does not hide that it left."""
    ends = len(upstream.ended_at)
    seen = len(upstream.received)
    upstream.script.append(fake.silent)
    client = router.connect()
    client.post(CHAT)
    client.post(CHAT)
    until(lambda: len(upstream.received) > seen, 5, "the request")
    client.sock.close()
    until(lambda: len(upstream.ended_at) > ends, 5, "the end of the engine's connection")


def test_reports(router, client):
    """DEM-01: what was used and when is told once a second; never used is unknown, not idle."""
    client.post(CHAT)
    assert client.answer().status == 200
    count = len(router.control.reports)
    report = until(lambda: router.control.reports[count + 1 :], 5, "a report")[-1]
    loads = {load.id: load for load in report.endpoints}
    assert report.generation == "g1"
    assert loads["e1"].idle_seconds < 5
    assert loads["e1"].answered_seconds < 5
    assert loads["e2"].idle_seconds is None
    sequences = [report.sequence for report in router.control.reports]
    assert sequences == sorted(set(sequences))
