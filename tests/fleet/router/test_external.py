"""External providers (CAT-10), as real servers over plain HTTP and over TLS."""

import json
import socket
import threading
import time

import pytest

from llmgw.wire.routing import Endpoint, RoutedModel
from tests.fakes import upstream as fake
from tests.fakes.authority import Authority
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, Router, table_of, until

PROVIDER_KEY = "pk-0123456789abcdef"
CHAT = '{"model":"ours","messages":[]}'
STREAM = '{"model":"ours","messages":[],"stream":true,"stream_options":{"include_usage":true}}'


def provider(upstream, *, tls, name="ext", host="localhost", prefix="/openai/v1", key=None):
    return Endpoint(
        id=name,
        host=host,
        port=upstream.port,
        upstream_model=upstream.name,
        key=upstream.key if key is None else key,
        external=True,
        tls=tls,
        prefix=prefix,
    )


def trust(authority):
    return {"upstream": {"ca_file": str(authority.certificate)}}


def model(*endpoints, name="ours", **fields):
    return RoutedModel(name=name, state="ready", endpoints=endpoints, **fields)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority):
    return authority.server("DNS:localhost", "IP:127.0.0.1")


@pytest.fixture(scope="module", params=[False, True], ids=["http", "https"])
def place(request, tmp_path_factory, authority, server):
    """A router in front of one provider: both, and whether they speak TLS."""
    upstream = FakeUpstream("gpt-x", PROVIDER_KEY, server if request.param else None)
    table = table_of(model(provider(upstream, tls=request.param)))
    settings = {**trust(authority), "timeouts": {"first_byte": "1s", "answer": "1s"}}
    with Router(tmp_path_factory.mktemp("router"), table, **settings) as router:
        yield router, upstream
    upstream.stop()


def test_what_a_provider_gets(place):
    """CAT-10: its own path, name of the model, key and host name; nothing of the client's."""
    router, upstream = place
    with router.connect() as client:
        client.post(CHAT, lines="X-Api-Key: client-secret\r\nCookie: a=client-secret\r\n")
        answer = client.answer()
        assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, fake.REPLY)
        assert answer.json["model"] == "gpt-x"  # the body is passed on as it is, like an engine's
        client.post('{"model":"ours","prompt":"x"}', path="/v1/completions")
        assert client.answer().json["object"] == "text_completion"
    chat, completion = upstream.received[-2:]
    assert (chat.method, chat.path) == (b"POST", b"/openai/v1/chat/completions")
    assert completion.path == b"/openai/v1/completions"
    assert chat.json == {"model": "gpt-x", "messages": []}
    assert chat.headers[b"authorization"] == b"Bearer " + PROVIDER_KEY.encode()
    assert chat.headers[b"host"] == b"localhost:%d" % upstream.port
    assert KEY.encode() not in chat.raw_head
    assert b"client-secret" not in chat.raw_head


def test_streams_pass(place):
    """RTR-09: as from an engine, and the connection carries the next request: no second handshake."""
    router, upstream = place
    with router.connect() as client:
        client.post(STREAM)
        answer = client.answer()
        assert answer.complete
        assert answer.body == b"".join(fake.events("gpt-x", usage=True)) + fake.DONE
        connections = upstream.connections
        client.post(STREAM)
        assert client.answer().complete
    assert upstream.connections == connections


def test_any_split_of_a_stream_passes(place):
    """RTR-09: whatever the sizes of reads and TLS records are."""
    router, upstream = place
    events = b"".join(fake.event({"n": "x" * (nth * 37)}) for nth in range(60))
    raw = fake.HEAD_STREAM + fake.chunked(events) + fake.chunked(fake.DONE) + fake.LAST
    for size in (1000, 17):
        upstream.script.append(fake.raw(*(raw[at : at + size] for at in range(0, len(raw), size))))
        with router.connect() as client:
            client.post(STREAM)
            answer = client.answer()
        assert (answer.complete, answer.body) == (True, events + fake.DONE)


def test_large_bodies_pass_both_ways(place):
    """RTR-13: many TLS records each way."""
    router, upstream = place
    body = bytes(range(256)) * 12000
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    upstream.script.append(fake.raw(head + body))
    sent = json.dumps({"model": "ours", "x": "a" * 3_000_000})
    with router.connect() as client:
        client.post(sent)
        assert client.answer().body == body
    assert upstream.received[-1].json == {"model": "gpt-x", "x": "a" * 3_000_000}


@pytest.mark.parametrize("when", ["prefill", "stream"])
def test_a_client_that_leaves(place, when):
    """RTR-11: the provider's connection ends within a second."""
    router, upstream = place

    def waits(exchange):
        if when == "stream":
            exchange.send(fake.HEAD_STREAM + fake.chunked(fake.event({"choices": []})))
        exchange.wait_for_end()

    upstream.script.append(waits)
    seen, ended = len(upstream.received), len(upstream.ended_at)
    with router.connect() as client:
        client.post(STREAM)
        until(lambda: len(upstream.received) > seen, what="the request")
        if when == "stream":
            client.read_until(b"choices")
    left = time.monotonic()
    until(lambda: len(upstream.ended_at) > ended, what="the provider's end")
    assert upstream.ended_at[-1] - left < 1


@pytest.mark.parametrize("status", [400, 404, 429, 500])
def test_a_providers_answer_about_the_request_passes(place, status):
    """RTR-08: 4xx and 500 are answers, with what they say about trying again."""
    router, upstream = place
    seen = len(upstream.received)
    upstream.script.append(fake.refuse(status, {"error": {"message": "no", "code": "theirs"}}, b"Retry-After: 9\r\n"))
    with router.connect() as client:
        client.post(CHAT)
        answer = client.answer()
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (status, "theirs", "9")
    assert len(upstream.received) == seen + 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_the_provider_refuses_is_ours(place, status):
    """CAT-10: 502 with words: the client's own key is right, and must not look wrong."""
    router, upstream = place
    upstream.script.append(fake.refuse(status))
    with router.connect() as client:
        client.post(CHAT)
        answer = client.answer()
    assert (answer.status, answer.code) == (502, "upstream_error")
    assert "The provider refused the router's key" in answer.json["error"]["message"]


def test_a_cut_stream_is_told_and_not_retried(place):
    """RTR-09: after the first byte nothing is tried again."""
    router, upstream = place
    seen = len(upstream.received)
    upstream.script.append(fake.cut(fake.chunked(fake.event({"choices": []}))))
    with router.connect() as client:
        client.post(STREAM)
        answer = client.answer()
    assert not answer.complete
    assert b'"upstream_error"' in answer.body
    assert b"[DONE]" not in answer.body
    assert len(upstream.received) == seen + 1


def test_an_idle_connection_that_the_provider_closed(place):
    """RTR-08: replaced once, and nobody notices."""
    router, upstream = place
    with router.connect() as client:
        client.post(CHAT)
        assert client.answer().status == 200
        upstream.script.append(fake.close)  # the reused connection ends without a byte
        client.post(CHAT)
        assert client.answer().status == 200


def test_a_tls_end_in_good_order_is_an_end_and_another_is_not(tmp_path, authority, server):
    """CAT-10: an answer without a length ends with TLS's own end. One that the network cut short looks the same but
    for that, and must not pass for whole."""
    upstream = FakeUpstream("gpt-x", context=server)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"

    def act(exchange, end):
        exchange.send(head + b'{"choices":[]}')
        end(exchange)

    table = table_of(model(provider(upstream, tls=True)))
    with (
        Router(tmp_path, table, **trust(authority)) as router,
        router.connect() as client,
    ):
        upstream.script.append(lambda exchange: act(exchange, type(exchange).close_tls))
        client.post(CHAT)
        assert client.answer().json == {"choices": []}
        upstream.script.append(lambda exchange: act(exchange, type(exchange).close))
        client.post(CHAT)
        answer = client.answer()
        assert (answer.status, answer.code) == (502, "upstream_error")
    upstream.stop()


@pytest.mark.parametrize(
    ("names", "trusted", "words"),
    [
        (("DNS:localhost",), False, "certificate was not accepted: unable to get local issuer certificate"),
        (("DNS:other.example",), True, "certificate was not accepted: Hostname mismatch"),
    ],
)
def test_a_certificate_that_is_not_the_providers(tmp_path, names, trusted, words):
    """CAT-10: of an authority nobody trusts here, or for another name: no request is sent, no key is shown."""
    authority = Authority(tmp_path / "authority")
    upstream = FakeUpstream("gpt-x", PROVIDER_KEY, authority.server(*names))
    settings = trust(authority) if trusted else {}
    with Router(tmp_path, table_of(model(provider(upstream, tls=True))), **settings) as router:
        with router.connect() as client:
            client.post(CHAT)
            answer = client.answer()
        assert (answer.status, answer.code) == (502, "upstream_error")
        assert words in answer.json["error"]["message"]
        assert words in router.log.read_text()
        assert upstream.received == []
        assert "Traceback" not in router.log.read_text()
        assert "Warning" not in router.log.read_text()
    upstream.stop()


def test_tls_by_address(tmp_path, authority, server):
    """CAT-10: a provider without a name has its address in its certificate."""
    upstream = FakeUpstream("gpt-x", PROVIDER_KEY, server)
    table = table_of(model(provider(upstream, tls=True, host="127.0.0.1", prefix="/v1")))
    with (
        Router(tmp_path, table, **trust(authority)) as router,
        router.connect() as client,
    ):
        client.post(CHAT)
        assert client.answer().status == 200
        assert upstream.received[-1].path == b"/v1/chat/completions"
    upstream.stop()


class Mute:
    """Accepts connections and never says a word."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.name, self.key = "gpt-x", ""

    def stop(self):
        self._listener.close()


def test_a_handshake_that_is_not_answered(tmp_path):
    """CAT-10: bounded, and other requests go on meanwhile."""
    mute, upstream = Mute(), FakeUpstream("m2")
    table = table_of(model(provider(mute, tls=True)), model(provider(upstream, tls=False, name="ext2"), name="other"))
    with (
        Router(tmp_path, table, timeouts={"connect_external": "2s"}) as router,
        router.connect() as client,
        router.connect() as other,
    ):
        began = time.monotonic()
        client.post(CHAT)
        other.post('{"model":"other"}')
        assert other.answer().status == 200
        assert not client.readable(), "the other did not wait for this one"
        answer = client.answer()
        assert (answer.status, answer.code) == (502, "upstream_error")
        assert "handshake in time" in answer.json["error"]["message"]
        assert 1.9 < time.monotonic() - began < 10
    mute.stop()
    upstream.stop()


def test_a_name_nobody_knows(tmp_path):
    """CAT-10: told in words; a name that cannot be one too."""
    upstream = FakeUpstream("gpt-x")
    for nth, host in enumerate(("no-such-host.invalid", "a" * 300 + ".invalid")):
        directory = tmp_path / str(nth)
        directory.mkdir()
        table = table_of(model(provider(upstream, tls=True, host=host)))
        with Router(directory, table, timeouts={"connect_external": "4s"}) as router, router.connect() as client:
            client.post(CHAT)
            answer = client.answer()
            assert (answer.status, answer.code) == (502, "upstream_error")
            assert "The provider's name" in answer.json["error"]["message"]
    upstream.stop()


def test_a_provider_without_tls(tmp_path):
    """CAT-10: where TLS is asked for, nothing is said in clear."""
    heard = []

    def plain(listener):
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(65536))
            connection.sendall(fake.json_answer(400, {"error": "speak HTTP"}))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=plain, args=(listener,), daemon=True).start()
        endpoint = Endpoint(
            id="ext",
            host="localhost",
            port=listener.getsockname()[1],
            upstream_model="gpt-x",
            key=PROVIDER_KEY,
            external=True,
            tls=True,
        )
        with Router(tmp_path, table_of(model(endpoint))) as router, router.connect() as client:
            client.post(CHAT)
            answer = client.answer()
    assert (answer.status, answer.code) == (502, "upstream_error")
    assert "The provider does not agree on TLS" in answer.json["error"]["message"]
    assert heard
    assert all(PROVIDER_KEY.encode() not in said for said in heard)


def test_a_key_that_cannot_be_sent(tmp_path):
    """SEC-03: one that would end the header line is not sent in part, and is in no log."""
    upstream = FakeUpstream("gpt-x")
    table = table_of(model(provider(upstream, tls=False, key="pk-secret-1\r\nX-Evil: 1")))
    with Router(tmp_path, table) as router, router.connect() as client:
        client.post(CHAT)
        answer = client.answer()
        assert (answer.status, answer.code) == (502, "upstream_error")
        assert "characters that cannot be sent" in answer.json["error"]["message"]
        assert "pk-secret" not in router.log.read_text()
    assert upstream.received == []
    upstream.stop()
