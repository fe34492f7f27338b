"""Conformance of every database: pages of large tables whose work has a bound (TEN-06, STO-03)."""

import random
from typing import Any

import pytest

from controlplane.store.database import Database
from controlplane.store.queries import scan
from controlplane.store.values import AuditEntry, EventEntry, RequestEntry
from tests.unit.controlplane.store.places import count_batch

SCOPES = ("", "a", "a/b", "a/b/c", "ab", "B", "ä/b", "z")


def entry(number: int, chance: random.Random) -> RequestEntry:
    return RequestEntry(
        at=1000.0 + number // 3,
        id=f"r{number}",
        key=chance.choice(("k1", "k2", "k3")),
        scope=chance.choice(SCOPES),
        model=chance.choice(("m1", "m2", "rare") if number % 50 == 0 else ("m1", "m2")),
        status=chance.choice((200, 200, 200, 503)),
        router="r",
        replica=chance.choice(("x", "y")),
    )


def wanted(one: RequestEntry, which: dict[str, Any]) -> bool:
    scope = which.get("scope")
    failed = which.get("failed")
    return (
        all(name not in which or getattr(one, name) == which[name] for name in ("key", "model", "replica"))
        and (scope is None or one.scope == scope or one.scope.startswith(f"{scope}/"))
        and (failed is None or failed == (one.status >= 400))
        and ("since" not in which or one.at >= which["since"])
        and ("until" not in which or one.at < which["until"])
    )


def filters(chance: random.Random) -> dict[str, Any]:
    every: dict[str, Any] = {
        "key": chance.choice(("k1", "none")),
        "scope": chance.choice((*SCOPES[1:], "none")),
        "model": chance.choice(("m1", "rare", "none")),
        "replica": chance.choice(("x", "none")),
        "failed": chance.choice((True, False)),
        "since": 1000.0 + chance.randrange(120),
        "until": 1000.0 + chance.randrange(120),
    }
    return {name: every[name] for name in chance.sample(sorted(every), chance.randrange(5))}


def test_any_filters_find_every_row_once_however_early_a_query_stops(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TEN-06: pages joined are what a look at every row finds, newest first."""
    chance = random.Random(7)
    entries = [entry(number, chance) for number in range(300)]
    database.transact(lambda tx: count_batch(tx, "r", "b", 1, entries, log=True))
    newest_first = list(reversed(entries))
    monkeypatch.setattr(scan, "LEAST", 3)
    empty = 0
    for _ in range(150):
        which, limit, most = filters(chance), chance.choice((1, 7, 50)), chance.choice((5, 40, 10_000))
        monkeypatch.setattr(scan, "MOST", most)
        found: list[str] = []
        cursor = None
        for _ in range(1000):
            page = database.transact(
                lambda tx, limit=limit, cursor=cursor, which=which: tx.usage.requests(limit, cursor, **which)
            )
            assert len(page.items) <= limit
            empty += not page.items and page.next is not None
            found += [one.id for one in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert cursor is None and found == [one.id for one in newest_first if wanted(one, which)], (which, limit, most)
    assert empty, "no query stopped early in this test"


def test_the_audit_and_events_are_read_in_parts_too(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """API-04, API-05: what no index finds is looked for a part of the table at a time."""
    monkeypatch.setattr(scan, "MOST", 10)
    monkeypatch.setattr(scan, "LEAST", 3)

    def fill(tx: Any) -> None:
        for number in range(35):
            user = "eve" if number in {3, 20} else "ada"
            tx.audit.add(AuditEntry(float(number), "a", user, "t", "o", "key", f"{number}"))
        tx.events.add(
            [EventEntry(f"e{n:02}", float(n // 2), "x", "y", node="n1" if n == 4 else None) for n in range(35)]
        )

    database.transact(fill)

    def walk(ask: Any) -> list[list[str]]:
        parts, cursor = [], None
        while True:
            page = database.transact(lambda tx, cursor=cursor: ask(tx, cursor))
            parts.append([getattr(one, "target", getattr(one, "id", None)) for one in page.items])
            cursor = page.next
            if cursor is None:
                return parts

    assert walk(lambda tx, cursor: tx.audit.page(5, cursor, user="eve")) == [[], ["20"], [], ["3"]]
    assert walk(lambda tx, cursor: tx.audit.page(5, cursor, until=2.0)) == [[], [], [], ["1", "0"]]
    assert walk(lambda tx, cursor: tx.events.page(5, cursor, node="n1")) == [[], [], [], ["e04"]]
    assert len(walk(lambda tx, cursor: tx.events.page(35, cursor))) == 1
