"""What an endpoint may have in flight at once: given back on every way a request can end."""

import json
import socket
import threading
import time

import pytest

from llmgw.wire.routing import RoutedModel
from tests.fakes import upstream as fake
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import Router, endpoint, table_of, until

CHAT = '{"model":"one","messages":[]}'
STREAM = '{"model":"one","messages":[],"stream":true}'
EVENT = fake.event({"choices": [{"delta": {"content": "x"}}]})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def upstream():
    one = FakeUpstream()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def router(tmp_path_factory, upstream):
    """One worker, one endpoint that takes one request at a time: a slot that leaks once is gone."""
    model = RoutedModel(name="one", state="ready", endpoints=(endpoint(upstream, max_inflight=1),))
    timeouts = {"first_byte": "300ms", "answer": "300ms", "between_bytes": "300ms", "client_write": "300ms"}
    limits = {"buffered_answer": 1024}
    with Router(tmp_path_factory.mktemp("router"), table_of(model), timeouts=timeouts, limits=limits) as one:
        yield one


def pour(exchange):
    """More than any buffer on the way holds."""
    exchange.connection.settimeout(5)
    exchange.send(fake.HEAD_STREAM)
    exchange.open = False
    for _ in range(2000):
        exchange.send(fake.chunked(b"data: " + b"x" * 60000 + b"\n\n"))


ANSWERED = {
    "400": fake.refuse(400),
    "429": fake.refuse(429),
    "500": fake.refuse(500),
    "503": fake.refuse(503),
    "reset": fake.reset,
    "closed": fake.close,
    "silent": fake.silent,
    "not http": fake.raw(b"hello\r\n\r\n", close_after=True),
    "stream cut": fake.cut(fake.chunked(EVENT)),
    "stream cut within an event": fake.cut(fake.chunked(EVENT) + b"40\r\ndata: {"),
    "stream that falls silent": lambda exchange: (
        exchange.send(fake.HEAD_STREAM + fake.chunked(EVENT)),
        exchange.wait_for_end(),
    ),
    "stream without its end": fake.raw(fake.HEAD_STREAM + fake.chunked(EVENT) + fake.LAST),
    "large answer cut": fake.raw(HEAD + b"Content-Length: 9000\r\n\r\n", b"a" * 5000, close_after=True, pause=0.02),
}


def served_again(router):
    """Waits until the endpoint takes a request: it does as soon as its one slot is free."""

    def served():
        with router.connect() as client:
            client.post(CHAT)
            answer = client.answer()
        assert (answer.status, answer.code if answer.status != 200 else "") in ((200, ""), (503, "overloaded"))
        return answer.status == 200

    until(served, 3, "the slot")


@pytest.mark.parametrize("fault", ANSWERED)
@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_slot_comes_back_after_a_fault(router, upstream, fault, body):
    """Case 4, RTR-05: whatever the engine does. A slot that stays taken makes every later answer 503."""
    upstream.hang_up()
    upstream.script.append(ANSWERED[fault])
    with router.connect() as client:
        client.post(body)
        client.answer()
        assert not upstream.script, "the engine was not asked"
    served_again(router)


@pytest.mark.parametrize("body", [CHAT, STREAM])
@pytest.mark.parametrize("when", ["prefill", "answer", "not reading"])
@pytest.mark.parametrize("reset", [False, True])
def test_slot_comes_back_when_the_client_leaves(router, upstream, body, when, reset):
    """Case 4, RTR-11: at any moment, in good order or not; at once, not when the engine would be done."""
    upstream.hang_up()
    begun = threading.Event()

    def stay_silent(exchange):
        begun.set()
        exchange.wait_for_end()

    def begin(exchange):
        exchange.send(fake.HEAD_STREAM + fake.chunked(EVENT))
        stay_silent(exchange)

    def drown(exchange):
        begun.set()
        pour(exchange)

    upstream.script.append({"prefill": stay_silent, "answer": begin, "not reading": drown}[when])
    client = router.connect()
    client.post(body)
    assert begun.wait(5)
    if when == "answer":
        client.read_until(EVENT)
    if reset:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.sock.close()
    left = time.monotonic()
    served_again(router)
    assert time.monotonic() - left < 5, "the engine would be busy for ever"


def test_answers_about_the_request_are_no_failures(router, upstream):
    """Case 1, RTR-07: 4xx and the engine's own 500 are not counted against it and do not make it the last
    choice; a connection that breaks is counted."""
    upstream.hang_up()

    def failures(reports):
        return sum(load.failures for report in reports for load in report.endpoints)

    # What other tests made fail has been told with the second report from now.
    since = len(router.control.reports) + 2
    until(lambda: len(router.control.reports) >= since, 5, "two reports")
    for status in (400, 404, 422, 429, 500):
        upstream.script.append(fake.refuse(status))
        with router.connect() as client:
            client.post(CHAT)
            assert client.answer().status == status
    upstream.hang_up()
    upstream.script.append(fake.reset)
    with router.connect() as client:
        client.post(CHAT)
        assert client.answer().code == "upstream_error"
    assert until(lambda: failures(router.control.reports[since:]), 5, "a report of the failure") == 1


@pytest.mark.parametrize("text", ["[DONE]", "data: [DONE]", "error: none", '{"error": 1}'])
def test_words_of_an_answer_do_not_end_it(router, upstream, text):
    """Case 5, RTR-09: a stream that ends in good order but short of its end is not whole, whatever the model
    was saying last."""
    upstream.hang_up()
    said = fake.event({"choices": [{"delta": {"content": text}}]})
    upstream.script.append(fake.raw(fake.HEAD_STREAM + fake.chunked(said) + fake.LAST))
    with router.connect() as client:
        client.post(STREAM)
        answer = client.answer()
    assert not answer.complete
    last = [line for line in answer.body.split(b"\n") if line.strip()][-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
