"""Watching processes through the driver's own functions, on the fake supervisor."""

import gevent
import pytest
from gevent.queue import Queue

from agent import watch
from agent.engines.base import Command
from agent.events import Exited, Gone, Lingering
from llmgw.wire.messages import ShardKey
from tests.fakes.supervisor import FakeSupervisor, Program, World
from tests.unit.agent.shards import make_spec

KEY = ShardKey("m-00000001", 0, 1)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(watch, "LINGER", 0.05)
    monkeypatch.setattr(watch, "POLL", 0.01)


def started(program):
    supervisor = FakeSupervisor(World())
    process = supervisor.launch(KEY, (Command(("program", program.to_json()), {}),))
    return supervisor, process


def test_a_main_process_that_survives_sigkill_is_named():
    """Case 19: a drain that cannot end names its blocker, also when the blocker is the
    main process itself, which never ends and so never leads to `Exited`."""
    supervisor, process = started(Program(hangs=True))
    told = Queue()
    watcher = gevent.spawn(watch.watch_shard, supervisor, make_spec(KEY.replica_id), told.put)
    try:
        watch.signal_shard(supervisor, KEY, "KILL", told.put)
        assert told.get(timeout=5) == Lingering(KEY, (process.pid,))
    finally:
        watcher.kill()


def test_what_dies_of_sigkill_is_not_lingering():
    """Only what is left is told."""
    supervisor, _ = started(Program(on_term="ignore"))
    told = Queue()
    watcher = gevent.spawn(watch.watch_shard, supervisor, make_spec(KEY.replica_id), told.put)
    watch.signal_shard(supervisor, KEY, "TERM", told.put)
    assert told.empty()
    watch.signal_shard(supervisor, KEY, "KILL", told.put)
    watcher.join(5)
    assert [type(each) for each in told.queue] == [Exited, Gone]
