"""Walking the schema, and what is refused (STO-01), on every database."""

import importlib
import re
import shutil
import sqlite3
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from controlplane.events import Cordon
from controlplane.store import schema
from controlplane.store.database import Database
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.schema import configuration, current, head
from controlplane.store.tables import metadata
from controlplane.store.values import ApiKey, NodeIntent
from tests.unit.controlplane.store.places import Place, take_epoch
from tests.unit.controlplane.store.test_identity import key

STEPS = [step.revision for step in reversed(list(ScriptDirectory.from_config(configuration()).walk_revisions()))]

ROWS: dict[str, str] = {
    "0001": """
        INSERT INTO api_keys (id, name, shown, digest, models, created_at, created_by, expires_at)
        VALUES ('key-1', 'ü', 'sk', 'd1', '["a"]', 1.5, 'ada', NULL);
        INSERT INTO api_keys (id, name, shown, digest, models, created_at, created_by, revoked_at, revoked_by)
        VALUES ('key-2', 'n', 'sk', 'd2', NULL, 2.5, 'ada', 3.5, 'eve');
        INSERT INTO node_intents (node_id, cordon_reason, cordon_actor, cordon_at)
        VALUES ('n1', 'disk', 'ada', '2026');
        INSERT INTO leadership (id, epoch) VALUES (1, 7);
        INSERT INTO secrets (name, value, created_at) VALUES ('engine', 'abc', 1.0)
    """,
    "0002": """
        INSERT INTO users (name, created_at, created_by) VALUES ('ada', 1.0, 'local');
        INSERT INTO grants (user_name, role, scope) VALUES ('ada', 'admin', '');
        INSERT INTO admin_tokens (id, user_name, name, shown, digest, created_at, created_by)
        VALUES ('t1', 'ada', 'n', 's', 'd', 1.0, 'local');
        INSERT INTO audit (at, actor, user_name, token, operation, kind, target, request_id)
        VALUES (1.0, 'a', 'a', 't', 'o', 'k', 'x', '')
    """,
    "0003": """
        INSERT INTO requests (at, id, key_id, scope, model, asked, status, code, router, replica, stream)
        VALUES (1.0, 'r1', 'k', 'a/b', 'm', '', 200, '', 'router-1', '', '1')
    """,
    "0004": """
        UPDATE leadership SET owner = 'cp', renewals = 7, ttl = 30.0, holder = '{"name": "a"}', renewed_at = 1.5
    """,
    "0005": """
        INSERT INTO identities (kind, name, enrolled_at, enrolled_by, revoked_at)
        VALUES ('node', 'n1', 1.0, 'ada', 2.5);
        INSERT INTO join_tokens (id, digest, kind, name, created_at, created_by, expires_at)
        VALUES ('join-1', 'd', 'node', 'n1', 1.0, 'ada', 901.0)
    """,
    "0006": """
        INSERT INTO secrets (name, number, mark, value, created_at, created_by)
        VALUES ('another', 3, '0a0b', 'abc', 1.0, 'ada')
    """,
    "0007": """
        INSERT INTO usage_sources (source, boot, sequence, at, gaps) VALUES ('router-1', 'b', 9, 1.0, '[2, 4]')
    """,
}
"""Rows in the shape of each step, put in when a walk reaches it."""


def walk(place: Place, work: Any) -> None:
    """Run ``work`` with a connection of its own, in one transaction."""
    connection = place.backend().engine(write=True).connect()
    try:
        with connection.begin():
            work(connection)
    finally:
        connection.close()


def fill(connection: Connection, step: str) -> None:
    rows = ROWS[step]
    if connection.dialect.name == "sqlite":
        rows = rows.replace("'abc'", "x'616263'")  # bytes are written otherwise
    for statement in rows.split(";"):
        connection.exec_driver_sql(statement)


def test_every_step_has_rows_to_walk_with() -> None:
    """A new step brings rows of its shape into this test."""
    assert list(ROWS) == STEPS


def test_each_step_walks_up_and_down_with_its_rows(bare: Place) -> None:
    """STO-01: every migration is reversible, and what has a place in the older schema stays."""

    def up_and_down(connection: Connection) -> None:
        config = configuration(connection)
        counts: dict[str, dict[str, int]] = {}

        def count() -> dict[str, int]:
            tables = [name for name in inspect(connection).get_table_names() if name != "alembic_version"]
            return {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in tables}  # noqa: S608

        for step in STEPS:
            command.upgrade(config, step)
            fill(connection, step)
            counts[step] = count()
        for older, newer in reversed(list(pairwise(STEPS))):
            stays = {name: rows for name, rows in count().items() if name in counts[older]}
            command.downgrade(config, older)
            assert current(connection) == older
            assert count() == stays, f"rows were lost on the way down from {newer}"
            command.upgrade(config, newer)
            assert {name: rows for name, rows in count().items() if name in stays} == stays
            command.downgrade(config, older)
        command.downgrade(config, "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}
        command.upgrade(config, "head")
        assert current(connection) == head()

    walk(bare, up_and_down)


def test_the_steps_make_what_the_queries_expect(bare: Place) -> None:
    """STO-01: tables, columns, types, keys and indexes are those of ``tables``."""

    def compare(connection: Connection) -> None:
        command.upgrade(configuration(connection), "head")
        defaults = bare.kind == "postgresql"  # Alembic takes SQLite's '' for another default than ''
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": defaults}
        )
        assert compare_metadata(context, metadata) == []
        for table in metadata.sorted_tables:
            found = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
            assert found == [column.name for column in table.primary_key], table.name
            checks = inspect(connection).get_check_constraints(table.name)
            assert bool(checks) == (table.name == "leadership"), checks

    walk(bare, compare)


def test_a_store_of_the_first_release_is_upgraded_with_what_is_in_it(bare: Place, tmp_path: Path) -> None:
    """STO-01: keys, secrets, cordons and the epoch are there after the upgrade."""
    walk(bare, lambda connection: (command.upgrade(configuration(connection), "0001"), fill(connection, "0001")))
    database = bare.open()
    read = database.transact(
        lambda tx: (
            tx.keys.all(),
            tx.intents.nodes(),
            [(row.number, row.value, row.created_at, len(row.mark)) for row in tx.secrets.all("engine")],
            take_epoch(tx),
        )
    )
    first = ApiKey("key-1", "ü", "sk", "d1", 1.5, "ada", models=("a",))
    second = ApiKey("key-2", "n", "sk", "d2", 2.5, "ada", revoked_at=3.5, revoked_by="eve")
    assert read == ((first, second), {"n1": NodeIntent(Cordon("disk", "ada", "2026"), {})}, [(1, b"abc", 1.0, 8)], 8)
    if bare.kind == "sqlite":
        copy = tmp_path / "llmgw.db.before-0001"
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        with sqlite3.connect(copy) as connection:
            assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
            assert connection.execute("SELECT count(*) FROM api_keys").fetchall() == [(2,)]
        connection.close()


def test_a_step_that_fails_leaves_the_schema_as_it_was(bare: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-01: an upgrade is all or nothing, and the next start does it again."""
    walk(bare, lambda connection: (command.upgrade(configuration(connection), "0001"), fill(connection, "0001")))

    def upgrade_then_fail(config: Any, revision: str) -> None:
        command_upgrade(config, revision)
        raise RuntimeError("power")

    command_upgrade = command.upgrade
    monkeypatch.setattr("controlplane.store.schema.command.upgrade", upgrade_then_fail)
    with pytest.raises(RuntimeError):
        bare.open()
    monkeypatch.undo()
    walk(bare, lambda connection: _is_at(connection, "0001"))
    assert len(bare.open().transact(lambda tx: tx.keys.all())) == 2


def _is_at(connection: Connection, step: str) -> None:
    assert current(connection) == step
    assert "scopes" not in inspect(connection).get_table_names()


def test_a_schema_of_the_future_is_refused_and_left_alone(place: Place) -> None:
    """STO-01: what a newer program wrote is not touched, by writer or reader; the remedy is told."""
    place.open().transact(lambda tx: tx.keys.add(key(1)))
    place.query("UPDATE alembic_version SET version_num = '9999'")
    try:
        for write in (True, False):
            with pytest.raises(
                StoreError, match=rf"\(9999\) is newer than this program's \({head()}\): run the newer llmgw"
            ):
                Database(place.backend(), write=write).open()
        assert place.query("SELECT id FROM api_keys") == [("key-1",)]
        assert place.query("SELECT version_num FROM alembic_version") == [("9999",)]
    finally:
        place.query(f"UPDATE alembic_version SET version_num = '{head()}'")  # noqa: S608 - a step of ours


@pytest.fixture
def newer_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package on disk is upgraded while this process runs: there is one more step."""
    head()
    shipped = Path(importlib.import_module("migrations").__path__[0])
    folder = tmp_path / "upgraded" / "migrations"
    shutil.copytree(shipped, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9000_newer.py").write_text(
        "from alembic import op\n"
        f"revision, down_revision, branch_labels, depends_on = '9000', '{STEPS[-1]}', None, None\n"
        "def upgrade():\n    op.execute('DROP TABLE events')\n"
    )
    original = configuration

    def upgraded(connection: Connection | None = None, **attributes: Any) -> Any:
        config = original(connection, **attributes)
        config.set_main_option("script_location", str(folder))
        return config

    monkeypatch.setattr(schema, "configuration", upgraded)


@pytest.mark.usefixtures("newer_package")
def test_a_running_process_does_not_take_the_schema_of_an_upgraded_package(bare: Place) -> None:
    """STO-01: a database that it opens later gets the schema that its own code knows."""
    bare.open().transact(lambda tx: tx.keys.add(key(1)))
    walk(bare, lambda connection: _has(connection, STEPS[-1], "events"))


def _has(connection: Connection, step: str, table: str) -> None:
    assert current(connection) == step
    assert table in inspect(connection).get_table_names()


@pytest.mark.usefixtures("newer_package")
def test_a_running_process_refuses_what_the_upgraded_package_made_of_the_store(bare: Place) -> None:
    """STO-01: another control plane was started anew and upgraded the schema: the old code
    neither writes into it nor opens it again."""
    database = bare.open()
    database.close()
    walk(bare, lambda connection: command.upgrade(schema.configuration(connection), "9000"))
    with pytest.raises(StoreUnavailable, match=rf"\(9000\) is newer than this program's \({STEPS[-1]}\)"):
        database.transact(lambda tx: tx.keys.all())
    with pytest.raises(StoreError, match=rf"\(9000\) is newer than this program's \({STEPS[-1]}\)"):
        bare.open()


def test_a_database_of_another_program_is_refused(bare: Place) -> None:
    """STO-01: we do not put our tables among those of others."""
    bare.query("CREATE TABLE recipes (id INTEGER)")
    with pytest.raises(StoreError, match=r"tables of another program \(recipes\): give llmgw a database of its own"):
        bare.open()
    bare.query("CREATE TABLE alembic_version (version_num VARCHAR(32))")
    bare.query("INSERT INTO alembic_version VALUES ('1975ea83b712')")
    with pytest.raises(StoreError, match=r"schema \(1975ea83b712\) is none of llmgw's"):
        bare.open()
    assert bare.query("SELECT version_num FROM alembic_version") == [("1975ea83b712",)]


def test_a_reader_does_not_make_tables(bare: Place) -> None:
    """STO-01: only the writer upgrades; a reader that comes first says so."""
    with pytest.raises(StoreUnavailable, match="its schema is none"):
        Database(bare.backend(), write=False).open()


def test_migrations_import_nothing_of_ours() -> None:
    """STO-01: a migration means the same whatever the code has become."""
    modules = list(Path(importlib.import_module("migrations").__path__[0]).rglob("*.py"))
    assert len(modules) >= len(STEPS)
    for module in modules:
        assert not re.search(r"^\s*(from|import) (controlplane|llmgw|router|agent)\b", module.read_text(), re.M)
