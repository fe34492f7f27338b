"""Engines that fail in every way: what is tried again, and what the client is told."""

import json
import socket
import threading
import time

import pytest

from llmgw.wire.routing import Endpoint, RoutedModel
from tests.fakes import upstream as fake
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import Router, endpoint, table_of, until

CHAT = '{"model":"%s","messages":[]}'
STREAM = '{"model":"%s","messages":[],"stream":true}'
EVENT = fake.event({"choices": [{"delta": {"content": "once"}}]})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def upstreams():
    both = FakeUpstream("m"), FakeUpstream("m")
    yield both
    for one in both:
        one.stop()


@pytest.fixture(autouse=True)
def unscripted(upstreams):
    """Each test begins without what another scripted, and without its connections: what fails on a
    reused one is sent again (tested below)."""
    for one in upstreams:
        one.script.clear()
        one.hang_up()


@pytest.fixture(scope="module")
def router(tmp_path_factory, upstreams):
    first, second = upstreams
    gone = Endpoint(id="gone", host="127.0.0.1", port=closed_port(), upstream_model="m")
    table = table_of(
        RoutedModel(name="one", state="ready", endpoints=(endpoint(first, "one-1"),)),
        RoutedModel(name="two", state="ready", endpoints=(endpoint(first, "two-1"), endpoint(second, "two-2"))),
        RoutedModel(name="half", state="ready", endpoints=(gone, endpoint(second, "half-2"))),
        RoutedModel(name="gone", state="ready", endpoints=(gone,)),
        RoutedModel(name="full", state="ready", endpoints=(endpoint(first, "full-1", max_inflight=1),)),
    )
    timeouts = {"first_byte": "700ms", "answer": "500ms", "between_bytes": "400ms", "connect": "300ms"}
    with Router(tmp_path_factory.mktemp("router"), table, timeouts=timeouts, limits={"buffered_answer": 1024}) as one:
        yield one


@pytest.fixture
def client(router):
    with router.connect() as one:
        yield one


def both(upstreams, action):
    for one in upstreams:
        one.script.append(action)


def received(upstreams):
    return [len(one.received) for one in upstreams]


def failures(router, name, since):
    """Failures of an endpoint told in the reports from number ``since`` on, once there are any."""

    def told():
        return sum(
            load.failures for report in router.control.reports[since:] for load in report.endpoints if load.id == name
        )

    return until(told, 6, "a report of the failure")


# ------------------------------------------------------------------------ retries


BEFORE_THE_ANSWER = {
    "reset": fake.reset,
    "closed": fake.close,
    "502": fake.refuse(502),
    "503": fake.refuse(503),
    "401": fake.refuse(401, {"error": "Unauthorized"}),
    "redirect": fake.raw(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n"),
    "half a head": fake.raw(b"HTTP/1.1 200 OK\r\nContent-", close_after=True),
    "not http": fake.raw(b"hello\r\n\r\n", close_after=True),
    "101": fake.raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", close_after=True),
    "two lengths": fake.raw(HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", close_after=True),
    "huge head": fake.raw(HEAD + b"X: " + b"a" * 40000 + b"\r\n\r\n", close_after=True),
    "many fields": fake.raw(HEAD + b"X: a\r\n" * 200 + b"Content-Length: 2\r\n\r\n{}"),
    "body cut": fake.raw(HEAD + b"Content-Length: 100\r\n\r\n{", close_after=True),
    "body reset": lambda exchange: (
        exchange.send(HEAD + b"Content-Length: 100\r\n\r\n{"),
        time.sleep(0.05),
        exchange.reset(),
    ),
    "body chunks cut": fake.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", close_after=True),
    "body chunks wrong": fake.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
    "stream head only": fake.cut(b"", fake.close),
    "stream size only": fake.cut(b"10\r\n", fake.close),
    "no content": fake.raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "empty": fake.raw(HEAD + b"Content-Length: 0\r\n\r\n"),
    "empty chunked": fake.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + fake.LAST),
    "stream empty": fake.raw(fake.HEAD_STREAM + fake.LAST),
    "stream chunks wrong": fake.raw(fake.HEAD_STREAM + b"zz\r\n"),
}


@pytest.mark.parametrize("fault", BEFORE_THE_ANSWER)
@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_tried_once_on_another_endpoint(client, upstreams, fault, body):
    """RTR-08: while the client has seen nothing, a failure costs it nothing."""
    before = received(upstreams)
    # Whichever is asked first fails; the second answers.
    failed = threading.Lock()

    def once(exchange):
        (BEFORE_THE_ANSWER[fault] if failed.acquire(blocking=False) else fake.answer)(exchange)

    both(upstreams, once)
    client.post(body % "two")
    answer = client.answer()
    assert answer.status == 200
    assert answer.complete
    assert fake.REPLY in answer.body.decode() or answer.body.endswith(fake.DONE)
    assert [now - then for now, then in zip(received(upstreams), before, strict=True)] == [1, 1]


@pytest.mark.parametrize("fault", BEFORE_THE_ANSWER)
def test_not_tried_more_than_twice(client, upstreams, fault):
    """RTR-08, RTR-02: two failures are told, and how."""
    before = received(upstreams)
    both(upstreams, BEFORE_THE_ANSWER[fault])
    client.post(STREAM % "two")
    answer = client.answer()
    expected = (503, "overloaded") if fault == "503" else (502, "upstream_error")
    assert (answer.status, answer.code) == expected
    assert int(answer.headers["retry-after"]) > 0
    assert [now - then for now, then in zip(received(upstreams), before, strict=True)] == [1, 1]
    # An engine's refusal of the router's key is no fault of the client's.
    assert "www-authenticate" not in answer.headers


def test_the_only_endpoint_is_not_asked_twice(client, upstreams):
    """RTR-08: a retry goes to another endpoint or nowhere."""
    before = received(upstreams)
    upstreams[0].script.append(fake.refuse(503, extra=b"Retry-After: 33\r\n"))
    client.post(CHAT % "one")
    answer = client.answer()
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "overloaded", "33")
    assert received(upstreams)[0] == before[0] + 1


def test_an_unreachable_endpoint_comes_last(router, client, upstreams):
    """RTR-08: a refused connection is retried elsewhere and not tried first for a while."""
    for _ in range(12):
        client.post(CHAT % "half")
        assert client.answer().status == 200
    log = router.log.read_text()
    assert log.count("endpoint=gone") == 1
    client.post(CHAT % "gone")
    answer = client.answer()
    assert (answer.status, answer.code) == (502, "upstream_error")


def test_a_full_endpoint(router, client, upstreams):
    """RTR-05, RTR-02: max_inflight holds; more is answered 503 with Retry-After, and the slot comes back."""
    release = threading.Event()
    upstreams[0].script.append(fake.hold(fake.chunked(EVENT), release, fake.chunked(fake.DONE) + fake.LAST))
    with router.connect() as other:
        other.post(STREAM % "full")
        other.read_until(EVENT)
        client.post(CHAT % "full")
        answer = client.answer()
        assert (answer.status, answer.code) == (503, "overloaded")
        assert "retry-after" in answer.headers
        release.set()
        assert other.answer().complete
    client.post(CHAT % "full")
    assert client.answer().status == 200


# ------------------------------------------------------------- reused connections


def test_a_reused_connection_that_was_just_closed(client, upstreams):
    """RTR-08: an idle connection that the engine resets as the request comes costs one resend to the
    same engine, even if it is the only one."""
    first = upstreams[0]
    for how in (fake.reset, fake.close):
        client.post(CHAT % "one")
        assert client.answer().status == 200
        connections, seen = first.connections, len(first.received)
        first.script.append(how)
        client.post(CHAT % "one")
        assert client.answer().status == 200
        assert first.connections == connections + 1
        assert len(first.received) == seen + 2


def test_no_resend_after_a_byte(client, upstreams):
    """RTR-08: once a reused connection has brought a byte, the request is not sent again to the same engine."""
    first = upstreams[0]
    client.post(CHAT % "one")
    assert client.answer().status == 200
    seen = len(first.received)
    first.script.append(fake.raw(b"H", close_after=True))
    client.post(CHAT % "one")
    assert client.answer().code == "upstream_error"
    assert len(first.received) == seen + 1


def test_a_connection_is_reused_only_after_a_clean_end(client, upstreams):
    """RTR-09: leftovers of one answer never become the next one's beginning."""
    first = upstreams[0]
    reply = b'{"choices":[]}'
    smuggled = fake.json_answer(200, {"smuggled": True})
    ends = (
        fake.raw(HEAD + b"Content-Length: %d\r\n\r\n" % len(reply) + reply + smuggled),
        fake.raw(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(reply) + reply),
        fake.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + fake.chunked(reply) + fake.LAST + smuggled),
        fake.raw(fake.HEAD_STREAM + fake.chunked(fake.DONE) + fake.LAST + smuggled),
    )
    for end in ends:
        first.script.append(end)
        client.post(STREAM % "one")
        assert client.answer().complete
        connections = first.connections
        client.post(CHAT % "one")
        assert fake.REPLY in client.answer().body.decode()
        assert first.connections == connections + 1


def test_what_an_idle_connection_says_unasked(client, upstreams):
    """RTR-09: bytes on an idle connection are nobody's answer: it is dropped."""
    first = upstreams[0]
    late = threading.Event()

    def act(exchange):
        fake.answer(exchange)
        exchange.send(fake.json_answer(200, {"smuggled": True}))
        late.set()

    first.script.append(act)
    client.post(CHAT % "one")
    assert client.answer().status == 200
    late.wait(5)
    time.sleep(0.02)  # for the loop to see it; without that the bytes are excess or are dropped at use
    client.post(CHAT % "one")
    assert fake.REPLY in client.answer().body.decode()


def test_idle_connections_expire(router, upstreams):
    """RTR-08: before any engine closes its own: after three seconds."""
    first = upstreams[0]
    ended = []

    def act(exchange):
        fake.answer(exchange)
        began = time.monotonic()
        exchange.wait_for_end(8)
        ended.append(time.monotonic() - began)

    first.script.append(act)
    with router.connect() as client:
        client.post(CHAT % "one")
        assert client.answer().status == 200
        until(lambda: ended, 8, "the expiry")
    assert 2.5 < ended[0] < 4.5


# ----------------------------------------------------------------- after the first byte


CUTS = {
    "between chunks": fake.chunked(EVENT),
    "before the CRLF": fake.chunked(EVENT)[:-2],
    "within data": fake.chunked(EVENT) + b"40\r\ndata: {",
    "within much data": fake.chunked(EVENT) + b"4000\r\ndata: {",
    "within a size": fake.chunked(EVENT) + b"4",
    "after a size": fake.chunked(EVENT) + b"40\r\n",
    "before the last chunk": fake.chunked(EVENT) + fake.chunked(fake.DONE),
    "within the last chunk": fake.chunked(EVENT) + b"0\r\n",
    "within trailers": fake.chunked(EVENT) + b"0\r\nX-Sum: 1\r\n",
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("how", [fake.close, fake.reset])
def test_a_cut_stream_is_told_and_not_retried(client, upstreams, cut, how):
    """RTR-09, RTR-08: an error event, no [DONE] from the router, no clean end, no second engine."""
    before = sum(received(upstreams))
    both(upstreams, fake.cut(CUTS[cut], how))
    client.post(STREAM % "two")
    answer = client.answer()
    assert answer.status == 200
    assert not answer.complete
    assert answer.body.count(b"once") == 1
    last = [line for line in answer.body.split(b"\n") if line.strip()][-1]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == ("upstream_error", "server_error")
    assert client.more() == b""
    assert sum(received(upstreams)) == before + 1


def test_a_cut_stream_counts_as_a_failure(router, client, upstreams):
    """RTR-09: it is reported against its endpoint, and its slot is freed."""
    since = len(router.control.reports)
    upstreams[0].script.append(fake.cut(fake.chunked(EVENT)))
    client.post(STREAM % "one")
    assert not client.answer().complete
    assert failures(router, "one-1", since) == 1
    assert all(load.inflight == 0 for load in router.control.reports[-1].endpoints)


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_a_stream_that_ends_short_of_done(client, upstreams, framing):
    """RTR-09: an engine that is stopped ends its stream in good order; it is not passed off as whole."""
    if framing == "chunked":
        upstreams[0].script.append(fake.raw(fake.HEAD_STREAM + fake.chunked(EVENT) + fake.LAST))
    else:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        upstreams[0].script.append(fake.raw(head + EVENT, close_after=True))
    client.post(STREAM % "one")
    answer = client.answer()
    assert not answer.complete
    assert b'"code":"upstream_error"' in answer.body
    assert b"[DONE]" not in answer.body


def test_an_engines_own_error_event_is_enough(client, upstreams):
    """RTR-09: where the engine itself told the error, nothing is added."""
    told = fake.event({"error": {"message": "out of memory", "code": 500}})
    upstreams[0].script.append(fake.raw(fake.HEAD_STREAM + fake.chunked(EVENT) + fake.chunked(told) + fake.LAST))
    client.post(STREAM % "one")
    answer = client.answer()
    assert (answer.complete, answer.body) == (True, EVENT + told)


def test_wrong_framing_in_the_middle(client, upstreams):
    """RTR-09: what is no chunk is a cut, not content."""
    upstreams[0].script.append(
        fake.raw(fake.HEAD_STREAM + fake.chunked(EVENT), b"XYZ\r\nnot a chunk\r\n0\r\n\r\n", pause=0.05)
    )
    client.post(STREAM % "one")
    answer = client.answer()
    assert not answer.complete
    assert b"not a chunk" not in answer.body
    assert b'"error"' in answer.body


def test_a_large_answer_that_is_cut(client, upstreams):
    """RTR-08: once committed, a missing end is all that can tell; nothing is tried again."""
    before = sum(received(upstreams))
    both(upstreams, fake.raw(HEAD + b"Content-Length: 9000\r\n\r\n", b"a" * 5000, close_after=True, pause=0.05))
    client.post(CHAT % "two")
    answer = client.answer()
    assert (answer.status, answer.complete, len(answer.body)) == (200, False, 5000)
    assert client.more() == b""
    assert sum(received(upstreams)) == before + 1


# ----------------------------------------------------------------------- silence


@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_silence_before_the_answer(client, upstreams, body):
    """RTR-02, RTR-08: 504, and nobody else is made to wait for the same again."""
    before = sum(received(upstreams))
    both(upstreams, fake.silent)
    started = time.monotonic()
    client.post(body % "two")
    answer = client.answer()
    assert (answer.status, answer.code) == (504, "upstream_timeout")
    assert time.monotonic() - started < 10
    assert sum(received(upstreams)) == before + 1


def test_silence_within_a_stream(client, upstreams):
    """RTR-09: an engine that stops talking is given up with an error event."""
    ends = len(upstreams[0].ended_at)

    def act(exchange):
        exchange.send(fake.HEAD_STREAM + fake.chunked(EVENT))
        exchange.wait_for_end()

    upstreams[0].script.append(act)
    client.post(STREAM % "one")
    answer = client.answer()
    assert not answer.complete
    assert b'"code":"upstream_timeout"' in answer.body
    until(lambda: len(upstreams[0].ended_at) > ends, 5, "the end of the engine's connection")


def test_slow_but_steady_is_not_silent(client, upstreams):
    """RTR-09: the bound is on silence, not on the length of an answer."""
    pieces = [fake.chunked(EVENT)] * 8 + [fake.chunked(fake.DONE) + fake.LAST]
    upstreams[0].script.append(fake.raw(fake.HEAD_STREAM, *pieces, pause=0.1))
    client.post(STREAM % "one")
    assert client.answer().body == EVENT * 8 + fake.DONE
