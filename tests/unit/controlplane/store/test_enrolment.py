"""Conformance of every database: nodes, routers and join tokens."""

import dataclasses

import pytest

from controlplane.store.database import Database
from controlplane.store.errors import Duplicate
from controlplane.store.values import Enrolled, JoinToken
from tests.unit.controlplane.store.places import Place
from tests.unit.controlplane.store.test_identity import ODD


def enrolled(name: str, kind: str = "node", **more: object) -> Enrolled:
    return Enrolled(kind, name, 1.5, "ada", **more)


def join_token(number: int, **more: object) -> JoinToken:
    fields = {"id": f"join-{number}", "digest": f"{number:064x}", "kind": "node", "name": "n1", "created_by": "ada"}
    return JoinToken(**{**fields, "created_at": float(number), "expires_at": 900.0, **more})


def test_identities_come_back_as_they_were(place: Place) -> None:
    """SEC-01: every field, by kind and name whatever the database collates by; seen by the next process."""
    plain = [enrolled("b"), enrolled("B"), enrolled("a.1"), enrolled("a", "router")]
    whole = enrolled(
        *("n" * 253,),
        serial="0A",
        issued_at=2.25,
        expires_at=9.125,
        revoked_at=3.5,
        revoked_by=ODD,
        reason=ODD,
        removed_at=3.5,
        version=4,
    )
    place.open().transact(lambda tx: [tx.identities.put(each) for each in (*plain, whole)])
    wanted = tuple(sorted((*plain, whole), key=lambda each: (each.kind, each.name)))
    again = place.open()
    assert again.transact(lambda tx: tx.identities.all()) == wanted
    assert again.transact(lambda tx: tx.identities.one("node", "B")) == enrolled("B")
    assert again.transact(lambda tx: tx.identities.one("router", "B")) is None


def test_an_identity_is_replaced_whole(database: Database) -> None:
    """SEC-02: a node and a router of one name are two; what is taken back is absent again."""
    database.transact(lambda tx: tx.identities.put(enrolled("x", removed_at=2.0, revoked_at=2.0)))
    database.transact(lambda tx: tx.identities.put(enrolled("x", "router")))
    back = enrolled("x", revoked_at=2.0, serial="FF", version=2)
    database.transact(lambda tx: tx.identities.put(back))
    assert database.transact(lambda tx: tx.identities.all()) == (back, enrolled("x", "router"))


def test_many_identities_are_put_at_once(database: Database) -> None:
    """SEC-02: a thousand nodes may come for the first time together; each is added, or replaced whole."""
    database.transact(lambda tx: tx.identities.put(enrolled("n2", removed_at=2.0), enrolled("n2", "router")))
    rows = [enrolled(f"n{number}", serial=ODD, version=number) for number in range(1000)]
    database.transact(lambda tx: tx.identities.put(*rows))
    database.transact(lambda tx: tx.identities.put())
    assert database.transact(lambda tx: tx.identities.one("node", "n2")) == rows[2]
    found = database.transact(lambda tx: tx.identities.named("node", [row.name for row in rows[:999]] + ["n", "N5"]))
    assert sorted(found, key=lambda row: row.version) == rows[:999]
    assert database.transact(lambda tx: tx.identities.named("router", ["n1", "n2"])) == (enrolled("n2", "router"),)
    assert database.transact(lambda tx: tx.identities.named("node", [])) == ()


def test_a_join_token_is_used_once(database: Database) -> None:
    """SEC-02: by who knows it, in time; the second use finds it used."""
    database.transact(lambda tx: [tx.identities.add_token(join_token(number)) for number in (2, 1)])
    assert database.transact(lambda tx: tx.identities.tokens()) == (join_token(1), join_token(2))
    digest = join_token(1).digest

    def use(now: float, given: str = digest) -> JoinToken | None:
        return database.transact(lambda tx: tx.identities.use_token("join-1", given, now, "192.0.2.7:5"))

    assert use(100.0, join_token(2).digest) is None, "another token's secret"
    assert use(900.0) is None, "expired"
    used = dataclasses.replace(join_token(1), used_at=100.0, used_from="192.0.2.7:5")
    assert use(100.0) == used
    assert use(101.0) is None
    assert database.transact(lambda tx: tx.identities.token("join-1")) == used
    assert database.transact(lambda tx: tx.identities.token("join-2")) == join_token(2)
    assert database.transact(lambda tx: tx.identities.token("join-9")) is None


def test_two_uses_at_once_are_one(place: Place) -> None:
    """SEC-02: of two processes that hand in the same token one gets a certificate."""
    place.open().transact(lambda tx: tx.identities.add_token(join_token(1)))
    digest = join_token(1).digest
    both = [place.open(), place.open()]
    found = [
        each.transact(lambda tx: tx.identities.use_token("join-1", digest, 1.0 + number, "a"))  # noqa: B023
        for number, each in enumerate(both)
    ]
    assert [each is not None for each in found] == [True, False]


def test_join_tokens_are_told_apart_and_forgotten(database: Database) -> None:
    """SEC-02: no two have the same id or secret; what was made long ago goes, a few at a time."""
    assert database.transact(lambda tx: tx.identities.newest_token()) is None
    database.transact(lambda tx: [tx.identities.add_token(join_token(number)) for number in (1, 2, 3)])
    for twice in (join_token(1), join_token(4, digest=join_token(1).digest)):
        with pytest.raises(Duplicate, match=twice.id):
            database.transact(lambda tx, twice=twice: tx.identities.add_token(twice))
    assert database.transact(lambda tx: tx.identities.newest_token()) == 3.0
    assert database.transact(lambda tx: tx.identities.remove_token("join-3")) == join_token(3)
    assert database.transact(lambda tx: tx.identities.remove_token("join-3")) is None
    assert database.transact(lambda tx: tx.identities.drop_tokens(9.0, 1)) == 1
    assert database.transact(lambda tx: tx.identities.tokens()) == (join_token(2),)
    assert database.transact(lambda tx: tx.identities.drop_tokens(2.0, 9)) == 0
