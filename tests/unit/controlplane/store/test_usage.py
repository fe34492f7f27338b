"""Conformance of every database: usage by the hour, and the log of requests (TEN-06)."""

import math
import random

from controlplane.store.database import Database
from controlplane.store.queries.sequences import MOST_GAPS
from controlplane.store.values import Counted, RequestEntry, UsageOf, UsageRow
from tests.unit.controlplane.store.places import count_batch

HOUR, DAY = 3600.0, 86400.0
NOON = 20000 * DAY + 12 * HOUR


def request(number: int, at: float | None = None, **more: object) -> RequestEntry:
    fields = {"at": NOON + number if at is None else at, "id": f"r{number}", "key": "k", "scope": "org/a", "model": "m"}
    return RequestEntry(
        **{**fields, "status": 200, "router": "router-1", "prompt_tokens": 10, "completion_tokens": 5, **more}
    )


def count(
    database: Database, *entries: RequestEntry, sequence: int = 1, source: str = "router-1", boot: str = "b1"
) -> bool:
    return database.transact(lambda tx: count_batch(tx, source, boot, sequence, entries, log=True))


def rows(database: Database, *by: str, since: float = 0.0, until: float = 1e12, **more: object) -> tuple[UsageRow, ...]:
    return database.transact(lambda tx: tx.usage.rows(since, until, by=by, **more))


def row(start: float = 0.0, requests: int = 1, prompt: int = 10, completion: int = 5, **more: object) -> UsageRow:
    figures = {"failed": 0, "cached_tokens": 0, "uncounted": 0, "key": "", "scope": "", "model": ""}
    return UsageRow(
        start=start, requests=requests, prompt_tokens=prompt, completion_tokens=completion, **{**figures, **more}
    )


def ids(database: Database, **more: object) -> list[str]:
    return [one.id for one in database.transact(lambda tx: tx.usage.requests(50, **more)).items]


# ---------------------------------------------------------------- counting


def test_use_is_summed_by_the_hour(database: Database) -> None:
    """TEN-06: tokens, failures, and how many had no counts: unknown is not zero."""
    count(
        database,
        request(1, cached_tokens=4),
        request(2, status=503, code="no_replica", prompt_tokens=None, completion_tokens=None),
        request(3, completion_tokens=None),
        request(4, at=NOON + HOUR),
        request(5, at=NOON + HOUR - 2**-20),
    )
    first = row(NOON, 4, 30, 10, failed=1, cached_tokens=4, uncounted=1)
    assert rows(database, "hour") == (first, row(NOON + HOUR))
    assert rows(database) == (row(0.0, 5, 40, 15, failed=1, cached_tokens=4, uncounted=1),)


def test_a_batch_is_counted_once(database: Database) -> None:
    """STO-03: repeated batches are not; each process of each router counts from anew."""
    assert count(database, request(1), sequence=5) is True
    assert count(database, request(1), sequence=5) is False
    assert count(database, sequence=6) is True, "a batch may be empty"
    assert count(database, request(1), sequence=5) is count(database, request(1), sequence=6) is False
    assert count(database, request(2), sequence=7) is True
    assert count(database, request(3), sequence=1, boot="b2") is True
    assert count(database, request(4), sequence=1, source="router-2") is True
    assert rows(database)[0].requests == 4
    assert sorted(ids(database)) == ["r1", "r2", "r3", "r4"]


def test_a_batch_that_comes_late_is_counted_once(database: Database) -> None:
    """STO-03, HA-01: after those that another control plane was given; with the moment of the newest request."""
    for sequence in (1, 2, 7, 8):
        assert count(database, request(sequence), sequence=sequence) is True
    for sequence in (4, 3, 6, 5):
        assert count(database, request(sequence), sequence=sequence) is True
        assert count(database, request(sequence), sequence=sequence) is False
    assert rows(database)[0].requests == 8
    assert count(database, request(9, at=NOON + 5 * HOUR), sequence=20) is True
    assert count(database, request(10, at=NOON), sequence=19) is True
    database.transact(lambda tx: tx.usage.drop_usage(NOON + 5 * HOUR, 9))
    assert count(database, request(9, at=NOON + 5 * HOUR), sequence=20) is False, "known as long as its sums"


def test_batches_in_any_order_and_over_again(database: Database) -> None:
    """STO-03: several in one transaction, of several processes, each in the order of nobody: the sums are those
    of the set of them."""
    chance = random.Random(5)
    for turn in range(5):
        there = [
            (f"boot-{turn}-{boot}", number) for boot in range(3) for number in range(1, 15) if chance.random() < 0.8
        ]
        coming = chance.sample(there * 2, 2 * len(there))
        new = 0
        while coming:
            size = chance.randint(1, 9)
            some, coming = coming[:size], coming[size:]
            batches = [UsageOf("r", boot, number, (request(number, key=boot),)) for boot, number in some]
            counted = database.transact(lambda tx, batches=batches: tx.usage.add(batches, log=True))
            new += counted.new
            assert counted.given_up == 0
        assert new == len(there)
        for boot in {boot for boot, _ in there}:
            numbers = [number for other, number in there if other == boot]
            assert rows(database, key=boot)[0].requests == len(numbers)
            assert sorted(ids(database, key=boot)) == sorted(f"r{number}" for number in numbers)


def test_gaps_without_end_are_given_up(database: Database) -> None:
    """STO-03: the lowest first, and it is told how many batches may be missing for it."""
    numbers = range(2, 2 * (MOST_GAPS + 3) + 1, 2)
    batches = [UsageOf("r", "b", number, (request(number),)) for number in numbers]
    assert database.transact(lambda tx: tx.usage.add(batches, log=False)) == Counted(len(numbers), 3)
    late = [UsageOf("r", "b", number, (request(number),)) for number in (1, 3, 5, 7)]
    assert database.transact(lambda tx: tx.usage.add(late, log=False)) == Counted(1, 0)
    assert rows(database)[0].requests == len(numbers) + 1


def test_names_that_are_too_long_are_one_when_cut(database: Database) -> None:
    """STO-03: they share one row, in one transaction too."""
    batches = [UsageOf("r" * 300 + end, "b", 1, (request(1),)) for end in ("1", "2")]
    assert database.transact(lambda tx: tx.usage.add(batches, log=True)).new == 1
    assert count(database, source="r" * 999, boot="b") is False


def test_requests_are_counted_without_being_logged(database: Database) -> None:
    """TEN-06: ``requests.log`` off: the sums only."""
    assert database.transact(lambda tx: count_batch(tx, "r", "b", 1, [request(1)], log=False))
    assert (rows(database)[0].requests, ids(database)) == (1, [])


def test_batches_add_up(database: Database) -> None:
    """TEN-06: the same hour from many batches and routers; no figure overflows."""
    huge = 2**40
    for sequence in range(1, 4):
        count(database, request(sequence, prompt_tokens=huge), sequence=sequence)
    assert rows(database, "hour") == (row(NOON, 3, 3 * huge, 15),)
    assert isinstance(rows(database)[0].prompt_tokens, int)


def test_a_batch_of_many(database: Database) -> None:
    """TEN-06: more rows than fit one statement."""
    entries = [request(number, key=f"k{number % 700}") for number in range(2500)]
    count(database, *entries)
    assert rows(database)[0].requests == 2500
    assert len(rows(database, "key")) == 700
    page = database.transact(lambda tx: tx.usage.requests(3000))
    assert page.items == tuple(reversed(entries)) and page.next is None


# ---------------------------------------------------------------- sums


def test_sums_by_what_is_asked(database: Database) -> None:
    """TEN-06: fields that are not named are empty; days are UTC's."""
    count(
        database,
        request(1, key="k1", model="a"),
        request(2, key="k1", model="b"),
        request(3, key="k2", model="a", at=NOON + DAY),
        request(4, key="k2", model="a", at=NOON + 5 * HOUR, scope=""),
    )
    day = NOON - 12 * HOUR
    assert rows(database, "key") == (row(0, 2, 20, 10, key="k1"), row(0, 2, 20, 10, key="k2"))
    assert rows(database, "day") == (row(day, 3, 30, 15), row(day + DAY))
    assert rows(database, "day", "hour") == rows(database, "hour"), "the finer of both"
    assert rows(database, "model", "key") == (
        row(key="k1", model="a"),
        row(key="k1", model="b"),
        row(0, 2, 20, 10, key="k2", model="a"),
    )
    assert rows(database, "scope") == (row(scope=""), row(0, 3, 30, 15, scope="org/a"))
    assert rows(database, "hour", "key", "scope", "model")[0] == row(NOON, key="k1", scope="org/a", model="a")
    assert rows(database, key="k1") == (row(0, 2, 20, 10),)
    assert rows(database, model="b") == (row(),)
    assert rows(database, key="nobody") == rows(database, "key", key="nobody") == ()


def test_sums_from_one_hour_to_another(database: Database) -> None:
    """TEN-06: the hours that a period touches."""
    count(database, *(request(number, at=NOON + number * HOUR) for number in range(4)))

    def starts(since: float, until: float) -> list[float]:
        return [one.start - NOON for one in rows(database, "hour", since=since, until=until)]

    assert starts(NOON + HOUR, NOON + 3 * HOUR) == [HOUR, 2 * HOUR]
    assert starts(NOON + HOUR + 1, NOON + 3 * HOUR + 1) == [HOUR, 2 * HOUR, 3 * HOUR]
    assert starts(NOON + HOUR, NOON + HOUR) == []


def test_a_scope_takes_in_what_is_beneath_it(database: Database) -> None:
    """TEN-01: by whole names, exactly: neither a longer name, another case, nor a wildcard."""
    scopes = ["a", "a/b", "a/b/c", "ab", "A", "A/b", "a%", "a%/b", "a_", "", "ä/b"]
    count(database, *(request(number, scope=scope) for number, scope in enumerate(scopes)))
    for asked, expected in {
        "a": {"a", "a/b", "a/b/c"},
        "a/b": {"a/b", "a/b/c"},
        "a%": {"a%", "a%/b"},
        "a_": {"a_"},
        "ä": {"ä/b"},
        "b": set(),
    }.items():
        assert {one.scope for one in rows(database, "scope", scope=asked)} == expected
        page = database.transact(lambda tx, asked=asked: tx.usage.requests(50, scope=asked))
        assert {one.scope for one in page.items} == expected


# ---------------------------------------------------------------- the log


def test_a_logged_request_comes_back_as_it_was(database: Database) -> None:
    """TEN-06: every field, absent and zero told apart; moments to the last bit."""
    full = request(
        1,
        at=NOON + math.pi,
        asked="alias-🦙",
        replica="m-1/0",
        code="engine_died",
        status=502,
        stream=True,
        first_byte=0.1 + 0.2,
        duration=1e-9,
        prompt_tokens=0,
        completion_tokens=2**40,
        cached_tokens=3,
        retried=("refused", "timeout"),
    )
    bare = request(2, prompt_tokens=None, completion_tokens=None)
    count(database, full, bare)
    assert database.transact(lambda tx: tx.usage.request("r1")) == full
    assert database.transact(lambda tx: tx.usage.request("r2")) == bare
    assert database.transact(lambda tx: tx.usage.request("R1")) is None
    assert database.transact(lambda tx: tx.usage.requests(9)).items == (full, bare)
    assert database.transact(lambda tx: tx.usage.request("r1")).stream is True


def test_a_request_id_that_a_client_chose_twice(database: Database) -> None:
    """CLI-05: ids are the clients' to choose: both are logged, the newest is told."""
    count(database, request(1, at=NOON))
    count(database, request(1, at=NOON + 5), sequence=2)
    assert ids(database) == ["r1", "r1"]
    assert database.transact(lambda tx: tx.usage.request("r1")).at == NOON + 5


def test_logged_requests_are_told_apart(database: Database) -> None:
    """CLI-05: by key, model, replica, failure and time."""
    count(
        database,
        request(1, key="k1"),
        request(2, model="m2", replica="m2-1"),
        request(3, status=429),
        request(4, code="client_gone"),
        request(5, status=399),
    )
    assert ids(database) == ["r5", "r4", "r3", "r2", "r1"]
    assert ids(database, key="k1") == ["r1"]
    assert ids(database, model="m2") == ids(database, replica="m2-1") == ["r2"]
    assert ids(database, failed=True) == ["r4", "r3"]
    assert ids(database, failed=False) == ["r5", "r2", "r1"]
    assert ids(database, since=NOON + 2, until=NOON + 4) == ["r3", "r2"]
    assert ids(database, key="k1", model="m2") == []


def test_pages_of_requests_of_one_moment(database: Database) -> None:
    """Every request once, newest first, however many began at the same time."""
    entries = [request(number, at=NOON + number // 4) for number in range(10)]
    count(database, *entries)
    for limit in (1, 4, 10, 11):
        found, cursor = [], None
        while len(found) < 99:
            page = database.transact(lambda tx, limit=limit, cursor=cursor: tx.usage.requests(limit, cursor, model="m"))
            found += page.items
            cursor = page.next
            if cursor is None:
                break
        assert len(found) == 10 and set(found) == set(entries)
        assert [one.at for one in found] == sorted((one.at for one in entries), reverse=True)


def test_texts_of_requests_are_cut(database: Database) -> None:
    """STO-01: what a client sends as a model's name does not stop the counting."""
    count(database, request(1, asked="x" * 9000, model="nul\0"))
    (kept,) = database.transact(lambda tx: tx.usage.requests(1)).items
    assert kept.asked == "x" * 199 + "…" and kept.model == "nul\ufffd"
    assert rows(database, "model")[0].model == "nul\ufffd"


# ---------------------------------------------------------------- forgetting


def test_old_requests_go_a_few_at_a_time(database: Database) -> None:
    """TEN-06: oldest first, no more than asked; the sums stay."""
    count(database, *(request(number) for number in range(5)))
    assert database.transact(lambda tx: tx.usage.drop_requests(NOON + 4, 3)) == 3
    assert ids(database) == ["r4", "r3"]
    assert database.transact(lambda tx: tx.usage.drop_requests(NOON + 4, 3)) == 1
    assert database.transact(lambda tx: tx.usage.drop_requests(NOON + 4, 3)) == 0
    assert rows(database)[0].requests == 5


def test_old_sums_go_by_whole_hours(database: Database) -> None:
    """TEN-06: an hour goes when all of it is older."""
    count(database, *(request(number, at=NOON + number * HOUR, key=f"k{number}") for number in range(4)))
    assert database.transact(lambda tx: tx.usage.drop_usage(NOON + HOUR - 1, 9)) == 0
    assert database.transact(lambda tx: tx.usage.drop_usage(NOON + 3 * HOUR, 2)) == 2
    assert [one.start - NOON for one in rows(database, "hour")] == [2 * HOUR, 3 * HOUR]
    assert database.transact(lambda tx: tx.usage.drop_usage(NOON + 3 * HOUR, 9)) == 1


def test_a_batch_is_known_as_long_as_its_sums(database: Database) -> None:
    """STO-03: forgetting old sums forgets no router that may repeat a batch of newer ones."""
    count(database, request(1, at=NOON + 9 * HOUR), sequence=3)
    database.transact(lambda tx: tx.usage.drop_usage(NOON + 9 * HOUR, 9))
    assert count(database, request(1, at=NOON + 9 * HOUR), sequence=3) is False
