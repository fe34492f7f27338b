"""Who may bring a store that several control planes share up to a newer schema (HA-01, STO-01)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from controlplane.store.database import Database
from controlplane.store.errors import NotLeading, StoreError, StoreUnavailable
from controlplane.store.opening import threads
from controlplane.store.port import Transaction
from controlplane.store.schema import LEASE, configuration, current, head
from controlplane.store.sqlite import Sqlite

OLDER = f"{int(head()) - 1:04}"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """The same store, past the control planes; as the release before made it."""
    engine = create_engine(f"sqlite:///{tmp_path}/llmgw.db", poolclass=NullPool)
    with engine.begin() as made:
        command.upgrade(configuration(made), OLDER)
    with engine.connect() as looking:
        yield looking


def schema(connection: Connection) -> str | None:
    with connection.begin():
        return current(connection)


def not_leading(_tx: Transaction) -> None:
    raise NotLeading("another took over")


def test_who_leads_no_more_upgrades_nothing(tmp_path: Path, connection: Connection) -> None:
    """HA-01: asked in the transaction that would change the schema."""
    store = Sqlite(tmp_path / "llmgw.db")
    with pytest.raises(NotLeading, match="another took over"):
        threads(store, 5.0, not_leading).start()
    assert schema(connection) == OLDER
    threads(store, 5.0, lambda _tx: None).start().close()
    assert schema(connection) == head()


def test_what_stands_by_upgrades_nothing(tmp_path: Path, connection: Connection) -> None:
    """HA-01: what a term left waits until the schema is as this release knows it."""
    with pytest.raises(StoreUnavailable, match=f"its schema is {OLDER} and not {head()}"):
        threads(Sqlite(tmp_path / "llmgw.db"), 5.0, upgrade=False).start()
    assert schema(connection) == OLDER


def test_a_lease_is_seen_in_an_older_store_and_not_in_a_newer_one(tmp_path: Path, connection: Connection) -> None:
    """HA-01: so that a newer release can stand by, and an older one ends."""

    def lease() -> Database:
        return Database(Sqlite(tmp_path / "llmgw.db"), upgrade=lambda _tx: False, behind=True).open()

    store = lease()
    assert store.transact(lambda tx: tx.leadership.read()) is None
    store.close()
    assert store.transact(lambda tx: tx.leadership.read()) is None, "nor when it connects again"
    store.close()
    with connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer than this program's"):
        lease()
    with pytest.raises(StoreUnavailable, match=r"its schema \(9999\) is newer"):
        store.transact(lambda tx: tx.leadership.read())


def test_who_only_reads_is_told_that_the_schema_is_newer(tmp_path: Path, connection: Connection) -> None:
    """STO-01: so that a control plane of an older release does not ask for the lease; of an older schema
    nothing can be told, since whoever leads upgrades it."""

    def look() -> Database:
        return Database(Sqlite(tmp_path / "llmgw.db"), write=False).open()

    with pytest.raises(StoreUnavailable, match=f"its schema is {OLDER}"):
        look()
    with connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="run the newer llmgw"):
        look()


def test_a_store_from_before_there_was_a_lease_is_upgraded_at_once(tmp_path: Path) -> None:
    """STO-01: nobody can hold it."""
    engine = create_engine(f"sqlite:///{tmp_path}/llmgw.db", poolclass=NullPool)
    with engine.begin() as made:
        command.upgrade(configuration(made), f"{int(LEASE) - 1:04}")
    Database(Sqlite(tmp_path / "llmgw.db"), upgrade=lambda _tx: False, behind=True).open().close()
    with engine.connect() as looking:
        assert schema(looking) == head()
