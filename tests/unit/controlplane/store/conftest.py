"""Each test has an empty store, on each kind of database."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from controlplane.store.database import Database
from controlplane.store.postgresql import Postgresql
from controlplane.store.sqlite import Sqlite
from controlplane.store.tables import metadata
from tests.fakes.postgresql import Server, postgresql_server
from tests.unit.controlplane.store.places import KINDS, Place, postgresql_place, sqlite_place

__all__ = ["postgresql_server"]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the newest schema."""
    file = tmp_path_factory.mktemp("store") / "template.db"
    Database(Sqlite(file)).open().close()
    return file


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


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store with the newest schema and nothing in it."""
    if request.param == "sqlite":
        with sqlite_place(tmp_path, request.getfixturevalue("sqlite_template")) as made:
            yield made
    else:
        url = request.getfixturevalue("postgresql_empty")()
        with postgresql_place(request.getfixturevalue("postgresql_server"), url) as made:
            yield made


@pytest.fixture(params=KINDS)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A database without any table."""
    if request.param == "sqlite":
        with sqlite_place(tmp_path) as made:
            yield made
    else:
        server = request.getfixturevalue("postgresql_server")
        with server.database() as url, postgresql_place(server, url) as made:
            yield made


@pytest.fixture
def database(place: Place) -> Database:
    """One writing connection."""
    return place.open()
