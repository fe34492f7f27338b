"""A control plane whose store is a PostgreSQL server that comes and goes (STO-03, HA-01)."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from llmgw.wire.messages import HeartbeatAck, Welcome
from tests.fakes.controlplane import ControlPlane, until
from tests.fakes.postgresql import Server

STARTING = 90.0
"""Seconds a process may take to get going: where processors are busy some need ten and more."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server().start()
    yield made
    made.close()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with server.database() as made:
        yield made


def cordon(control_plane: ControlPlane, reason: str) -> requests.Response:
    """An order that only the store can take."""
    return requests.post(
        f"{control_plane.api}/api/v1/nodes/node-1/cordon",
        headers=control_plane.auth,
        json={"reason": reason},
        timeout=30,
    )


def reason(control_plane: ControlPlane) -> str | None:
    """Why the node is cordoned."""
    cordon = control_plane.get("nodes/node-1")["cordon"]
    return cordon["reason"] if cordon else None


def launch(control_plane: ControlPlane) -> subprocess.Popen[bytes]:
    """The same without waiting for it."""
    command = [sys.executable, "-m", "controlplane.main", "--config", str(control_plane.config)]
    with control_plane.log_file.open("ab") as log:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)


def test_it_serves_from_postgresql_and_remembers(url: str, tmp_path: Path) -> None:
    """STO-01: what people decided and the epoch outlive the process; no SQLite file is made."""
    control_plane = ControlPlane(tmp_path, nodes=("node-1",), store__url=url).start()
    assert cordon(control_plane, "disk").status_code == 200
    epoch = control_plane.get("status")["epoch"]
    assert control_plane.stop() == 0
    control_plane.start()
    assert reason(control_plane) == "disk"
    assert control_plane.get("status")["epoch"] > epoch
    assert control_plane.stop() == 0
    assert not (control_plane.state / "llmgw.db").exists()


def test_a_server_that_comes_later_is_waited_for(server: Server, url: str, tmp_path: Path) -> None:
    """STO-03: logged why; SIGTERM ends the waiting; it goes on by itself once the server is there."""
    control_plane = ControlPlane(tmp_path, nodes=("node-1",), store__url=url)
    server.stop()
    waiting = launch(control_plane)
    until(lambda: "cannot be opened yet" in control_plane.log(), "it says that it waits")
    assert waiting.poll() is None
    began = time.monotonic()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(10) == 0, control_plane.log()
    assert time.monotonic() - began < 15
    control_plane.log_file.unlink()
    starting = threading.Thread(target=control_plane.start)
    starting.start()
    until(
        lambda: control_plane.log_file.exists() and "cannot be opened yet" in control_plane.log(),
        "it waits again",
        timeout=STARTING,
    )
    server.start()
    starting.join()
    assert cordon(control_plane, "disk").status_code == 200
    assert control_plane.stop() == 0
    assert "Traceback" not in control_plane.log()


def test_an_empty_store_beside_a_used_one_is_refused_with_the_remedy(url: str, tmp_path: Path) -> None:
    """STO-02: keys, models and revocations are not forgotten without a word, at the start and by --check;
    who means it moves the old file away."""
    control_plane = ControlPlane(tmp_path, nodes=("node-1",))  # in the SQLite file of its state directory
    settings = yaml.safe_load(control_plane.config.read_text())
    control_plane.config.write_text(yaml.safe_dump(settings | {"store": {"url": url}}))
    command = [sys.executable, "-m", "controlplane.main", "--config", str(control_plane.config)]
    for arguments in ([], ["--check"]):
        done = subprocess.run([*command, *arguments], check=False, capture_output=True, text=True, timeout=STARTING)
        assert done.returncode == 2, done.stderr
        assert "store.url: names an empty store (postgresql://" in done.stderr
        assert "run llmgw store move" in done.stderr and "move " + str(control_plane.state) in done.stderr
        assert "Traceback" not in done.stderr
    old = control_plane.state / "llmgw.db"
    old.rename(tmp_path / "old.db")
    control_plane.start()
    assert control_plane.get("nodes")["nodes"] == []
    assert control_plane.stop() == 0


def test_a_second_control_plane_is_refused_with_the_remedy(url: str, tmp_path: Path) -> None:
    """HA-01: another machine's, too: it has a state directory of its own. It may start once the first is gone."""
    first, second = ((tmp_path / name) for name in ("first", "second"))
    first.mkdir()
    second.mkdir()
    one, two = ControlPlane(first, store__url=url).start(), ControlPlane(second, store__url=url)
    refused = launch(two)
    assert refused.wait(STARTING) == 2
    assert "store.url: " in two.log() and "another control plane uses it" in two.log()
    assert "Traceback" not in two.log()
    one.stop(signal.SIGKILL)
    two.start()
    assert two.stop() == 0


def test_heartbeats_go_on_while_the_server_is_away(server: Server, url: str, tmp_path: Path) -> None:
    """STO-03: changes are refused in words, everything else is as quick as ever; then all goes on."""
    control_plane = ControlPlane(tmp_path, store__url=url, store__timeout="6s").start()
    agent = control_plane.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    server.stop()
    refusing = threading.Thread(target=lambda: answers.append(cordon(control_plane, "away")))
    answers: list[requests.Response] = []
    refusing.start()
    for sequence in range(1, 21):
        began = time.monotonic()
        agent.heartbeat(sequence)
        agent.expect(HeartbeatAck)
        assert time.monotonic() - began < 1.0, "a hub that waits for the store waits six seconds"
    refusing.join()
    assert answers[0].status_code == 503 and answers[0].json()["code"] == "store_unavailable"
    assert "nothing was changed" in answers[0].text
    assert any(row["kind"] == "store" for row in control_plane.get("status")["problems"])
    server.start()
    assert cordon(control_plane, "back").status_code == 200
    assert reason(control_plane) == "back"
    agent.close()
    assert control_plane.stop() == 0
    assert "Traceback" not in control_plane.log()


def test_a_server_that_takes_no_writes_yet_is_waited_for(server: Server, tmp_path: Path) -> None:
    """STO-03, HA-01: a standby that is about to be promoted is no reason to give up; a table
    that is missing is."""
    name = server.create()
    control_plane = ControlPlane(tmp_path, nodes=("node-1",), store__url=server.url(name)).start()
    assert cordon(control_plane, "disk").status_code == 200
    assert control_plane.stop() == 0
    server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    control_plane.log_file.unlink()
    waiting = launch(control_plane)
    until(lambda: "may only be read" in control_plane.log(), "it says what it waits for", timeout=STARTING)
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(10) == 0, control_plane.log()
    starting = threading.Thread(target=control_plane.start)
    starting.start()
    server.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    starting.join()
    assert reason(control_plane) == "disk"
    assert control_plane.stop() == 0
    server.execute("DROP TABLE holds", name)
    refused = launch(control_plane)
    assert refused.wait(STARTING) == 2
    assert "a table of llmgw is missing" in control_plane.log() and "Traceback" not in control_plane.log()
