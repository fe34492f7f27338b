"""``kill -9`` of each part while a stream runs (REC-20 to REC-25, AGT-07, AGT-09, RTR-15)."""

import http.client
import os
import signal
from collections.abc import Callable
from typing import Any

from tests.harness import Cluster, until
from tests.harness.models import sim_model
from tests.harness.streams import OpenStream, RawStream, children, closing_all, server_of

Make = Callable[..., Cluster]


def settled(cluster: Cluster) -> bool:
    """Whether the control plane is up and past settling."""
    return cluster.admin_up() and not cluster.api("status")["settling"]["active"]


def passes(cluster: Cluster, seconds: float = 2.0) -> None:
    """Let the loop look at the world a few times (its interval is half a second here): what a
    wrong decision needs to show."""
    seen = cluster.api("status")["uptime_seconds"]
    until(lambda: cluster.api("status")["uptime_seconds"] > seen + seconds, seconds + 10)


def test_control_plane_killed(cluster: Make, models: dict[str, Any]) -> None:
    """REC-25: streams and new requests go on without it; after its return the same engine
    serves, under the same replica id, and nothing was started or stopped.

    Without adoption and settling the returned control plane would know no replica and
    place a second one: two engine processes, or the first one stopped as unknown.
    """
    c = cluster({"endless": models["endless"]}).start()
    key = c.serve("endless")
    client = c.client(key)
    before, replica = c.engine_pids(), c.replica("endless")
    stream = OpenStream(client, "endless", max_tokens=20_000)
    stream.goes_on()

    c.controlplane.kill()
    assert not c.admin_up()
    stream.goes_on(10)
    assert c.answers(client, "endless")

    c.controlplane.restart()
    until(lambda: settled(c), 20, "the control plane is back and settled")
    again = until(lambda: c.replica("endless"), 15, "the replica is known again")
    passes(c)
    assert c.replica("endless")["id"] == replica["id"] == again["id"]
    assert again["shards"][0]["pid"] == replica["shards"][0]["pid"]
    assert c.engine_pids() == before
    assert c.answers(client, "endless")
    assert c.answers(c.client(c.make_key("after")), "endless")
    stream.goes_on()
    stream.close()


def test_router_serves_from_disk_while_no_control_plane_answers(cluster: Make, models: dict[str, Any]) -> None:
    """RTR-03: a router that starts while no control plane is there uses its last table."""
    c = cluster({"tiny": models["tiny"]}).start()
    client = c.client(c.serve("tiny"))
    c.controlplane.kill()
    c.router.kill()
    until(lambda: not c.router_up(), 10, "the workers noticed that their master is gone")
    c.router.restart()
    until(c.router_up, 15, "the router is ready without a control plane")
    assert c.answers(client, "tiny")


def test_agent_killed(cluster: Make, models: dict[str, Any]) -> None:
    """AGT-07, case 15: the engine and its stream go on; the new agent adopts the same process.

    Without adoption the engine would be killed as unidentified, or started a second time.
    """
    c = cluster({"endless": models["endless"]}).start()
    client = c.client(c.serve("endless"))
    before, replica = c.engine_pids(), c.replica("endless")
    stream = OpenStream(client, "endless", max_tokens=20_000)
    stream.goes_on()

    c.agent.kill()
    stream.goes_on(10)
    assert c.engine_pids() == before
    c.agent.restart()
    until(lambda: c.replica("endless")["shards"][0]["adopted"], 20, "adopted")
    passes(c)
    adopted = c.replica("endless")
    assert adopted["id"] == replica["id"]
    assert adopted["shards"][0]["pid"] == replica["shards"][0]["pid"]
    assert c.engine_pids() == before
    stream.goes_on()
    stream.close()
    assert c.answers(client, "endless")

    # The adopted engine is watched and ended like any other.
    c.set_catalog({})
    c.reload()
    until(lambda: not c.engine_pids(), 20, "the adopted engine is stopped")


def test_agent_stopped_leaves_its_engines(cluster: Make, models: dict[str, Any]) -> None:
    """AGT-09: SIGTERM ends the agent alone."""
    c = cluster({"tiny": models["tiny"]}).start()
    client = c.client(c.serve("tiny"))
    before = c.engine_pids()
    assert c.agent.stop() == 0
    assert c.engine_pids() == before
    assert c.answers(client, "tiny")
    c.agent.restart()
    until(lambda: c.replica("tiny")["shards"][0]["adopted"], 20, "adopted")
    assert c.engine_pids() == before


def test_engine_killed(cluster: Make, models: dict[str, Any]) -> None:
    """REC-03: a dead engine is replaced by a new replica; why is told where a person looks;
    the stream that it cut ends with an error and not as if it were whole (case 5)."""
    c = cluster({"endless": models["endless"], "other": models["tiny"]}).start()
    key = c.serve("endless", "other")
    client = c.client(key)
    replica, other = c.replica("endless"), c.engine_pid("other")
    stream = OpenStream(client, "endless", max_tokens=20_000)
    stream.goes_on()

    os.kill(replica["shards"][0]["pid"], signal.SIGKILL)
    until(lambda: not stream.is_alive(), 10, "the stream ended")
    assert stream.error is not None, "the cut stream looked whole"
    assert stream.finish is None

    def replaced() -> bool:
        return bool(c.replica("endless")["id"] != replica["id"])

    until(replaced, 20, "a new replica is ready")
    assert c.replica("endless")["shards"][0]["pid"] != replica["shards"][0]["pid"]
    until(lambda: c.answers(client, "endless"), 10, "it serves")
    shown = c.api("models/endless")
    assert "signal 9" in shown["last_error"] or "SIGKILL" in shown["last_error"], shown["last_error"]
    told = c.ctl("models") + c.ctl("replicas") + c.ctl("explain", "endless")
    assert "signal 9" in told or "SIGKILL" in told, told
    assert c.engine_pid("other") == other


def test_engine_that_never_starts_is_parked(cluster: Make) -> None:
    """REC-05: after five failures nothing is tried any more; the engine's own words are shown."""
    c = cluster({"broken": sim_model("--fail", "exit-on-start=7")}).start()
    until(lambda: c.api("models/broken")["parked"], 40, "parked")
    shown = c.api("models/broken")
    assert shown["failures"] == 5
    assert "failed to load the model" in "\n".join(shown["last_output"])
    key = c.make_key()

    def told() -> bool:
        try:
            c.client(key).completions.create(model="broken", prompt="x")
        except Exception as error:  # noqa: BLE001 - the code is what is asserted
            assert getattr(error, "code", None) == "model_parked", repr(error)
            assert getattr(error, "status_code", None) == 503
            return True
        return False

    until(told, 10, "the router says so")
    assert "parked" in c.ctl("status")
    assert not c.engine_pids()


def test_router_worker_killed(cluster: Make) -> None:
    """RTR-15: the streams of other workers go on, a new worker takes its place, and no request
    that comes afterwards is lost.

    Workers that shared connections or state in a way that dies with one of them would
    break all streams.
    """
    c = cluster({"simulated": sim_model("--loop", "--decode-rate", "40", "--slots", "64", "--context", "100000")})
    key = c.start().serve("simulated")
    until(lambda: len(children(c.router.pid)) == 2, 10, "two workers")
    workers = children(c.router.pid)
    body = {"model": "simulated", "prompt": "x", "max_tokens": 90_000}
    with closing_all([]) as streams:
        owner: dict[int, list[RawStream]] = {worker: [] for worker in workers}
        while not all(owner.values()):
            assert len(streams) < 48, "one worker gets no connection at all"
            streams.append(RawStream(c.router_port, key, body))
            assert streams[-1].line()
            found = server_of(streams[-1].local_port, c.router_port, workers)
            assert found is not None
            owner[found].append(streams[-1])
        victim, survivor = workers
        os.kill(victim, signal.SIGKILL)
        for stream in owner[victim]:
            try:
                while stream.line():
                    pass
            except (OSError, http.client.HTTPException):
                continue
        for stream in owner[survivor]:
            for _ in range(60):
                assert stream.line().startswith(b"data: ")
        until(lambda: len(children(c.router.pid)) == 2 and victim not in children(c.router.pid), 10, "a new worker")
        assert survivor in children(c.router.pid)
        for _ in range(20):
            assert c.answers(c.client(key), "simulated")
