"""Clients that take more than they give: announced bodies that do not come, idle crowds, keys that end meanwhile."""

import resource
import socket
import threading
import time

import psutil
import pytest

from llmgw.wire.routing import RoutedModel
from tests.fakes import upstream as fake
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, Router, endpoint, routed_key, table_of, until

CHAT = '{"model":"m","messages":[]}'
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: "


def table(upstream, state="ready", **fields):
    return table_of(RoutedModel(name="m", state=state, endpoints=(endpoint(upstream),)), **fields)


@pytest.fixture(scope="module")
def upstream():
    one = FakeUpstream()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def router(tmp_path_factory, upstream):
    patient = {"header": "60s", "keep_alive": "120s"}  # so that time alone ends nobody here
    with Router(
        tmp_path_factory.mktemp("router"), table(upstream), limits={"connections": 32}, timeouts=patient
    ) as one:
        yield one


def test_a_refusal_does_not_wait_for_a_body_that_does_not_come(router):
    """RTR-13, RTR-02: whoever has no key cannot hold a connection for the time a body may take; it is told why."""
    started = time.monotonic()
    clients = [router.connect() for _ in range(3)]
    lines = ("POST /v1/chat/completions", "GET /v1/nothing", "DELETE /healthz")
    for client, line in zip(clients, lines, strict=True):
        client.send(f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{")
    for client, status in zip(clients, (401, 401, 405), strict=True):
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert client.more() == b""
        client.sock.close()
    assert time.monotonic() - started < 24
    assert "failed" not in router.log.read_text()


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/v1/models"])
def test_a_page_takes_no_large_body(router, path):
    """RTR-13: pages need no key, so a body sent to one is not kept in memory, nor waited for."""
    for framing in ("Content-Length: 30000000", "Transfer-Encoding: chunked"):
        with router.connect() as client:
            client.send(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{framing}\r\n\r\n")
            answer = client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_a_small_body_nobody_wants_keeps_the_connection(router):
    """RTR-18: it is read past, however it is cut, and the next request is answered."""
    with router.connect() as client:
        for start in (f"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\n", "POST /healthz HTTP/1.1\r\n"):
            client.send(start + "Host: x\r\nContent-Length: 6\r\n\r\nab")
            time.sleep(0.02)
            client.send("cdef")
            assert client.answer().status in (200, 405)
        client.post(CHAT)
        assert client.answer().status == 200


@pytest.mark.parametrize("change", ["key", "model"])
def test_what_ends_while_a_body_arrives(tmp_path, upstream, change):
    """RTR-12, RTR-03: a body can take minutes; a key revoked or a model switched off meanwhile counts at its end."""
    with Router(tmp_path, table(upstream)) as router, router.connect() as client:
        seen = len(upstream.received)
        client.send(f"{HEAD}{len(CHAT)}\r\n\r\n{CHAT[:9]}")
        time.sleep(0.1)
        if change == "key":
            fresh = table(upstream, generation="g2", keys=(routed_key("sk-llmgw-another", "k2"),))
        else:
            fresh = table(upstream, "off", generation="g2")
        router.control.publish(fresh)
        until(lambda: "generation=g2" in router.log.read_text(), 5, "the new table")
        client.send(CHAT[9:])
        assert client.answer().code == {"key": "invalid_api_key", "model": "model_off"}[change]
        assert len(upstream.received) == seen


@pytest.mark.parametrize("sent", ["", "GET /healthz HTTP/1.1\r\n"])
def test_an_idle_crowd_keeps_nobody_out(router, sent):
    """RTR-13: with the connections nearly used up, those that are idle for longest end, and those that do not end
    their request's head."""
    crowd = []
    try:
        started = time.monotonic()
        for _ in range(60):
            crowd.append(router.connect())
            crowd[-1].send(sent)
        assert router.get("/healthz").status == 200
        assert time.monotonic() - started < 20
    finally:
        for client in crowd:
            client.sock.close()


def test_a_busy_connection_is_not_idle(router, upstream):
    """RTR-13: who waits for an answer is no part of the crowd."""
    release = threading.Event()
    upstream.script.append(fake.hold(fake.chunked(fake.event({})), release, fake.chunked(fake.DONE) + fake.LAST))
    with router.connect() as busy:
        busy.post('{"model":"m","stream":true}')
        busy.read_until(b"data:")
        crowd = [router.connect() for _ in range(45)]
        assert router.get("/healthz").status == 200
        release.set()
        assert busy.answer().complete
    for client in crowd:
        client.sock.close()


def test_many_files_may_be_open(tmp_path, upstream):
    """RTR-13: each connection is a file; the usual soft limit of 1024 is below ``limits.connections``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        router = Router(tmp_path, table(upstream))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with router:
        for pid in (router.process.pid, *router.workers):
            assert psutil.Process(pid).rlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_odd_timing_leaks_nothing(tmp_path, upstream):
    """RTR-11, RTR-13: requests in single bytes, half closed, reset at any byte, with rubbish behind them: files and
    slots all come back, and nothing of it is an error of the router's own."""
    whole = f"{HEAD}{len(CHAT)}\r\n\r\n{CHAT}".encode()
    with Router(tmp_path, table(upstream), timeouts={"header": "300ms", "body": "300ms"}) as router:
        worker = psutil.Process(router.workers[0])
        assert router.get("/healthz").status == 200
        before = worker.num_fds()
        with router.connect() as client:
            for at in range(len(whole)):
                client.send(whole[at : at + 1])
            assert client.answer().status == 200
        for at in range(0, len(whole) + 1, 3):
            client = router.connect()
            client.send(whole[:at])
            if at % 2:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.sock.close()
        for behind in (b"\0\1\2\r\n\r\n", b"GET", b"\r\n" * 50, whole[:40]):
            with router.connect() as client:
                client.send(whole + behind)
                assert client.answer().status == 200
        until(lambda: worker.num_fds() <= before + 2, 8, "the files")  # a poll and a report may be on their way
        since = len(router.control.reports)
        until(lambda: len(router.control.reports) > since + 1, 5, "a report")
        assert [load.inflight for load in router.control.reports[-1].endpoints] == [0]
        assert router.workers == [worker.pid]
        assert "Traceback" not in router.log.read_text()
