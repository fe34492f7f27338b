"""Two control planes on one PostgreSQL server, of which one is taken away, under traffic (HA-01,
HA-02, AGT-03, AGT-04, REC-25).

Streams that go on for ever and short requests all the time: none is cut, none fails, no engine
ends or begins, and no node takes a command of a leader that has been replaced.
"""

from collections.abc import Iterator

import pytest

from tests.harness.failover import Site

TTL = 4.0
TAKEOVER = 4.0
"""Seconds that a takeover may take, beyond the end of the lease after a crash (HA-02)."""

BUSY = 6.0
"""Seconds more where other tests keep the processors busy."""

SETTINGS = {"ha": {"ttl": f"{TTL:g}s", "renew": "500ms"}, "agents": {"heartbeat": "500ms", "silence": "60s"}}
"""Sessions outlast the lease by far: whoever wakes up after it has run out still has them all."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One installation for all tests: each leaves it as it was, but for who leads."""
    with Site(tmp_path_factory.mktemp("failover"), nodes=3, streams=6, settings=SETTINGS, ttl=TTL) as site:
        yield site


@pytest.fixture
def site(running: Site) -> Site:
    """One control plane leads and the other stands by."""
    return running.whole()


def test_leader_stopped(site: Site) -> None:
    """HA-02: whoever stands by takes over at once when the leader is stopped in good order."""
    outcome = site.stopped()
    assert not outcome.faults(), outcome
    assert outcome.takeover.people <= TAKEOVER + BUSY, outcome


def test_leader_killed(site: Site) -> None:
    """HA-02: or once the lease of one that crashed has run out."""
    outcome = site.killed()
    assert not outcome.faults(), outcome
    assert outcome.takeover.people <= TTL + TAKEOVER + BUSY, outcome


def test_leader_frozen(site: Site) -> None:
    """HA-01: one that stood still for longer than its lease lasts lets its agents go when it
    wakes up, whatever it was told meanwhile."""
    outcome = site.frozen(1.5 * TTL, changes=False)
    assert not outcome.faults(), outcome
    assert outcome.takeover.people <= TTL + TAKEOVER + BUSY, outcome


def test_leader_frozen_that_wakes_up_without_a_store(site: Site) -> None:
    """HA-01, HA-02: it does nothing either while nobody has told it that another leads, and it still
    has the sessions of most nodes: its time is over by its own clock. Its successor tells it.

    One that went on until it was told would stop the model that all streams come from.
    """
    outcome = site.frozen_without_a_store()
    assert not outcome.faults(), outcome


def test_store_away(site: Site) -> None:
    """HA-01: the leader keeps the lead over two lengths of its lease without the store, starts an
    engine that failed again where it was, and places nothing else until the store is back."""
    outcome = site.store_away(2 * TTL)
    assert not outcome.faults(), outcome


def test_usage_is_complete(site: Site) -> None:
    """HA-01: after all of this, every request is in the store, once."""
    assert site.counted() == site.asked
