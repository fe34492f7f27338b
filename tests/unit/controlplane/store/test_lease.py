"""Conformance of every database: the lease is taken and renewed by one statement (HA-01, AGT-04)."""

import pytest

from controlplane.leadership.lease import Claim, Holder, Row, taking
from controlplane.store.database import Database
from controlplane.store.errors import NotLeading, StoreUnavailable
from controlplane.store.tables import leadership
from tests.unit.controlplane.store.places import Place, take_epoch

HOLDER = Holder("cp-1", {"agents": "10.0.0.1:7001", "admin": "[::1]:7000", "odd": "ü 🦙"})
A_DAY = 86_400.0


def claim(database: Database, owner: str, wanted: Claim, *, ttl: float = 30.0, holder: Holder = HOLDER) -> Row:
    """One claim, in a transaction of its own."""
    return database.transact(lambda tx: tx.leadership.claim(owner, wanted, ttl=ttl, holder=holder))


def read(database: Database) -> Row | None:
    """The row."""
    return database.transact(lambda tx: tx.leadership.read())


def test_a_row_comes_back_as_it_was_written(place: Place) -> None:
    """HA-01: to another process too; before anybody led there is none."""
    database = place.open()
    assert read(database) is None
    row = claim(database, "a" * 32, Claim(), ttl=6.25)
    assert row == Row("a" * 32, 1, 1, 6.25, HOLDER, row.renewed_at)
    assert read(place.open(write=False)) == row
    assert read(place.open(write=False)).holder.addresses == HOLDER.addresses


def test_only_the_owner_renews(database: Database) -> None:
    """HA-01: and the epoch stays; who saw nothing gets the row as it is."""
    first = claim(database, "a", Claim())
    again = claim(database, "a", Claim("a", first.renewals))
    assert (again.owner, again.renewals, again.epoch) == ("a", 2, 1)
    for wanted in (Claim(), Claim("a", 1, renewed_at=first.renewed_at), Claim("b", 2), Claim("", 2)):
        assert claim(database, "b", wanted) == again
    assert read(database) == again


def test_a_candidate_takes_what_it_saw_and_nothing_newer(database: Database) -> None:
    """HA-01: owner, count and stamp must be as they were."""
    seen = claim(database, "a", Claim())
    assert claim(database, "b", Claim("a", 1, renewed_at=(seen.renewed_at or 0.0) + 0.001)).owner == "a"
    taken = claim(database, "b", taking(seen), holder=Holder("cp-2"))
    assert (taken.owner, taken.renewals, taken.epoch, taken.holder.name) == ("b", 2, 2, "cp-2")
    assert claim(database, "c", taking(seen)) == taken
    assert claim(database, "a", Claim("a", 1)) == taken, "and the one before renews nothing"


def test_a_row_of_ours_that_is_older_than_we_know_is_not_renewed(database: Database) -> None:
    """HA-01: the store went back in time."""
    row = claim(database, "a", Claim())
    assert claim(database, "a", Claim("a", row.renewals + 1)) == row
    assert claim(database, "a", Claim("a", row.renewals)).renewals == row.renewals + 1


def test_a_released_row_is_free_for_who_saw_it_so(database: Database) -> None:
    """HA-02: a late claim of who was there before takes nothing; another's release changes nothing."""
    row = claim(database, "a", Claim())
    database.transact(lambda tx: tx.leadership.release("b"))
    assert read(database) == row
    database.transact(lambda tx: tx.leadership.release("a"))
    free = read(database)
    assert (free.owner, free.renewals, free.epoch, free.holder) == ("", 2, 1, Holder())
    assert claim(database, "a", Claim("a", 1)) == free
    assert claim(database, "b", taking(row)) == free
    assert claim(database, "b", taking(free)).epoch == 2


def test_epochs_rise_and_never_repeat(database: Database) -> None:
    """AGT-04: with each change of hands, above every one before and above the floor."""
    assert [database.transact(take_epoch) for _ in range(2)] == [1, 2]
    assert database.transact(lambda tx: take_epoch(tx, 40)) == 41
    assert database.transact(lambda tx: take_epoch(tx, 7)) == 42
    beyond = 2**40
    assert database.transact(lambda tx: take_epoch(tx, beyond)) == beyond + 1


def test_a_renewal_raises_the_epoch_to_its_floor(database: Database) -> None:
    """AGT-04: and never lowers it."""
    claim(database, "a", Claim())
    assert claim(database, "a", Claim(floor=9)).epoch == 9
    assert claim(database, "a", Claim(floor=3)).epoch == 9


def test_the_first_epoch_respects_what_is_known(database: Database) -> None:
    """AGT-04: an empty store beneath agents that obeyed epochs before."""
    assert claim(database, "a", Claim(floor=9)).epoch == 10


def test_the_clock_is_the_databases_and_goes_on_within_a_transaction(database: Database) -> None:
    """HA-01: the moment of the statement; when its transaction began would be the same for two."""

    def twice(tx) -> list[float]:
        return [tx.leadership.claim("a", Claim(), ttl=1.0, holder=HOLDER).renewed_at for _ in range(300)]

    stamps = database.transact(twice)
    assert stamps == sorted(stamps) and stamps[-1] > stamps[0]
    now = place_now(database)
    assert abs(stamps[-1] - now) < 10


def place_now(database: Database) -> float:
    """Unix time as the database has it."""
    postgresql = "SELECT extract(epoch FROM now())::float8"
    statement = postgresql if database._engine.dialect.name == "postgresql" else "SELECT 1.0 * strftime('%s', 'now')"
    return float(database.transact(lambda tx: tx.leadership._sql.connection.exec_driver_sql(statement).scalar()))


def test_what_another_program_wrote_as_holder_names_nobody(database: Database, place: Place) -> None:
    """HA-01: the row is shown to people and sent to peers: whatever stands there, nothing breaks."""
    claim(database, "a", Claim())
    for odd in ('"text"', "[1]", '{"name": 7, "addresses": [1]}', "{}", "null"):
        place.query(f"UPDATE leadership SET holder = '{odd}'")  # noqa: S608 - ours
        assert read(database).holder == Holder()


def test_whoever_lost_the_lease_writes_nothing_more(place: Place) -> None:
    """HA-01: what a transaction changes was its leader's to change; the store is not said to fail for it."""
    first = place.open()
    claim(first, "a", Claim())
    store = place.threads(guard=lambda tx: tx.leadership.require("a"))
    store.write(lambda tx: tx.secrets.all("x"))
    seen = read(first)
    claim(first, "b", taking(seen), holder=Holder("cp-2"))
    with pytest.raises(NotLeading, match=r"leads no more \(cp-2 took over\): nothing was changed"):
        store.write(lambda tx: tx.intents.set_labels("n1", {"a": "b"}))
    assert first.transact(lambda tx: tx.intents.nodes()) == {}
    assert store.failing == "" and store.failures == 0
    assert store.read(lambda tx: tx.intents.nodes()) == {}, "whoever reads is told"
    store.close()
    with pytest.raises(NotLeading, match="lets go of its store"):
        store.write(lambda tx: tx.leadership.read())
    with pytest.raises(NotLeading):
        store.read(lambda tx: tx.leadership.read())


def test_a_takeover_in_the_middle_of_a_change_undoes_the_change(place: Place) -> None:
    """HA-01: what the next leader does not see when it begins must not be kept afterwards."""
    ours, theirs = place.open(), place.open()
    claim(ours, "a", Claim())
    seen = read(ours)
    taken = []

    def change(tx) -> None:
        tx.leadership.require("a")
        if place.kind == "postgresql" and not taken:  # SQLite lets in one writer at a time
            taken.append(claim(theirs, "b", taking(seen)))
            theirs.transact(lambda tx: (tx.leadership.require("b"), tx.intents.nodes()))
        tx.intents.set_labels("n1", {"a": "b"})

    if place.kind == "sqlite":
        ours.transact(change)
        return
    with pytest.raises(NotLeading):
        ours.transact(change)
    assert theirs.transact(lambda tx: tx.intents.nodes()) == {}


def test_a_probe_needs_a_store_that_can_be_written_to(place: Place) -> None:
    """STO-03: and writes nothing."""
    database = place.open()
    row = claim(database, "a", Claim())
    database.transact(lambda tx: tx.leadership.probe())
    assert read(database) == row
    with pytest.raises(StoreUnavailable, match="only be read"):
        place.open(write=False).transact(lambda tx: tx.leadership.probe())


@pytest.mark.parametrize("column", ["epoch", "renewals"])
def test_a_row_that_nothing_can_follow_names_the_remedy(database: Database, column: str) -> None:
    """HA-01: as somebody's hand made it; no claim changes it, and the remedy works."""
    row = claim(database, "a", Claim())

    def put(value: int) -> None:
        database.transact(lambda tx: tx.leadership._sql.connection.execute(leadership.update().values({column: value})))

    put(2**63 - 1)
    told = rf"{column} of the row in table leadership is {2**63 - 1}.* set it to 0 in the database"
    for wanted in (Claim("a", 1), taking(row)):
        with pytest.raises(StoreUnavailable, match=told):
            claim(database, "a", wanted)
    with pytest.raises(StoreUnavailable, match=told):
        read(database)
    database.transact(lambda tx: tx.leadership.release("a"))
    database.transact(lambda tx: tx.leadership.require("a"))
    put(0)
    assert claim(database, "b", taking(read(database))).owner == "b"
