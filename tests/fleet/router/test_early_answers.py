"""Engines that answer before they have read a request, and what says nothing about an engine."""

import errno
import json
import socket
import threading

import gevent.socket
import pytest

from llmgw.wire.routing import Endpoint, RoutedModel
from router.errors import Refused
from router.link import Reactor
from router.upstream import Pool, Unreachable
from tests.fakes import upstream as fake
from tests.fleet.router.process import Router, table_of

REFUSAL = fake.json_answer(413, {"error": {"message": "too large for me", "code": "too_large"}})


class Impatient:
    """Reads a request's head and a little more, answers, and closes with the rest unread: the sender gets a reset."""

    def __init__(self):
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += connection.recv(1000)
                self.requests += 1
                connection.sendall(REFUSAL)

    def stop(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_an_answer_to_half_a_request(tmp_path):
    """RTR-08: it is the answer: passed on, not taken for a broken connection, not tried on every replica."""
    engines = Impatient(), Impatient()
    endpoints = tuple(
        Endpoint(id=f"e{nth}", host="127.0.0.1", port=one.port, upstream_model="m") for nth, one in enumerate(engines)
    )
    body = json.dumps({"model": "m", "x": "a" * 12_000_000})
    with Router(tmp_path, table_of(RoutedModel(name="m", state="ready", endpoints=endpoints))) as router:
        for nth in range(1, 6):
            with router.connect() as client:
                client.post(body)
                answer = client.answer()
                assert (answer.status, answer.code) == (413, "too_large")
            assert sum(one.requests for one in engines) == nth
    for one in engines:
        one.stop()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99999), ("127.0.0.1", -1), ("a\0b", 80), ("a" * 80, 80)])
def test_an_address_that_is_none(host, port):
    """RTR-08: a route table may say anything; such an endpoint is unreachable, not an error of the router's."""
    reactor = Reactor()
    try:
        with pytest.raises(Unreachable):
            Pool(reactor, host, port).connect(1.0)
    finally:
        reactor.close()


def test_no_more_files_is_no_fault_of_the_engine(monkeypatch):
    """RTR-02, RTR-07: the client may come back, and the endpoint is neither avoided nor counted."""

    def full(*_args, **_kwargs):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(gevent.socket, "create_connection", full)
    reactor = Reactor()
    try:
        with pytest.raises(Refused) as caught:
            Pool(reactor, "127.0.0.1", 1).connect(1.0)
    finally:
        reactor.close()
    assert caught.value.error.code == "overloaded"
