"""Conformance of every database: audit, idempotency, events; pages and their cursors."""

import base64
import dataclasses
import json
import math

import pytest

from controlplane.store.database import Database
from controlplane.store.errors import BadCursor, Duplicate
from controlplane.store.values import AuditEntry, EventEntry, IdempotencyRecord


def entry(number: int, **more: object) -> AuditEntry:
    fields = {"at": float(number), "actor": "ada (cli)", "user": "ada", "token": "token-1", "operation": "model.put"}
    return AuditEntry(**{**fields, "kind": "model", "target": f"m{number}", **more})


def happening(number: int, **more: object) -> EventEntry:
    return EventEntry(**{"id": f"e{number:03}", "at": float(number), "kind": "place", "reason": "fits", **more})


def walk(database: Database, read, limit: int) -> list:
    """Every item, page by page."""
    found, cursor = [], None
    for _ in range(1000):
        page = database.transact(lambda tx, cursor=cursor: read(tx, limit, cursor))
        assert len(page.items) == limit or page.next is None, "only the last page may be short"
        found += page.items
        cursor = page.next
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


# ---------------------------------------------------------------- audit


def test_an_audit_entry_comes_back_as_it_was(database: Database) -> None:
    """API-05: nothing, false and empty told apart; what came before and after as values."""
    first = entry(1, before={"a": [1, None, False]}, after=None, request_id="r-1")
    second = entry(2, before=False, after=[])
    database.transact(lambda tx: tx.audit.add(first, second))
    page = database.transact(lambda tx: tx.audit.page(10))
    assert [dataclasses.replace(one, id=0) for one in page.items] == [second, first]
    assert page.next is None and page.items[0].id > page.items[1].id > 0


def test_audit_entries_are_told_apart(database: Database) -> None:
    """API-05: by user, kind, target and time; ``since`` is inside, ``until`` is not."""
    entries = [
        entry(1),
        entry(2, user="eve", kind="key", target="k"),
        entry(3, kind="key", target="k"),
        entry(4, target="M1"),
    ]
    database.transact(lambda tx: [tx.audit.add(one) for one in entries])

    def at(**more: object) -> list[float]:
        return [one.at for one in database.transact(lambda tx: tx.audit.page(10, **more)).items]

    assert at() == [4, 3, 2, 1]
    assert at(user="ada") == [4, 3, 1]
    assert at(kind="key") == [3, 2]
    assert at(target="m1") == [1], "names differ by their case"
    assert at(user="ada", kind="key") == [3]
    assert at(since=2.0, until=4.0) == [3, 2]
    assert at(user="ad_") == at(user="%") == []


def test_entries_that_came_in_between_pages_repeat_and_hide_nothing(database: Database) -> None:
    """API-05: a cursor is a place, not a count."""
    database.transact(lambda tx: [tx.audit.add(entry(number)) for number in range(5)])
    first = database.transact(lambda tx: tx.audit.page(2))
    database.transact(lambda tx: tx.audit.add(entry(9)))
    second = database.transact(lambda tx: tx.audit.page(10, first.next))
    assert [one.at for one in first.items + second.items] == [4, 3, 2, 1, 0]


def test_old_entries_go_a_few_at_a_time(database: Database) -> None:
    """API-05: oldest first, no more than asked; the ids of what is gone are not used again."""
    database.transact(lambda tx: [tx.audit.add(entry(number)) for number in range(5)])
    last = database.transact(lambda tx: tx.audit.page(1)).items[0].id
    assert database.transact(lambda tx: tx.audit.drop_before(4.0, 3)) == 3
    assert [one.at for one in database.transact(lambda tx: tx.audit.page(9)).items] == [4, 3]
    assert database.transact(lambda tx: tx.audit.drop_before(4.0, 3)) == 1
    assert database.transact(lambda tx: tx.audit.drop_before(99.0, 3)) == 1
    assert database.transact(lambda tx: tx.audit.drop_before(99.0, 3)) == 0
    database.transact(lambda tx: tx.audit.add(entry(1)))
    assert database.transact(lambda tx: tx.audit.page(1)).items[0].id > last


def test_what_happened_is_cut_rather_than_lost(database: Database) -> None:
    """API-05: an endless or broken text does not keep a change from being recorded."""
    database.transact(lambda tx: tx.audit.add(entry(1, actor="a" * 5000, target="nul\0 half\udc80", after={"t": "\0"})))
    (kept,) = database.transact(lambda tx: tx.audit.page(1)).items
    assert kept.actor == "a" * 399 + "…"
    assert kept.target == "nul\ufffd half\ufffd" and kept.after == {"t": "\0"}


# ---------------------------------------------------------------- idempotency


def test_a_key_is_used_once_by_each_user(database: Database) -> None:
    """API-04: the change is found again; two users may choose the same key."""
    first = IdempotencyRecord("k-🦙", "ada", "0" * 64, "models/a", 1.0)
    other = dataclasses.replace(first, user="eve", target="models/b")
    database.transact(lambda tx: [tx.idempotency.add(one) for one in (first, other)])
    assert database.transact(lambda tx: tx.idempotency.find("ada", "k-🦙")) == first
    assert database.transact(lambda tx: tx.idempotency.find("eve", "k-🦙")) == other
    assert database.transact(lambda tx: tx.idempotency.find("eve", "K-🦙")) is None
    with pytest.raises(Duplicate):
        database.transact(lambda tx: tx.idempotency.add(first))


def test_old_idempotency_records_go(database: Database) -> None:
    """API-04: oldest first, no more than asked."""
    records = [IdempotencyRecord(f"k{number}", "ada", "d", "t", float(number)) for number in range(4)]
    database.transact(lambda tx: [tx.idempotency.add(one) for one in records])
    assert database.transact(lambda tx: tx.idempotency.drop_before(3.0, 2)) == 2
    assert database.transact(lambda tx: tx.idempotency.drop_before(3.0, 2)) == 1
    assert database.transact(lambda tx: tx.idempotency.find("ada", "k3")) == records[3]
    assert database.transact(lambda tx: tx.idempotency.find("ada", "k2")) is None


# ---------------------------------------------------------------- events


def test_an_event_handed_over_twice_is_kept_once(database: Database) -> None:
    """REC-02: by its id, also within one hand-over; the first stays as it was."""
    first = happening(1, epoch=3, model="m", replica="r", node="n", figures={"free": 1.5, "bad": None})
    database.transact(lambda tx: tx.events.add([first, dataclasses.replace(first, reason="again")]))
    database.transact(lambda tx: tx.events.add([dataclasses.replace(first, reason="later"), happening(2)]))
    database.transact(lambda tx: tx.events.add([]))
    assert database.transact(lambda tx: tx.events.page(9)).items == (happening(2), first)


def test_events_are_told_apart(database: Database) -> None:
    """OBS-02: by model, node, kind and time."""
    entries = [
        happening(1, model="a", node="n"),
        happening(2, model="b", node="n"),
        happening(3, kind="stop", model="a"),
    ]
    database.transact(lambda tx: tx.events.add(entries))

    def ids(**more: object) -> list[str]:
        return [one.id for one in database.transact(lambda tx: tx.events.page(9, **more)).items]

    assert ids(model="a") == ["e003", "e001"]
    assert ids(node="n") == ["e002", "e001"]
    assert ids(kind="stop") == ["e003"]
    assert ids(model="a", node="n") == ["e001"]
    assert ids(since=2.0, until=3.0) == ["e002"]


def test_pages_of_events_of_one_moment(database: Database) -> None:
    """Every event once, in one order, however the moments coincide and the ids are compared."""
    names = ["b", "B", "a", "_", "é", "1", "-a"]
    entries = [happening(0, id=f"{name}{moment!r}", at=moment) for name in names for moment in (1.1, 1.1 + 2**-40)]
    database.transact(lambda tx: tx.events.add(entries))
    for limit in (1, 2, 3, 7, 14):
        found = walk(database, lambda tx, limit, cursor: tx.events.page(limit, cursor), limit)
        assert sorted(one.id for one in found) == sorted(one.id for one in entries)
        assert [one.at for one in found] == sorted((one.at for one in entries), reverse=True)


def test_old_events_go(database: Database) -> None:
    """OBS-02: oldest first, no more than asked."""
    database.transact(lambda tx: tx.events.add([happening(number) for number in range(5)]))
    assert database.transact(lambda tx: tx.events.drop_before(4.0, 3)) == 3
    assert [one.id for one in database.transact(lambda tx: tx.events.page(9)).items] == ["e004", "e003"]


# ---------------------------------------------------------------- cursors


def encoded(place: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


NOBODYS = [
    *("", "!", "ü", "x", "[]", "W" * 5000),
    *(encoded(place) for place in ([], 1, [1], [1, 2], ["a", "b"], [math.nan, "a"], [True, "a"], [1.5, "\0"])),
    *(encoded(place) for place in ([None, "a"], [[1], "a"], [1.5, "\ud800"])),
]


def test_a_cursor_of_nobody_is_refused_in_words(database: Database) -> None:
    """API-03: whatever a client sends as a cursor, the database is not asked."""
    database.transact(lambda tx: tx.events.add([happening(1)]))
    for cursor in NOBODYS:
        with pytest.raises(BadCursor):
            database.transact(lambda tx, cursor=cursor: tx.events.page(1, cursor))


def test_a_cursor_of_another_list_is_refused(database: Database) -> None:
    """API-03: numbers where numbers belong."""
    database.transact(lambda tx: tx.audit.add(entry(1)))
    for cursor in (encoded([1.5]), encoded([2**70]), encoded(["1"]), encoded([1.5, "a"])):
        with pytest.raises(BadCursor):
            database.transact(lambda tx, cursor=cursor: tx.audit.page(1, cursor))
