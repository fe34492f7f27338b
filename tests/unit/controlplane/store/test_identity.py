"""Conformance of every database: keys, scopes, people, secrets."""

import dataclasses

import pytest

from controlplane.store.database import Database
from controlplane.store.errors import Duplicate
from controlplane.store.values import AdminToken, ApiKey, Grant, Scope, StoredSecret, User
from tests.unit.controlplane.store.places import Place

ODD = "Zoë '%_\\\" 🦙"
"""What databases quote, match or compare in ways of their own."""


def key(number: int, **more: object) -> ApiKey:
    fields = {"id": f"key-{number}", "name": f"key {number}", "shown": "sk-llmgw-abc", "digest": f"{number:064x}"}
    return ApiKey(**{**fields, "created_at": float(number), "created_by": "ada", **more})


def token(number: int, user: str = "ada", **more: object) -> AdminToken:
    fields = {"name": "laptop", "shown": "adm-llmgw-abc", "created_at": float(number), "created_by": "eve"}
    return AdminToken(id=f"token-{number}", user=user, digest=f"{number:064x}", **{**fields, **more})


# ---------------------------------------------------------------- secrets


def secret(number: int, mark: str = "aa", value: bytes = bytes(range(256)), name: str = "engine") -> StoredSecret:
    return StoredSecret(name, number, mark, value, 1.0 + number, "ada")


def test_a_secret_stays_what_it_was_at_first(database: Database) -> None:
    """ENG-03: the first candidate becomes the secret; bytes come back as they were."""
    first, other = secret(1), secret(1, "bb", b"other")
    assert database.transact(lambda tx: tx.secrets.begin(first)) == (first,)
    assert database.transact(lambda tx: tx.secrets.begin(other)) == (first,)
    more = secret(1, "cc", b"other", name="more")
    assert database.transact(lambda tx: tx.secrets.begin(more)) == (more,)
    assert "other" not in repr(other)


def test_generations_of_a_secret_are_kept_until_they_are_dropped(database: Database) -> None:
    """SEC-08: oldest first; a number is taken once; the newest cannot be dropped."""
    rows = [secret(number, f"m{number}") for number in (1, 2, 10)]
    for row in rows:
        database.transact(lambda tx, row=row: tx.secrets.add(row))
    assert database.transact(lambda tx: tx.secrets.begin(secret(1, "zz"))) == tuple(rows)
    with pytest.raises(Duplicate):
        database.transact(lambda tx: tx.secrets.add(secret(2, "other")))
    database.transact(lambda tx: tx.secrets.drop("engine", ["1-m1", "2-other", "10-m10"]))
    assert database.transact(lambda tx: tx.secrets.all("engine")) == tuple(rows[1:])
    database.transact(lambda tx: tx.secrets.drop("more", ["2-m2"]))
    assert database.transact(lambda tx: tx.secrets.all("engine")) == tuple(rows[1:])


# ---------------------------------------------------------------- keys


def test_keys_come_back_as_they_were_oldest_first(place: Place) -> None:
    """SEC-03, TEN-01: every field, absent and empty told apart, seen by the next process."""
    first = key(1, name=ODD, models=("a", "b"), scope="org/team", expires_at=9.125, version=3)
    second = key(2, models=())
    place.open().transact(lambda tx: [tx.keys.add(one) for one in (second, first)])
    again = place.open().transact(lambda tx: tx.keys.all())
    assert again == (first, second)
    assert again[1].models == () and again[0].expires_at == 9.125 and again[1].expires_at is None
    assert key(3).models is None, "no list at all is another thing"


def test_a_key_for_all_models_is_not_one_for_none(database: Database) -> None:
    """SEC-03: ``None`` stays ``None`` in JSON columns (it is no JSON null)."""
    database.transact(lambda tx: tx.keys.add(key(1)))
    assert database.transact(lambda tx: tx.keys.all())[0].models is None


def test_a_key_is_revoked_once(database: Database) -> None:
    """SEC-03, API-04: the first revocation stands; its version rose once."""
    database.transact(lambda tx: tx.keys.add(key(1)))
    revoked = database.transact(lambda tx: tx.keys.revoke("key-1", 7.5, ODD))
    assert revoked == dataclasses.replace(key(1), revoked_at=7.5, revoked_by=ODD, version=2)
    assert database.transact(lambda tx: tx.keys.revoke("key-1", 8.0, "eve")) == revoked
    assert database.transact(lambda tx: tx.keys.all()) == (revoked,)
    assert database.transact(lambda tx: tx.keys.revoke("key-2", 8.0, "eve")) is None


@pytest.mark.parametrize("other", [key(1), key(2, digest=key(1).digest)], ids=["id", "digest"])
def test_a_key_that_is_there_is_no_new_key(database: Database, other: ApiKey) -> None:
    """The duplicate is told in words; the transaction is still good for what comes after."""
    database.transact(lambda tx: tx.keys.add(key(1)))

    def twice(tx) -> None:
        with pytest.raises(Duplicate, match=other.id):
            tx.keys.add(other)
        tx.keys.add(key(3))

    database.transact(twice)
    assert [one.id for one in database.transact(lambda tx: tx.keys.all())] == ["key-1", "key-3"]


# ---------------------------------------------------------------- scopes


def test_scopes_are_put_replaced_and_removed(database: Database) -> None:
    """TEN-01: by path, and in the order of their characters whatever the database collates by."""
    paths = ["b", "B", "a", "a/x", "a-x", "a/x/y", "é"]
    for path in paths:
        database.transact(lambda tx, path=path: tx.scopes.put(Scope(path, ODD, 1.0, "ada")))
    assert [scope.path for scope in database.transact(lambda tx: tx.scopes.all())] == sorted(paths)
    changed = Scope("a", "new", 1.0, "ada", version=2)
    database.transact(lambda tx: tx.scopes.put(changed))
    assert changed in database.transact(lambda tx: tx.scopes.all())
    database.transact(lambda tx: tx.scopes.remove("a"))
    database.transact(lambda tx: tx.scopes.remove("nothing"))
    assert [scope.path for scope in database.transact(lambda tx: tx.scopes.all())] == sorted(set(paths) - {"a"})


# ---------------------------------------------------------------- people


def test_users_have_their_grants(database: Database) -> None:
    """API-08: replaced whole, removed with grants and tokens, administrators too."""
    ada = User("ada", (Grant("admin"),), 1.0, "local")
    eve = User("eve", (Grant("auditor"), Grant("owner", "a"), Grant("owner", "a/b")), 2.0, "ada", disabled_at=3.5)
    database.transact(lambda tx: [tx.people.put_user(user) for user in (eve, ada)])
    assert database.transact(lambda tx: tx.people.users()) == (ada, eve)
    fewer = dataclasses.replace(eve, grants=(Grant("owner", "a"), Grant("owner", "a")), disabled_at=None, version=2)
    database.transact(lambda tx: tx.people.put_user(fewer))
    (_, kept) = database.transact(lambda tx: tx.people.users())
    assert kept == dataclasses.replace(fewer, grants=(Grant("owner", "a"),)), "a grant given twice is one"
    database.transact(lambda tx: tx.people.add_token(token(1, "eve")))
    database.transact(lambda tx: tx.people.remove_user("eve"))
    database.transact(lambda tx: tx.people.remove_user("nobody"))
    assert database.transact(lambda tx: (tx.people.users(), tx.people.tokens())) == ((ada,), ())


def test_a_user_that_is_changed_keeps_its_tokens(database: Database) -> None:
    """API-08: other roles do not lock a person out."""
    database.transact(lambda tx: tx.people.put_user(User("ada", (Grant("admin"),), 1.0, "local")))
    database.transact(lambda tx: tx.people.add_token(token(1)))
    database.transact(lambda tx: tx.people.put_user(User("ada", (), 1.0, "local", version=2)))
    assert database.transact(lambda tx: tx.people.tokens()) == (token(1),)


def test_tokens_are_kept_and_revoked_once(database: Database) -> None:
    """SEC-03: oldest first, every field; the first revocation stands."""
    database.transact(lambda tx: tx.people.put_user(User("ada", (), 1.0, "local")))
    database.transact(lambda tx: [tx.people.add_token(token(number)) for number in (2, 1)])
    assert database.transact(lambda tx: tx.people.tokens()) == (token(1), token(2))
    revoked = database.transact(lambda tx: tx.people.revoke_token("token-1", 5.0, "ada"))
    assert revoked == dataclasses.replace(token(1), revoked_at=5.0, revoked_by="ada")
    assert database.transact(lambda tx: tx.people.revoke_token("token-1", 6.0, "eve")) == revoked
    assert database.transact(lambda tx: tx.people.revoke_token("token-9", 6.0, "eve")) is None
    with pytest.raises(Duplicate):
        database.transact(lambda tx: tx.people.add_token(token(1)))


def test_nobody_has_no_token(database: Database) -> None:
    """API-08: a token belongs to a user that exists."""
    with pytest.raises(ValueError, match="no user 'ghost'"):
        database.transact(lambda tx: tx.people.add_token(token(1, "ghost")))
    assert database.transact(lambda tx: tx.people.tokens()) == ()


# ---------------------------------------------------------------- limits


def test_a_name_that_no_database_takes_is_refused_by_all(database: Database) -> None:
    """STO-01: SQLite would take what PostgreSQL cannot; neither keeps half of it."""
    for name in ("x" * 201, "nul\0", "half \ud800"):
        with pytest.raises(ValueError, match=r"api_keys\.name"):
            database.transact(lambda tx, name=name: tx.keys.add(key(1, name=name)))
    assert database.transact(lambda tx: tx.keys.all()) == ()
    database.transact(lambda tx: tx.keys.add(key(1, name="🦙" * 200)))
    assert database.transact(lambda tx: tx.keys.all())[0].name == "🦙" * 200, "characters count, not bytes"
