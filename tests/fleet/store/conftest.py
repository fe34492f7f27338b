"""Each test has an empty store in PostgreSQL."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from controlplane.store.database import Database
from controlplane.store.postgresql import Postgresql
from controlplane.store.tables import metadata
from tests.fakes.postgresql import Server
from tests.unit.controlplane.store.conftest import database, sqlite_template
from tests.unit.controlplane.store.places import Place, postgresql_place

__all__ = ["database", "sqlite_template"]


@pytest.fixture(scope="session")
def postgresql_empty(postgresql_server: Server) -> Iterator[Callable[[], str]]:
    """Gives the URL of a database with the newest schema, in which no row is left.

    A database for each test would be a second for each test where processors are busy.
    """
    name = postgresql_server.create()
    url = postgresql_server.url(name)
    Database(Postgresql(url)).open().close()
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        order = [table.name for table in reversed(metadata.sorted_tables)]
        assert {"alembic_version", *order} == {table for (table,) in tables}
        statement = "; ".join(f"DELETE FROM {table}" for table in order)  # noqa: S608 - names of ours

        def empty() -> str:
            connection.execute(statement.encode())
            return url

        yield empty


@pytest.fixture
def place(postgresql_server: Server, postgresql_empty: Callable[[], str]) -> Iterator[Place]:
    """A store with the newest schema and nothing in it."""
    with postgresql_place(postgresql_server, postgresql_empty()) as made:
        yield made


@pytest.fixture
def bare(postgresql_server: Server) -> Iterator[Place]:
    """A database without any table."""
    with postgresql_server.database() as url, postgresql_place(postgresql_server, url) as made:
        yield made
