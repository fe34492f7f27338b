"""Changes, their audit and their repetition, when the store is slow, away or raced."""

from collections.abc import Callable
from typing import Any

import pytest

from controlplane.services.changes import Asked, Changed, Changes, Principal, Replayed
from controlplane.services.errors import Refused
from controlplane.store.errors import Duplicate, StoreUnavailable
from controlplane.store.values import AuditEntry, Grant, IdempotencyRecord
from llmgw.runtime.clock import ManualClock

ADA = Principal("ada", "tok-1", (Grant("admin"),))


class Store:
    """Audit and idempotency in memory; a transaction that raises leaves nothing."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []
        self.records: dict[str, IdempotencyRecord] = {}
        self.away = False
        self.before_commit: Callable[[], None] = lambda: None

    def write(self, work: Callable[[Any], Any], timeout: float | None = None) -> Any:
        if self.away:
            raise StoreUnavailable("the store is away")
        staged = _Staged(self)
        result = work(staged)
        self.before_commit()
        for record in staged.records:
            if record.key in self.records:
                raise Duplicate("the key")
            self.records[record.key] = record
        self.entries += staged.entries
        return result

    read = write


class _Staged:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.entries: list[AuditEntry] = []
        self.records: list[IdempotencyRecord] = []
        self.audit = type("Audit", (), {"add": staticmethod(self.entries.append)})
        self.idempotency = type(
            "Idempotency", (), {"add": staticmethod(self.records.append), "find": staticmethod(self._find)}
        )

    def _find(self, user: str, key: str) -> IdempotencyRecord | None:
        return self._store.records.get(key)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def changes(store: Store) -> Changes:
    return Changes(store, ManualClock())  # type: ignore[arg-type]


def asked(key: str | None = None, digest: str = "d", **more: Any) -> Asked:
    return Asked(ADA, "things.change", idempotency_key=key, digest=digest, **more)


def test_a_change_and_its_audit_stand_or_fall_together(store: Store, changes: Changes) -> None:
    """API-05: what is refused in the transaction leaves no entry, nor a used key."""
    changes.make(asked("k"), lambda tx: Changed(1, "thing", "t", {"a": 1}, {"a": 2}))
    (entry,) = store.entries
    assert (entry.user, entry.token, entry.operation, entry.kind, entry.target) == (
        *("ada", "tok-1", "things.change", "thing", "t"),
    )
    assert (entry.before, entry.after) == ({"a": 1}, {"a": 2})

    def refuse(tx: Any) -> Changed[int]:
        raise Refused("conflict", "no", status=409)

    with pytest.raises(Refused):
        changes.make(asked("other"), refuse)
    assert len(store.entries) == 1 and list(store.records) == ["k"]


def test_a_key_makes_one_change(store: Store, changes: Changes) -> None:
    """API-04: a second request is told what the first one changed; another request is not taken for it."""
    changes.make(asked("k"), lambda tx: Changed(1, "thing", "t"))
    with pytest.raises(Replayed) as replayed:
        changes.make(asked("k"), lambda tx: pytest.fail("made twice"))
    assert replayed.value.target == "t"
    with pytest.raises(Refused) as refused:
        changes.make(asked("k", "another digest"), lambda tx: pytest.fail("made twice"))
    assert refused.value.code == "idempotency_conflict"


def test_two_requests_with_one_key_at_once(store: Store, changes: Changes) -> None:
    """API-04: the one that commits second is a repeat of the first."""

    def raced() -> None:
        store.before_commit = lambda: None
        store.records["k"] = IdempotencyRecord("k", "ada", "d", "of the first", 0.0)

    store.before_commit = raced
    with pytest.raises(Replayed) as replayed:
        changes.make(asked("k"), lambda tx: Changed(1, "thing", "of the second"))
    assert replayed.value.target == "of the first" and store.entries == []


def test_what_exists_already_is_a_conflict(changes: Changes) -> None:
    """API-04: and no error of our own."""

    def work(tx: Any) -> Changed[int]:
        raise Duplicate("the thing 'x'")

    with pytest.raises(Refused, match="the thing 'x' exists already") as refused:
        changes.make(asked(), work)
    assert refused.value.status == 409


def test_an_operation_is_carried_out_while_the_store_is_away(store: Store, changes: Changes) -> None:
    """API-05: it must be possible then; a change of the store's own data is not."""
    store.away = True
    assert changes.carry_out(asked("k"), lambda: Changed("done", "log-level", "log.level")) == "done"
    with pytest.raises(Refused) as refused:
        changes.make(asked(), lambda tx: Changed(1, "thing", "t"))
    assert refused.value.code == "store_unavailable"
    store.away = False
    changes.carry_out(asked("k"), lambda: Changed("done", "log-level", "log.level", "info", "debug"))
    assert [(entry.kind, entry.before, entry.after) for entry in store.entries] == [("log-level", "info", "debug")]
    with pytest.raises(Replayed):
        changes.carry_out(asked("k"), lambda: pytest.fail("done twice"))


@pytest.mark.parametrize(
    ("if_match", "version", "allowed"),
    [
        (None, 3, True),
        (None, None, True),
        ('"3"', 3, True),
        ('W/"3"', 3, True),
        ('"2", "3"', 3, True),
        ("*", 3, True),
        ("*", None, False),
        ('"2"', 3, False),
        ('"3"', None, False),
        ('"33"', 3, False),
    ],
)
def test_what_if_match_allows(if_match: str | None, version: int | None, allowed: bool) -> None:
    """API-04: RFC 9110, with weak tags taken for strong ones: a version is a version."""
    request = asked(if_match=if_match)
    if allowed:
        request.expect(version)
    else:
        with pytest.raises(Refused, match="read it again") as refused:
            request.expect(version)
        assert refused.value.status == 412
