"""What happens to nodes while models run on them: a control plane that comes back, a second node,
cordons, another address, ports taken by strangers (REC-24, REC-25, PLC-03, PLC-13)."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.harness import Cluster, until
from tests.harness.layout import NODE
from tests.harness.models import sim_model
from tests.harness.streams import OpenStream

OTHER = "node-b"
PATIENT = {"settling": {"steady": "20s", "limit": "30s"}}
"""Settling that outlasts a node which is away for the time of a test."""

Make = Callable[..., Cluster]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    """Installations with the simulated engine only."""
    with ExitStack() as stack:
        yield lambda catalog, **options: stack.enter_context(Cluster(tmp_path, catalog, **options))


def test_a_returned_control_plane_waits_for_the_node_that_has_the_engine(cluster: Make) -> None:
    """Case 17, REC-24, REC-25: one node is back at once, the other, whose engine serves, is late. No second
    engine is started meanwhile, no new request fails, and the first one is adopted.

    Without settling the model would be placed on the node that is there; without routers that keep what they
    know while it lasts, requests would fail.
    """
    c = cluster(
        {"simulated": sim_model("--loop", "--decode-rate", "40", "--context", "100000")},
        controlplane=PATIENT,
        nodes=(NODE, OTHER),
    ).start()
    client = c.client(c.serve("simulated"))
    replica = c.replica("simulated")
    (home,) = {shard["node"] for shard in replica["shards"]}
    (away,) = {NODE, OTHER} - {home}
    pids = c.engine_pids()
    stream = OpenStream(client, "simulated", max_tokens=90_000)
    stream.goes_on()

    c.part(home).pause()
    c.controlplane.kill()
    assert c.answers(client, "simulated")
    c.controlplane.restart()
    until(lambda: c.admin_up() and c.node_in_session(away), 15, "the node without the engine is back")
    assert c.api("status")["settling"]["active"]
    begin = c.api("status")["uptime_seconds"]
    while c.api("status")["uptime_seconds"] < begin + 1.2:  # some passes of the loop
        assert c.answers(client, "simulated")
    assert c.engine_pids() == pids
    c.part(home).resume()
    until(lambda: c.replica("simulated")["id"] == replica["id"], 15, "it is known again")
    until(lambda: not c.api("status")["settling"]["active"], 10, "settled")
    stream.goes_on()
    assert c.answers(client, "simulated")
    assert c.engine_pids() == pids
    stream.close()


def test_a_cordon_outlives_its_node_and_its_control_plane(cluster: Make) -> None:
    """Case 22, PLC-03: nothing but a person ends it: not a registration, not a restart of either side.
    What runs goes on."""
    c = cluster({"first": sim_model()}).start()
    c.serve("first")
    before = c.engine_pids()
    c.llmgw("ctl", "cordon", NODE, "--reason", "new disks")
    c.agent.kill()
    c.agent.restart()
    until(lambda: c.replica("first")["shards"][0]["adopted"], 15, "the agent is back")
    assert c.api(f"nodes/{NODE}")["cordon"]["reason"] == "new disks"
    c.controlplane.kill()
    c.set_catalog({"first": sim_model(), "second": sim_model()})
    c.controlplane.restart()
    until(lambda: c.admin_up() and c.node_in_session(), 15, "the control plane is back")
    assert c.api(f"nodes/{NODE}")["cordon"]["reason"] == "new disks"

    def refused() -> bool:
        explained = c.api("models/second/explain")
        return "node_cordoned" in {r["code"] for one in explained["candidates"] for r in one["reasons"]}

    until(refused, 10, "explain names the cordon")
    assert c.engine_pids() == before
    c.llmgw("ctl", "uncordon", NODE)
    until(lambda: c.replica("second"), 15, "placed once the cordon is gone")


def test_a_silent_node_goes_on_serving(cluster: Make) -> None:
    """REC-10: a node that is not heard from gets nothing new and keeps what it has: its engine serves, and is the
    same one when the node is heard again."""
    c = cluster({"simulated": sim_model()}).start()
    client = c.client(c.serve("simulated"))
    before, replica = c.engine_pids(), c.replica("simulated")
    c.agent.signal(signal.SIGSTOP)
    until(lambda: c.api(f"nodes/{NODE}")["status"] == "unreachable", 15, "it is missed")
    begin = c.api("status")["uptime_seconds"]
    while c.api("status")["uptime_seconds"] < begin + 1.2:
        assert c.answers(client, "simulated")
    c.agent.signal(signal.SIGCONT)
    until(lambda: c.node_in_session() and c.replica("simulated"), 15, "it is heard again")
    assert c.replica("simulated")["id"] == replica["id"]
    assert c.engine_pids() == before


def test_a_node_at_another_address_keeps_its_replicas(cluster: Make) -> None:
    """Case 30: a node is who it says by its credential, wherever it is. Its engine goes on serving where it
    listens."""
    c = cluster({"simulated": sim_model()}).start()
    client = c.client(c.serve("simulated"))
    before, replica = c.engine_pids(), c.replica("simulated")
    c.agent.stop()
    settings = yaml.safe_load(c.settings("agent").read_text())
    c.settings("agent").write_text(yaml.safe_dump({**settings, "address": "127.0.0.2"}))
    c.agent.restart()
    until(lambda: c.api(f"nodes/{NODE}")["address"] == "127.0.0.2", 20, "the new address")
    until(lambda: c.replica("simulated")["shards"][0]["adopted"], 10, "adopted")
    begin = c.api("status")["uptime_seconds"]
    while c.api("status")["uptime_seconds"] < begin + 1.2:
        assert c.answers(client, "simulated")
    assert c.engine_pids() == before
    assert c.replica("simulated")["id"] == replica["id"]


def test_ports_that_strangers_hold_are_passed_over(cluster: Make) -> None:
    """Case 18, PLC-13: a listener, and an outgoing connection, on the ports an engine would get; it starts on
    another one, and the strangers are left alone."""
    c = cluster({})
    with ExitStack() as stack:
        outgoing, held, listener = strangers(c, stack)
        c.set_catalog({"simulated": sim_model()})
        c.start()
        c.serve("simulated", seconds=15)
        (shard,) = c.replica("simulated")["shards"]
        assert shard["port"] not in held
        accepted, _ = listener.accept()
        with accepted:
            outgoing.sendall(b"still here")
            assert accepted.recv(16) == b"still here"


def strangers(cluster: Cluster, stack: ExitStack) -> tuple[socket.socket, list[int], socket.socket]:
    """Hold the lowest engine ports: by listeners, and the highest of them by an outgoing connection to the
    first one. Returns that connection, the ports, and the first listener."""
    first, last = cluster.engine_ports
    listeners = [stack.enter_context(socket.create_server(("127.0.0.1", first)))]
    for port in range(first + 1, last):
        outgoing = stack.enter_context(socket.socket())
        try:
            outgoing.bind(("127.0.0.1", port))  # not where a connection of another test is in TIME_WAIT
        except OSError:
            listeners.append(stack.enter_context(socket.create_server(("127.0.0.1", port))))
            continue
        outgoing.connect(("127.0.0.1", first))
        return outgoing, list(range(first, port + 1)), listeners[0]
    raise AssertionError("no engine port is free")
