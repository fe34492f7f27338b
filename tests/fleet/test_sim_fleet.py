"""``llmgw sim-fleet``: many nodes over mutual TLS (issue of large fleets; SEC-01, AGT-03)."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.wire.messages import Goodbye, Refuse, ShardChanged, ShardSpec, Start
from tests.fleet.scripted_control_plane import ControlPlane
from tests.harness import identities

NODES = 8


class Run:
    """A running ``llmgw sim-fleet``."""

    def __init__(self, folder: Path, *more: str) -> None:
        authority = identities.ours().authority_folder(folder / "authority")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llmgw.cli", "sim-fleet", "--authority", str(authority), "-o", "json", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> dict[str, Any]:
        """Ctrl-C, and what it found."""
        self.process.send_signal(2)
        out, errors = self.process.communicate(timeout=60)
        assert "Traceback" not in errors, errors
        return json.loads(out)


@pytest.fixture
def control() -> Iterator[ControlPlane]:
    plane = ControlPlane()
    yield plane
    plane.close()


def test_every_node_shows_its_own_certificate_and_lives(control: ControlPlane, tmp_path: Path) -> None:
    """SEC-01: identities are made in memory from the authority; sessions, heartbeats, shards."""
    run = Run(tmp_path, "--control-plane", control.address, "--nodes", str(NODES), "--devices", "2")
    sessions = [control.session() for _ in range(NODES)]
    names = {hello.node_id for _, hello, _ in sessions}
    assert names == {f"sim-{index:05}" for index in range(NODES)}
    for peer, hello, registration in sessions:
        assert peer.uri == f"llmgw:node:{hello.node_id}"
        assert len(registration.inventory.devices) == 2 and hello.authorities
        assert len(peer.heartbeats.get(timeout=45).measurements.devices) == 2
    peer, hello, _ = sessions[0]
    spec = ShardSpec(
        replica_id="m-1", model="m", profile="p", fingerprint="f", engine="sim", source="sim:", host="127.0.0.1",
        port=20000, served_name="m", engine_key="ek-secret", keyed=True, key_generation="1-aa",
    )  # fmt: skip
    peer.send(Start(command_id="c-1", epoch=1, spec=spec))
    status = peer.take(ShardChanged, where=lambda message: message.status.state == "ready").status
    assert (status.spec.engine_key, status.spec.key_generation) == ("", "1-aa")
    told = run.end()
    assert run.process.returncode == 0
    assert (told["in_session"], told["sessions"], told["turned_away"], told["ended"]) == (NODES, NODES, {}, {})
    assert told["heartbeats"] >= NODES and told["memory_bytes_per_node"] > 0


def test_it_goes_on_where_the_leader_is(control: ControlPlane, tmp_path: Path) -> None:
    """AGT-03: the next address after a failure, the named one after not_leader, back after a goodbye."""
    standby = ControlPlane()
    standby.welcome = Refuse(code="not_leader", message="I stand by", leader=control.address)
    nowhere = socket.socket()
    nowhere.bind(("127.0.0.1", 0))  # and listens not
    gone = f"127.0.0.1:{nowhere.getsockname()[1]}"
    try:
        run = Run(tmp_path, "--control-plane", f"{gone},{standby.address}", "--nodes", "2")
        for _ in range(2):
            peer, _, _ = control.session()
            peer.send(Goodbye(reason="restart", spread_seconds=0.1))
        for _ in range(2):
            control.session()
        told = run.end()
    finally:
        standby.close()
        nowhere.close()
    assert told["ended"] == {"goodbye": 2}
    assert told["turned_away"]["not_leader"] >= 2
    assert told["sessions"] == 4


def test_a_wrong_authority_is_told_in_words(control: ControlPlane, tmp_path: Path) -> None:
    """SEC-01: refused with a clear message, and the exit status says that no node came in."""
    authority = identities.strangers().authority_folder(tmp_path / "strangers")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "llmgw.cli", "sim-fleet", "--authority", str(authority)),
            *("--control-plane", control.address, "--nodes", "1", "--seconds", "2"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "not until the end" in done.stdout and "authority" in done.stdout
    missing = subprocess.run(
        [sys.executable, "-m", "llmgw.cli", "sim-fleet", "--authority", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert missing.returncode == 2
    assert "llmgw ctl cert init" in missing.stderr and "Traceback" not in missing.stderr
