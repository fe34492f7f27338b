"""Control planes are told and found by mDNS (AGT-03), here on loopback alone."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from llmgw.runtime.kinds import Address
from llmgw.runtime.mdns import Advertiser, MdnsError, discover
from tests.fakes.controlplane import ControlPlane
from tests.harness import identities
from tests.harness.waiting import until

LOOPBACK = ("127.0.0.1",)


def test_what_is_advertised_is_found_and_taken_back():
    """AGT-03: the port of the agents listener and the address it listens on."""
    name = f"cp-{uuid4().hex[:8]}"
    advertiser = Advertiser(name, Address("127.0.0.1", 7001), interfaces=LOOPBACK).start()
    try:
        until(lambda: not advertiser.fault, 20, "it is advertised")
        found = {one.name: one.addresses for one in discover(1.0, interfaces=LOOPBACK)}
        assert found[name] == (Address("127.0.0.1", 7001),)
    finally:
        advertiser.stop()
    assert name not in [one.name for one in discover(0.5, interfaces=LOOPBACK)]


def test_the_child_ends_with_its_parent():
    """AGT-03: nothing is left to advertise a control plane that is gone."""
    program = (
        "import sys, time\n"
        "from llmgw.runtime.kinds import Address\n"
        "from llmgw.runtime.mdns import Advertiser\n"
        f"a = Advertiser('gone-{uuid4().hex[:8]}', Address('127.0.0.1', 7001), interfaces=['127.0.0.1']).start()\n"
        "while a.fault: time.sleep(0.05)\n"
        "print(a._child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        assert _runs(child)
        parent.kill()
    until(lambda: not _runs(child), 20, "the child has ended")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_that_ends_is_started_anew(monkeypatch):
    """AGT-03: an error is told in words, and it is tried again."""
    monkeypatch.setattr("llmgw.runtime.mdns.AGAIN", 0.05)
    advertiser = Advertiser(f"cp-{uuid4().hex[:8]}", Address("127.0.0.1", 7001), interfaces=LOOPBACK).start()
    try:
        until(lambda: not advertiser.fault, 20, "it is advertised")
        first = advertiser._child
        first.kill()
        until(lambda: advertiser._child is not first and not advertiser.fault, 20, "it is advertised again")
    finally:
        advertiser.stop()


def test_what_cannot_work_is_told_in_words():
    """AGT-03: never a traceback."""
    with pytest.raises(MdnsError, match="mDNS cannot be used"):
        discover(0.1, interfaces=["203.0.113.7"])
    advertiser = Advertiser("cp", Address("no-such-host.invalid", 1), interfaces=LOOPBACK).start()
    try:
        until(lambda: "mDNS cannot be used" in advertiser.fault, 20, "the fault is told")
    finally:
        advertiser.stop()


def test_other_greenlets_go_on_meanwhile():
    """AGT-03: the library's threads and loop stay out of a process that gevent has patched."""
    name = f"cp-{uuid4().hex[:8]}"
    program = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import gevent, sys\n"
        "from llmgw.runtime.kinds import Address\n"
        "from llmgw.runtime.mdns import Advertiser, discover\n"
        f"a = Advertiser({name!r}, Address('127.0.0.1', 7001), interfaces=['127.0.0.1']).start()\n"
        "while a.fault: gevent.sleep(0.05)\n"
        "turns = 0\n"
        "def count():\n"
        "    global turns\n"
        "    while True:\n"
        "        turns += 1; gevent.sleep(0.01)\n"
        "gevent.spawn(count)\n"
        "found = discover(1.0, interfaces=['127.0.0.1'])\n"
        "a.stop()\n"
        "print(turns > 20, 'zeroconf' in sys.modules, [one.name for one in found])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("True False ") and name in done.stdout


def test_a_control_plane_is_found_by_the_setting_alone(tmp_path: Path):
    """AGT-03: mdns.advertise tells where agents.listen is, and it ends with the control plane."""
    plane = ControlPlane(tmp_path, {"models": {}}, mdns__advertise=True).start()
    address = plane.addresses["agents.listen"]

    def told() -> bool:
        return any(address in one.addresses for one in discover(0.5))

    try:
        until(told, 20, "the control plane is found")
    finally:
        assert plane.stop() == 0, plane.log()
    assert not told()


def test_an_agent_finds_its_control_plane(tmp_path: Path):
    """AGT-03: an agent that was given no address asks the network, and trusts a certificate alone."""
    plane = ControlPlane(tmp_path, {"models": {}}, mdns__advertise=True).start()
    settings = {
        "node_id": "node-7",
        "control_planes": "mdns",
        "identity": str(identities.ours().node(tmp_path / "node", "node-7")),
        "state_dir": str(tmp_path / "agent"),
        "address": "127.0.0.1",
    }
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(settings))
    with (tmp_path / "agent.log").open("w") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "agent.main", "--config", str(tmp_path / "agent.yaml")], stdout=log, stderr=log
        )
    try:
        until(
            lambda: [node["status"] for node in plane.get("nodes")["nodes"] if node["id"] == "node-7"] == ["connected"],
            30,
            f"the agent is in session: {(tmp_path / 'agent.log').read_text()}",
        )
    finally:
        agent.terminate()
        agent.wait(30)
        assert plane.stop() == 0, plane.log()
