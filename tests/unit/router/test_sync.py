import os
import random
import threading
from pathlib import Path

import gevent
import pytest

from llmgw.identity.holder import Holder
from llmgw.identity.names import Identity
from llmgw.runtime.settings import Address
from llmgw.wire.routing import Endpoint, RoutedModel, RouteTable, encode
from router.control import Control
from router.report import build as report
from router.sync import WITHOUT_TABLE, Backoff, Sync
from router.table import build

TABLE = RouteTable(
    generation="g1",
    models=(
        RoutedModel(
            name="m",
            state="ready",
            endpoints=(Endpoint(id="e", host="h", port=1, upstream_model="m", key="ek-secret-1234"),),
        ),
    ),
)
CONTROL = Control((Address("127.0.0.1", 1),), "r1", Holder(Path("/nowhere"), Identity("router", "r1")))


def restore(file):
    used = []
    Sync(CONTROL, file, used.append).restore()
    return used


def test_the_table_on_disk_is_used(tmp_path):
    """RTR-03: a router restarts while no control plane answers."""
    file = tmp_path / "table.json"
    assert restore(file) == []
    file.write_bytes(encode(TABLE))
    assert restore(file) == [TABLE]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"generation":1}', b"\xff\x00", b'{"generation":"g","models":[{}]}']
)
def test_a_damaged_table_is_ignored(tmp_path, content, caplog):
    """RTR-03: with a word in the log."""
    file = tmp_path / "table.json"
    file.write_bytes(content)
    assert restore(file) == []
    assert "is damaged and was ignored" in caplog.text


def test_a_table_that_cannot_be_read(tmp_path, caplog):
    """RTR-03: a directory in its place is no crash either."""
    assert restore(tmp_path) == []
    assert "cannot be read" in caplog.text


def test_a_pipe_instead_of_the_table(tmp_path, caplog):
    """RTR-03: a worker starts without the table rather than wait for somebody to write one."""
    pipe = tmp_path / "table"
    os.mkfifo(pipe, 0o600)
    restoring = threading.Thread(target=Sync(CONTROL, pipe, lambda table: None).restore, daemon=True)
    restoring.start()
    restoring.join(5)
    assert not restoring.is_alive()
    assert "cannot be read" in caplog.text


def test_backoff():
    """RTR-03: grows, is bounded, never the same for two routers, starts again after a success."""
    backoff = Backoff(random.Random(1), first=1.0, longest=8.0)
    waits = [backoff.next() for _ in range(50)]
    for wait, limit in zip(waits, [1, 2, 4, 8, 8, 8], strict=False):
        assert limit / 2 <= wait <= limit
    assert max(waits) <= 8
    assert len(set(waits)) == len(waits)
    backoff.reset()
    assert backoff.next() <= 1.0
    assert Backoff(random.Random(2)).next() != Backoff(random.Random(3)).next()


def test_a_report():
    """DEM-01: what is in flight, since when idle; unknown is absent, not zero."""
    routes = build(TABLE)
    live = routes.live["e"]
    (load,) = report(routes, "boot", 3, 100.0).endpoints
    assert (load.inflight, load.idle_seconds, load.answered_seconds, load.failures) == (0, None, None, 0)
    live.inflight, live.used_at, live.answered_at, live.failures = 2, 90.0, 97.5, 1
    told = report(routes, "boot", 4, 100.0)
    (load,) = told.endpoints
    assert (load.inflight, load.idle_seconds, load.answered_seconds, load.failures) == (2, 10.0, 2.5, 1)
    assert (told.boot, told.sequence, told.generation) == ("boot", 4, "g1")


def test_secrets_have_no_repr():
    """SEC-03: an engine's key is in nothing that a log line would show."""
    assert "ek-secret" not in repr(TABLE.models[0].endpoints[0])
    assert "ek-secret" not in repr(build(TABLE).live["e"])


def test_a_failed_first_poll_counts_only_with_a_table_at_hand(tmp_path):
    """RTR-15: parts that start together. Without a table a worker waits on, and asks again soon,
    rather than refuse what its siblings can serve; with the table on disk it serves at once."""
    file = tmp_path / "table.json"
    sync = Sync(CONTROL, file, lambda table: None)
    polling = gevent.spawn(sync.run)
    try:
        assert not sync.asked.wait(0.7)
        assert sync.failing
        assert max(sync._pause() for _ in range(20)) <= WITHOUT_TABLE
    finally:
        polling.kill()
    file.write_bytes(encode(TABLE))
    sync = Sync(CONTROL, file, lambda table: None)
    sync.restore()
    polling = gevent.spawn(sync.run)
    try:
        assert sync.asked.wait(5)
        assert sync.failing
    finally:
        polling.kill()
