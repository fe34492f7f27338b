"""Replicas that are to go while requests run on them (REC-06)."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

from tests.harness import Cluster, until
from tests.harness.models import sim_model
from tests.harness.streams import OpenStream

Make = Callable[..., Cluster]
ENDLESS = ("--loop", "--decode-rate", "20", "--context", "100000")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    """Installations with the simulated engine only."""
    with ExitStack() as stack:
        yield lambda catalog, **options: stack.enter_context(Cluster(tmp_path, catalog, **options))


def shown(cluster: Cluster) -> list[dict[str, Any]]:
    """Every replica the control plane knows."""
    return list(cluster.api("replicas")["replicas"])


def active(port: int) -> int:
    """Requests that a simulated engine works on."""
    return int(requests.get(f"http://127.0.0.1:{port}/sim/state", timeout=5).json()["active"])


def test_a_drain_has_an_end(cluster: Make) -> None:
    """Case 19, REC-06: a stream that would not end is cut at the end of the grace, told to its client as an
    error; the drain is done when the agent says that no process is left, though the engine ignores SIGTERM."""
    c = cluster(
        {"going": sim_model(*ENDLESS, "--fail", "ignore-sigterm")},
        controlplane={"drain": {"grace": "1500ms"}, "stop": {"grace": "1s"}},
    ).start()
    client = c.client(c.serve("going"))
    (pid,) = c.engine_pids()
    stream = OpenStream(client, "going", max_tokens=90_000)
    stream.goes_on(2)

    c.set_catalog({})
    c.reload()
    until(lambda: [r["state"] for r in shown(c)] == ["draining"], 10, "the drain begins")
    stream.goes_on(5)

    def gone() -> bool:
        # Asked first, looked at second: what is told as gone must be gone.
        told = shown(c)
        assert told or pid not in c.engine_pids(), "told as gone while its process was there"
        return not told

    until(lambda: not stream.is_alive(), 10, "the stream is cut")
    assert isinstance(stream.error, openai.APIError), repr(stream.error)
    assert stream.finish is None
    until(gone, 10, "the replica is gone")


def test_a_drain_names_what_it_waits_for(cluster: Make) -> None:
    """Case 19: while its node is away nothing confirms the end: the replica stays, shown with what it waits
    for, and is over once the agent says so."""
    c = cluster({"going": sim_model()}).start()
    c.serve("going")
    (pid,) = c.engine_pids()
    c.agent.signal(signal.SIGSTOP)
    c.set_catalog({})
    c.reload()
    until(lambda: [r["state"] for r in shown(c)] == ["stopping"], 10, "the stop is decided")
    (replica,) = shown(c)
    assert "going" in replica["id"]
    assert "catalog" in replica["reason"]
    assert pid in c.engine_pids()
    told = c.ctl("replicas")
    assert replica["id"] in told
    assert "stopping" in told
    c.agent.signal(signal.SIGCONT)
    until(lambda: not shown(c), 10, "the agent confirmed")
    assert not c.engine_pids()


def test_fewer_replicas_cut_no_stream(cluster: Make) -> None:
    """Case 24: two replicas, each with a stream, become one: both streams end whole, nothing new goes to the
    one that leaves, and then its engine is stopped."""
    catalog = {"scaled": sim_model(*ENDLESS, replicas=2)}
    c = cluster(catalog, controlplane={"drain": {"grace": "30s"}}, router={"workers": 1}).start()
    until(lambda: c.api("models/scaled")["ready"] == 2, 15, "both are ready")
    key = c.make_key()
    client = c.client(key)
    until(lambda: c.answers(client, "scaled"), 10, "the router serves it")
    before = c.engine_pids()
    streams = [OpenStream(client, "scaled", max_tokens=60) for _ in range(2)]
    for stream in streams:
        stream.goes_on(2)
    assert [active(r["shards"][0]["port"]) for r in shown(c)] == [1, 1], "one replica has no stream"
    c.set_catalog({"scaled": sim_model(*ENDLESS, replicas=1)})
    c.reload()
    until(lambda: "draining" in {r["state"] for r in shown(c)}, 10, "one leaves")
    assert all(stream.is_alive() for stream in streams), "the streams were over before the test could see the drain"
    assert c.engine_pids() == before
    for stream in streams:
        until(lambda stream=stream: not stream.is_alive(), 15, "the stream's end")  # type: ignore[misc]
        assert stream.error is None
        assert stream.finish == "length"
        assert len([piece for piece in stream.pieces if piece]) == 60
    until(lambda: len(c.engine_pids()) == 1, 15, "one engine is left")
    assert c.engine_pids() < before
    assert c.answers(client, "scaled")


def test_a_drain_goes_on_under_a_new_control_plane(cluster: Make) -> None:
    """Cases 17 and 19, REC-25: killed in the middle of a drain, it comes back with a catalog without the model
    and finds an engine of it. The stream ends whole, nothing new gets there, and then the engine is stopped."""
    c = cluster(
        {"going": sim_model(*ENDLESS), "staying": sim_model()}, controlplane={"drain": {"grace": "30s"}}
    ).start()
    client = c.client(c.serve("going", "staying"))
    going, staying = c.engine_pid("going"), c.engine_pid("staying")
    stream = OpenStream(client, "going", max_tokens=300)
    stream.goes_on(2)
    c.set_catalog({"staying": sim_model()})
    c.reload()
    until(lambda: "draining" in {r["state"] for r in shown(c)}, 10, "the drain begins")
    c.controlplane.kill()
    c.controlplane.restart()
    until(lambda: c.admin_up() and not c.api("status")["settling"]["active"], 15, "settled")
    assert stream.is_alive(), "the stream was over before the test could see the return"
    assert c.engine_pids() == {going, staying}
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="going", prompt="x", max_tokens=1)
    until(lambda: not stream.is_alive(), 15, "the stream's end")
    assert (stream.error, stream.finish) == (None, "length")
    until(lambda: c.engine_pids() == {staying}, 15, "its engine is stopped")
    assert c.answers(client, "staying")
