"""The real agent and who it is, and whom it obeys: certificates, epochs, several control planes."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from msgspec.structs import replace

from llmgw.identity import pem
from llmgw.wire.messages import (
    CommandResult,
    Credential,
    Forget,
    Goodbye,
    Hello,
    Refuse,
    Register,
    Renew,
    ShardChanged,
    Welcome,
)
from tests.fleet.scripted_control_plane import ControlPlane
from tests.fleet.test_agent_process import Node, bring_up, ready_session, until
from tests.harness import identities
from tests.unit.agent.shards import start, stop

WELCOME = Welcome(
    session_id="s1", protocol=1, version="0.1.0", epoch=1, leader="first", heartbeat_seconds=0.2, silence_seconds=5.0
)


@pytest.fixture
def planes():
    """Two control planes."""
    both = ControlPlane(), ControlPlane()
    yield both
    for each in both:
        each.close()


@pytest.fixture
def node(tmp_path, planes):
    node = Node(tmp_path, planes[0].address)
    node.settings["control_planes"] = [each.address for each in planes]
    yield node
    node.clean()
    sys.stderr.write(node.log() if node.agents else "")


def run(node, *arguments):
    """The agent's program to its end, with the settings of ``node``."""
    config = node.root / "agent.yaml"
    config.write_text(yaml.safe_dump(node.settings))
    command = [sys.executable, "-m", "agent.main", "--config", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


# ---------------------------------------------------------------- at the start


def test_check(node):
    """DEP: says whether it would start, and what of it needs a person."""
    done = run(node, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "settings and identity are valid (node node-a, engines: llamacpp)" in done.stdout
    identities.ours().expired(node.identity, "node", "node-a")
    done = run(node, "--check")
    assert done.returncode == 0
    assert "expired" in done.stderr and "llmgw join node" in done.stderr
    node.settings["address"] = "a b"
    done = run(node, "--check")
    assert (done.returncode, done.stdout) == (2, "")
    assert "address: must be one address" in done.stderr


def test_log_level(node):
    """API-13: the flag wins over the file, and a wrong word is told."""
    done = run(node, "--log-level", "loud")
    assert done.returncode == 2
    assert "log.level: must be one of" in done.stderr


def _missing(identity):
    for file in identity.iterdir():
        file.unlink()
    identity.rmdir()


def _open(identity):
    (identity / "key.pem").chmod(0o644)


def _another(identity):
    identities.ours().node(identity, "node-b")


def _router(identity):
    identities.ours().router(identity, "node-a")


def _damaged(identity):
    (identity / "authorities.pem").write_text("-----BEGIN NOTHING-----\n")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_missing, "is no directory"),
        (identities.without_key, "key.pem: "),
        (_open, "chmod 600"),
        (_another, "node node-b, not of node node-a"),
        (_router, "router node-a, not of node node-a"),
        (_damaged, "authorities.pem: "),
    ],
    ids=["missing", "no key", "open to others", "another node's", "a router's", "damaged"],
)
def test_an_identity_that_cannot_be_used(node, spoil, words):
    """SEC-01, SEC-02: the place, what is wrong, the remedy; status 2, no traceback."""
    spoil(node.identity)
    done = run(node)
    assert done.returncode == 2
    assert words in done.stderr
    assert "1 fault\n" in done.stderr
    join = f"llmgw join node CONTROL-PLANE:7003 node-a --identity {node.identity}"
    assert (join in done.stderr) == (spoil is not _open), "who has to change a mode need not join"
    assert "Traceback" not in done.stderr


def test_an_expired_certificate_ends_neither_agent_nor_engines(node, planes):
    """SEC-01, AGT-09: engines live on, a person is told what to do, and the new certificate is
    taken without a restart."""
    node.settings["control_planes"] = [planes[0].address]
    agent = node.agent()
    peer, _, _ = ready_session(planes[0])
    bring_up(peer, node.spec())
    (pid,) = node.engines()
    agent.terminate()
    assert agent.wait(15) == 0
    identities.ours().expired(node.identity, "node", "node-a")
    agent = node.agent()
    until(lambda: "no session: " in node.log() and "certificate has expired" in node.log())
    assert "the certificate expired at" in node.log() and "llmgw join node" in node.log()
    assert agent.poll() is None and node.engines() == [pid]
    identities.ours().node(node.identity, "node-a")
    _, _, register = planes[0].session()
    assert [shard.pid for shard in register.shards] == [pid]


# ---------------------------------------------------------------- while it lives


def test_renews_over_the_session(node, planes):
    """SEC-01: with a new key that never left the node; the next connection shows the new certificate."""
    control = planes[0]
    made = datetime.now(UTC) - timedelta(seconds=90)  # due since some time: a twentieth of its life spreads a fleet
    identities.ours().folder(node.identity, "node", "node-a", now=made, lifetime=timedelta(seconds=150))
    before = {file: (node.identity / file).read_text() for file in ("key.pem", "certificate.pem")}
    left = node.identity / ".key.pem.0a_b1c2d"
    left.write_text("half a key")
    node.agent()
    peer, _, _ = control.session()
    request = peer.take(Renew).request
    peer.send(Credential(certificate=identities.ours().sign(request, "node", "node-a")))
    until(lambda: (node.identity / "certificate.pem").read_text() != before["certificate.pem"])
    until(lambda: "another identity is shown" in node.log())
    assert not left.exists(), "what an ended writer left is removed"
    new_key = (node.identity / "key.pem").read_text()
    assert new_key != before["key.pem"]
    assert new_key.splitlines()[1] not in request + node.log()
    assert (node.identity / "key.pem").stat().st_mode & 0o777 == 0o600
    serial = pem.presented((node.identity / "certificate.pem").read_bytes()).serial
    peer.close()
    peer, _, _ = control.session()
    assert peer.connection.tls.getpeercert()["serialNumber"] == serial


def test_a_certificate_that_would_not_work_is_not_taken(node, planes):
    """SEC-01: another's, of another authority, or for another key: told, and the one in use stays."""
    control = planes[0]
    before = (node.identity / "certificate.pem").read_bytes()
    node.agent()
    peer, _, _ = control.session()
    wrong = [
        (lambda request: identities.ours().sign(request, "node", "node-b"), "node node-b, not of node node-a"),
        (lambda request: identities.strangers().sign(request, "node", "node-a"), "none of the authorities"),
        (lambda request: before.decode(), "not for the key of our request"),
        (lambda request: "nonsense", "no certificate"),
    ]
    for make, words in wrong:
        peer.send(Credential(renew=True))
        request = peer.take(Renew).request
        peer.send(Credential(certificate=make(request)))
        until(lambda words=words: words in node.log())
        assert (node.identity / "certificate.pem").read_bytes() == before
        peer.close()  # another session asks again sooner than the spacing of tries
        node.agents[-1].kill()
        node.agents[-1].wait()
        node.agent()
        peer, _, _ = control.session()
    assert "Traceback" not in node.log()


def test_authorities_are_replaced_over_the_session(node, planes):
    """SEC-08: a second root is trusted beside the first, told at the next hello, and a control plane
    of the second one is believed; a bundle without our own root is refused."""
    first, second = planes
    ours, strangers = identities.ours(), identities.strangers()
    node.agent()
    peer, hello, _ = first.session()
    assert hello.authorities == pem.digest(ours.root)
    peer.send(Credential(authorities=strangers.root.decode()))
    until(lambda: "the authorities were not replaced" in node.log())
    both = ours.root + strangers.root
    peer.send(Credential(authorities=both.decode()))
    until(lambda: pem.digest((node.identity / "authorities.pem").read_bytes()) == pem.digest(both))
    until(lambda: "another identity is shown" in node.log())
    second.show(strangers.folder(node.root / "second", "controlplane", "other", trusts=[ours.root]))
    first.welcome = Refuse(code="not_leader", message="it stands by")
    peer.close()
    _, hello, _ = second.session()
    assert hello.authorities == pem.digest(both)


# ---------------------------------------------------------------- whom it obeys


def test_a_standby_sends_it_to_the_leader(node, planes):
    """AGT-03, HA-02: at once, also to an address that is not in its settings."""
    standby, leader = planes
    node.settings["control_planes"] = [standby.address]
    standby.welcome = Refuse(code="not_leader", message="it stands by", leader=leader.address)
    node.agent()
    leader.session()
    assert "refused: it stands by (not_leader)" in node.log()


def test_a_leader_that_goes_hands_its_agents_over(node, planes):
    """AGT-03, HA-02: goodbye, then the other one leads with a higher epoch."""
    first, second = planes
    second.welcome = Refuse(code="not_leader", message="it stands by", leader=first.address)
    node.agent()
    peer, _, _ = ready_session(first)
    bring_up(peer, spec := node.spec())
    (pid,) = node.engines()
    first.welcome = Refuse(code="not_leader", message="it stands by")
    second.welcome = replace(WELCOME, epoch=2, leader="second")
    peer.send(Goodbye(reason="it stops", spread_seconds=0.2))
    peer, hello, register = second.session()
    assert (hello.highest_epoch, [shard.spec.key for shard in register.shards]) == (1, [spec.key])
    assert node.engines() == [pid]


def test_no_leader_of_an_earlier_epoch_is_obeyed(node, planes):
    """AGT-04, HA-01: also after kill -9: neither a lower epoch nor the same one of another leader."""
    first, second = planes
    second.welcome = replace(WELCOME, epoch=7, leader="second")
    node.settings["control_planes"] = [second.address]
    agent = node.agent()
    peer, _, _ = ready_session(second)
    bring_up(peer, spec := node.spec(), epoch=7)
    agent.kill()
    agent.wait()
    node.settings["control_planes"] = [first.address, second.address]
    for welcome, words in (
        (replace(WELCOME, epoch=6, leader="second"), "epoch 6 is older than 7"),
        (replace(WELCOME, epoch=7, leader="first"), "epoch 7 was seen here of another leader"),
    ):
        first.welcome = welcome
        agent = node.agent()
        peer, hello, _ = second.session()
        assert (hello.highest_epoch, hello.leader) == (7, "second")
        until(lambda words=words: words in node.log())
        declined = first.sessions.get(timeout=15)
        declined.take(Hello)
        until(declined.closed.is_set)
        assert not any(isinstance(message, Register) for message in list(declined.inbox.queue))
        peer.send(stop(spec, epoch=6))
        assert peer.take(CommandResult).code == "stale_epoch"
        agent.kill()
        agent.wait()
    assert len(node.engines()) == 1


def test_a_command_is_obeyed_only_once_its_epoch_is_on_disk(node, planes):
    """AGT-04: before the result is told, let alone before anything runs."""
    control = planes[0]
    node.agent()
    peer, _, _ = ready_session(control)
    peer.send(start(node.spec(), epoch=9))
    assert peer.take(CommandResult).outcome == "accepted"
    assert '"highest_epoch":9' in (node.state / "agent.json").read_text()
    peer.take(ShardChanged)
    peer.send(Forget(shards=()))
