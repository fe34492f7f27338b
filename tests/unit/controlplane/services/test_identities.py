"""Identities over a store: what a revocation takes with it, and what memory keeps of what
certificates told (SEC-02, REC-13)."""

from typing import Any

import gevent
import pytest

from controlplane.services import identities as module
from controlplane.services import recovery
from controlplane.services.changes import Replayed
from controlplane.services.errors import Refused
from controlplane.services.identities import MAX_REFUSED, Identities, NotAdmitted
from controlplane.store.values import Enrolled, JoinToken
from llmgw.identity.names import Identity, Presented
from tests.unit.controlplane.services.harness import World, ask, until

NODE = Identity("node", "n1")


def shown(issued_at: float, identity: Identity = NODE) -> Presented:
    return Presented(identity, "0A", issued_at, issued_at + 1000)


def row(name: str = "n1", **more: Any) -> Enrolled:
    return Enrolled("node", name, 1.0, "tests", **more)


def registry(world: World, *rows: Enrolled) -> Identities:
    world.store.write(lambda tx: tx.identities.put(*rows))
    return Identities(world.store, world.changes, world.clock, inbox=world.inbox, end=lambda *_: None, enrolled=rows)


def token(world: World, name: str, of: str = "n1", kind: str = "node", used_at: float | None = None) -> None:
    made = JoinToken(
        name, f"digest of {name}", kind, of, created_at=1.0, created_by="ada", expires_at=900.0, used_at=used_at
    )
    world.store.write(lambda tx: tx.identities.add_token(made))


def tokens(world: World) -> list[str]:
    return [each.id for each in world.store.read(lambda tx: tx.identities.tokens())]


def stored(world: World) -> Enrolled | None:
    return world.store.read(lambda tx: tx.identities.one("node", "n1"))


# ---------------------------------------------------------------- people


@pytest.mark.parametrize("removed", [True, False])
def test_join_tokens_go_with_the_certificates(world: World, removed: bool) -> None:
    """SEC-02: who has one that was not used could come back with it; the used ones tell who came."""
    identities = registry(world, row(), row("n2"))
    token(world, "mine")
    token(world, "another")
    token(world, "used", used_at=2.0)
    token(world, "of-n2", of="n2")
    token(world, "of-router", kind="router")
    if removed:
        identities.remove(ask(), NODE)
    else:
        assert identities.revoke(ask(), NODE, "stolen")[1] == ("another", "mine")
    assert tokens(world) == ["of-n2", "of-router", "used"]
    (entry,) = world.store.read(lambda tx: tx.audit.page(10)).items
    assert entry.after["join_tokens"] == ["another", "mine"]


def test_tokens_stay_if_nothing_is_revoked(world: World) -> None:
    """API-04: all or nothing."""
    identities = registry(world, row())
    token(world, "mine")
    with pytest.raises(Refused, match="somebody changed it"):
        identities.revoke(ask(if_match='"9"'), NODE, "stolen")
    assert tokens(world) == ["mine"]


def test_who_was_removed_cannot_be_removed_again(world: World) -> None:
    """REC-13: 404 with the moment, so that a client can tell; a repeat of the request is no such case."""
    identities = registry(world, row())
    order = ask(idempotency_key="k", digest="d")
    identities.remove(order, NODE)
    with pytest.raises(Refused, match=r"no node 'n1' in the fleet any more: it was removed at .* UTC") as refused:
        identities.remove(ask(), NODE)
    assert refused.value.status == 404 and len(world.store.read(lambda tx: tx.audit.page(10)).items) == 1
    with pytest.raises(Replayed):
        world.changes.recall(order)
    identities.revoke(ask(), NODE, "stolen")
    assert identities.one(NODE).removed_at is not None


# ---------------------------------------------------------------- certificates


def came_back(world: World) -> Identities:
    """A registry in which a removed node shows a later certificate, while the store is away."""
    now = world.clock.now().timestamp()
    identities = registry(world, row(revoked_at=now, removed_at=now))
    world.store.away = True
    identities.admit(shown(now + 5), "node", "n1")
    return identities


def test_a_revocation_of_who_just_came_back_does_not_remove_it(world: World) -> None:
    """REC-13: what waits for the store counts."""
    identities = came_back(world)
    world.store.away = False
    after, _ = identities.revoke(ask(), NODE, "stolen")
    assert after.removed_at is None and identities.nodes() == {"n1"}
    assert stored(world) == after


def test_what_waits_outlives_a_look_at_the_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """REC-13: a commit of unknown outcome, on another, does not take a node that came back from the fleet."""
    monkeypatch.setattr(module, "RETRY", 0.01)
    monkeypatch.setattr(recovery, "PAUSE", 0.01)
    identities = came_back(world)
    world.store.away = False
    identities.learn(world.store.read(lambda tx: tx.identities.all()))
    assert identities.nodes() == {"n1"}
    until(lambda: identities.unwritten == 0)
    found = stored(world)
    assert found == identities.one(NODE) and found is not None and found.removed_at is None


def test_a_certificate_made_before_a_removal_brings_nobody_back(world: World) -> None:
    """REC-13: it was signed while the removal was on its way."""
    identities = registry(world, row())
    identities.remove(ask(), NODE)
    removed = identities.one(NODE)
    with pytest.raises(NotAdmitted, match="was removed from the fleet"):
        identities.record(shown(5.0), shown(removed.revoked_at or 0.0))
    gevent.sleep(0)
    assert identities.one(NODE) == removed and identities.unwritten == 0


# ---------------------------------------------------------------- who was refused


def test_in_whose_name_peers_were_refused_is_remembered(world: World) -> None:
    """SEC-01: of names in the fleet and others, the latest ones, until the holder is let in."""
    identities = registry(world, row())
    thief = shown(5.0, Identity("node", "thief"))
    for number in range(MAX_REFUSED + 1):
        with pytest.raises(NotAdmitted):
            identities.admit(thief, "node", f"m{number}")
    for kind in ("node", "router"):
        with pytest.raises(NotAdmitted):
            identities.admit(thief, kind, "n1")
    assert len(identities.refused) == MAX_REFUSED
    assert ("node", "m2") not in identities.refused and ("node", "m3") in identities.refused
    at, why = identities.refused["node", "n1"]
    assert at == world.clock.monotonic() and why.startswith("the certificate is that of node thief, not of node n1")
    identities.admit(shown(5.0), "node", "n1")
    assert ("node", "n1") not in identities.refused and ("router", "n1") in identities.refused
