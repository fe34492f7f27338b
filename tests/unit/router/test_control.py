"""A control plane that answers without end, or without a pause; reports of endpoints that left."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import gevent
import pytest

from llmgw.runtime.settings import Address
from llmgw.wire.routing import Endpoint, RoutedModel, RouteTable
from router import report
from router.control import Control, ControlError
from router.sync import Sync
from router.table import build

ROOT = Path(__file__).parents[3]

ASK = """
from gevent import monkey; monkey.patch_all()
import sys, time
from llmgw.runtime.settings import Address
from router.control import Control, ControlError
began = time.monotonic()
try:
    Control(Address("127.0.0.1", int(sys.argv[1])), "r1", "rt-secret")._send("GET", "/", b"", 0.5, 100)
except ControlError as error:
    print(time.monotonic() - began, error)
"""


def test_an_answer_that_never_ends():
    """RTR-03: a bound on each read is none on the whole: one byte at a time would hold up the poll for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def drip():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n")
                while not done.wait(0.1):
                    connection.sendall(b"a")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            ran = subprocess.run(
                [sys.executable, "-c", ASK, str(listener.getsockname()[1])],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
        finally:
            done.set()
            thread.join(5)
    seconds, _, words = ran.stdout.partition(" ")
    assert float(seconds) < 5, ran.stderr
    assert "took too long" in words
    assert "rt-secret" not in words


@pytest.mark.parametrize(("host", "router_id"), [("a" * 80, "r1"), ("127.0.0.1", "机")])
def test_what_cannot_be_asked_is_told(host, router_id):
    """RTR-03: the poll goes on; it does not end the worker with an exception."""
    with pytest.raises(ControlError):
        Control(Address(host, 1), router_id, "t").table("", 1.0)


@pytest.mark.parametrize("again", [None, RouteTable(generation="")])
def test_a_control_plane_that_does_not_wait(tmp_path, again):
    """RTR-03: answers without news that come at once are not asked for without pause."""

    class Hasty:
        polls = 0

        def table(self, generation, wait):
            del generation, wait
            self.polls += 1
            gevent.sleep(0)
            return again

    hasty = Hasty()
    greenlet = gevent.spawn(Sync(hasty, tmp_path / "table", lambda fresh: None).run)
    gevent.sleep(0.4)
    greenlet.kill()
    assert 1 <= hasty.polls < 10


def test_failures_of_an_endpoint_that_left_are_told_once(monkeypatch):
    """DEM-01: like those of any other endpoint; else each report would tell them anew."""
    monkeypatch.setattr(report, "INTERVAL", 0.0)
    model = RoutedModel(
        name="m", state="ready", endpoints=(Endpoint(id="a", host="127.0.0.1", port=1, upstream_model="m"),)
    )
    before = build(RouteTable(generation="1", models=(model,)))
    before.live["a"].inflight = 1
    before.live["a"].failures = 3
    routes = build(RouteTable(generation="2"), before)
    told = []

    class Enough(Exception):
        pass

    class Recorder:
        def report(self, sent):
            if len(told) == 3:
                raise Enough
            told.append({load.id: load.failures for load in sent.endpoints})

    with pytest.raises(Enough):
        report.Reporter(Recorder()).run(lambda: routes)
    assert told == [{"a": 3}, {"a": 0}, {"a": 0}]
