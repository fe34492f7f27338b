"""A router and who it is, and whom it follows: certificates, epochs, several control planes."""

import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from msgspec.structs import replace

from llmgw.identity import pem
from llmgw.wire.routing import Renewed, RoutedModel
from router.settings import TABLE_FILE
from tests.fakes.route_server import RouteServer
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import ROOT, ROUTER_ID, Router, endpoint, table_of, until
from tests.harness import identities

CHAT = '{"model":"m","messages":[]}'


@pytest.fixture
def upstream():
    engine = FakeUpstream(key="ek-0123456789abcdef")
    yield engine
    engine.stop()


@pytest.fixture
def other():
    server = RouteServer(table_of(generation="other"), ROUTER_ID)
    yield server
    server.stop()


def table(upstream, generation="g1", **fields):
    return table_of(
        RoutedModel(name="m", state="ready", endpoints=(endpoint(upstream),)), generation=generation, **fields
    )


def pair(router, other):
    """Start ``router`` anew with two control planes: its own, and ``other``."""
    router.stop()
    router._settings["control_planes"] = [f"127.0.0.1:{router.control.port}", f"127.0.0.1:{other.port}"]
    router.start()


def asks(router, name="m"):
    with router.connect() as client:
        client.post(CHAT.replace('"m"', f'"{name}"'))
        return client.answer().status


def address(server):
    return f"127.0.0.1:{server.port}"


# ---------------------------------------------------------------- whom it follows


def test_connections_are_kept(tmp_path, upstream):
    """SEC-01: one per purpose, not a handshake for each of the reports of every second."""
    with Router(tmp_path, table(upstream)) as router:
        until(lambda: len(router.control.reports) >= 4, 15, "reports")
        assert asks(router) == 200
        until(lambda: router.control.records, 10, "usage")
        until(lambda: len(router.control.reports) >= 8, 15, "reports")
        assert router.control.connections <= 4


def test_a_standby_sends_it_to_the_leader(tmp_path, upstream, other):
    """HA-02: also to an address that is not in its settings."""
    with Router(tmp_path, table(upstream)) as router:
        other.table = table(upstream, "g2", epoch=2, leader="other")
        router.control.standby = address(other)
        until(lambda: other.reports, 10, "the reports")
        until(lambda: f"following another control plane address={address(other)}" in router.log.read_text(), 5, "it")
        assert asks(router) == 200


@pytest.mark.parametrize("how", ["standby", "dead"])
def test_a_change_of_leader_loses_no_usage_and_no_table(tmp_path, upstream, other, how):
    """STO-03, RTR-03, HA-02: what was not acknowledged goes to the next leader; meanwhile clients are answered."""
    with Router(tmp_path, table(upstream, epoch=1, leader="a")) as router:
        other.standby = ""
        pair(router, other)
        first = router.control
        first.usage_script += [503] * 1000
        for _ in range(20):
            assert asks(router) == 200
        until(lambda: first.posts, 10, "a try")
        if how == "dead":
            first.stop()
        else:
            first.standby = ""
        for _ in range(20):
            assert asks(router) == 200
        other.table = table(upstream, "g2", epoch=2, leader="b")
        other.standby = None
        until(lambda: len(other.records) == 40, 30, "every record")
        assert max(Counter(record.id for record in [*first.records, *other.records]).values()) == 1
        assert asks(router) == 200


def test_a_leader_that_hangs_is_left(tmp_path, upstream, other):
    """HA-02: its host vanished, so that nothing ends the connections: what the reports find out
    ends the long poll too."""
    with Router(tmp_path, table(upstream, epoch=1, leader="a")) as router:
        other.standby = ""
        pair(router, other)
        first = router.control
        until(lambda: first.reports, 10, "reports")
        other.table = table(upstream, "g2", epoch=2, leader="b")
        other.standby = None
        first.running.clear()
        until(lambda: other.polls and other.reports, 25, "the other one is asked")


@pytest.mark.parametrize(
    ("fresh", "words"),
    [
        ({"epoch": 6, "leader": "b"}, "epoch 6 is older than 7"),
        ({"epoch": 7, "leader": "a"}, "epoch 7 was seen here of another leader"),
    ],
    ids=["lower", "another's"],
)
def test_no_table_of_an_earlier_leader_is_taken(tmp_path, upstream, other, fresh, words):
    """HA-01: also after a restart, by what is on disk; the other control plane is followed, and each
    is told the highest epoch seen."""
    with Router(tmp_path, table(upstream, epoch=7, leader="b")) as router:
        other.table = table(upstream, "g2", epoch=7, leader="b")
        pair(router, other)
        router.stop()
        router.control.publish(table_of(RoutedModel(name="m", state="off"), generation="g3", **fresh))
        router.control.epochs.clear()
        router.start()
        until(lambda: other.reports, 15, "the other one is followed")
        assert asks(router) == 200
        assert set(router.control.epochs) == {"7 b"}
        other.standby = ""
        until(lambda: words in router.log.read_text(), 20, "why")
        assert asks(router) == 200
        assert b'"epoch":7' in (tmp_path / "state" / TABLE_FILE).read_bytes()


# ---------------------------------------------------------------- who it is


def test_one_process_of_a_host_renews_for_all(tmp_path, upstream):
    """SEC-01: with a new key, and the reports go on."""
    identity = tmp_path / "identity"
    made = datetime.now(UTC) - timedelta(seconds=70)
    identities.ours().folder(identity, "router", ROUTER_ID, now=made, lifetime=timedelta(seconds=100))
    key = (identity / "key.pem").read_text()
    with Router(tmp_path, table(upstream), workers=3) as router:
        until(lambda: "renewed by the control plane what=certificate" in router.log.read_text(), 30, "renewal")
        new_key = (identity / "key.pem").read_text()
        assert new_key != key
        assert (identity / "key.pem").stat().st_mode & 0o777 == 0o600
        since = len(router.control.reports)
        until(lambda: len(router.control.reports) > since + 6, 15, "reports")
        assert sum(bool(renewal.request) for renewal in router.control.renewals) == 1
        log = router.log.read_text()
    for secret in (key.splitlines()[1], new_key.splitlines()[1]):
        assert secret not in log + str(router.control.renewals)


def test_authorities_come_and_a_certificate_is_wanted(tmp_path, upstream):
    """SEC-08: a bundle replaces the router's, and it asks for a certificate when it is told to."""
    both = identities.ours().root + identities.strangers().root
    with Router(tmp_path, table(upstream)) as router:
        until(lambda: router.control.renewals, 10, "the first look")
        assert router.control.renewals[0].authorities == pem.digest(identities.ours().root)
        router.stop()
        router.control.renewals.clear()
        router.control.renewed = Renewed(authorities=both.decode(), renew=True)
        router.start()
        until(lambda: any(renewal.request for renewal in router.control.renewals), 20, "a request")
        assert router.control.renewals[-1].authorities == pem.digest(both)
        assert pem.digest((tmp_path / "identity" / "authorities.pem").read_bytes()) == pem.digest(both)
        until(lambda: "the certificate was not renewed: the control plane sent none" in router.log.read_text(), 5, "it")


def test_an_expired_certificate_ends_no_router(tmp_path, upstream):
    """SEC-01: it serves by its last table, says what to do, and takes the new certificate over."""
    with Router(tmp_path, table(upstream)) as router:
        router.stop()
        identities.ours().expired(router.identity, "router", ROUTER_ID)
        reports = len(router.control.reports)
        router.start()
        assert asks(router) == 200
        until(lambda: "certificate has expired" in router.log.read_text(), 10, "why")
        until(lambda: "the certificate expired at" in router.log.read_text(), 10, "what to do")
        assert "llmgw join router" in router.log.read_text()
        identities.ours().router(router.identity, ROUTER_ID)
        until(lambda: len(router.control.reports) > reports, 60, "reports")


def run(directory, *arguments, **settings):
    config = directory / "router.yaml"
    config.write_text(yaml.safe_dump({"router_id": ROUTER_ID, "state_dir": str(directory / "state"), **settings}))
    command = [sys.executable, "-m", "router.main", "--config", str(config), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_check(tmp_path):
    """DEP: says whether it would start."""
    identities.ours().router(tmp_path / "identity", ROUTER_ID)
    done = run(tmp_path, "--check", identity=str(tmp_path / "identity"))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"settings and identity are valid \(router r1, 2 workers on 127.0.0.1:8080\)", done.stdout)
    done = run(tmp_path, "--check", "--log-level", "loud", identity=str(tmp_path / "identity"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "log.level: must be one of" in done.stderr


def _another(identity):
    identities.ours().router(identity, "r2")


def _node(identity):
    identities.ours().node(identity, ROUTER_ID)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (None, "is no directory"),
        (identities.without_key, "key.pem: "),
        (_another, "router r2, not of router r1"),
        (_node, "node r1, not of router r1"),
    ],
    ids=["missing", "no key", "another's", "a node's"],
)
def test_an_identity_that_cannot_be_used(tmp_path, spoil, words):
    """SEC-01: the place, what is wrong, the remedy; status 2, no traceback. It is looked for in the
    state directory unless a setting says where."""
    identity = tmp_path / "state" / "identity"
    if spoil is not None:
        identities.ours().router(identity, ROUTER_ID)
        spoil(identity)
    done = run(tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert f"llmgw join router CONTROL-PLANE:7003 r1 --identity {identity}" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_is_told_apart_from_other_epochs(tmp_path, upstream):
    """AGT-04: the control plane learns the highest epoch that the router has seen, with its leader."""
    first = table(upstream, epoch=3, leader="x")
    with Router(tmp_path, first) as router:
        until(lambda: "3 x" in router.control.epochs, 10, "the header")
        router.control.publish(replace(first, generation="g2", epoch=4, leader="y"))
        until(lambda: "4 y" in router.control.epochs, 10, "the header")
