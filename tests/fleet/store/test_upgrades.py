"""A store of the first release, started by this program's control plane (STO-01)."""

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from controlplane.store.backup import unpacked
from controlplane.store.check import look
from controlplane.store.opening import backend_of
from controlplane.store.schema import configuration, head
from llmgw.wire.messages import Welcome
from tests.fakes.controlplane import ControlPlane
from tests.fakes.postgresql import Server
from tests.unit.controlplane.store.test_schema import fill


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store at the first step, with rows of its shape."""
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/old.db"  # four slashes, as in SQLAlchemy's URLs
        engine = create_engine(made, poolclass=NullPool)
        with engine.begin() as connection:
            command.upgrade(configuration(connection), "0001")
            fill(connection, "0001")
        yield made
        return
    server: Server = request.getfixturevalue("postgresql_server")
    with server.database() as made:
        engine = create_engine(made.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
        with engine.begin() as connection:
            command.upgrade(configuration(connection), "0001")
            fill(connection, "0001")
        yield made


def test_the_first_release_is_upgraded_with_a_backup_and_all_that_is_in_it(url: str, tmp_path: Path) -> None:
    """STO-01: a copy of the old schema is made first, whole and for its owner only; keys,
    cordons and the epoch are there afterwards; the next start upgrades nothing."""
    control_plane = ControlPlane(tmp_path, store__url=url).start()
    try:
        keys = {key["id"]: key for key in control_plane.get("keys")["keys"]}
        assert sorted(keys) == ["key-1", "key-2"]
        assert keys["key-1"]["name"] == "ü" and keys["key-1"]["models"] == ["a"]
        assert keys["key-2"]["revoked_at"] and keys["key-2"]["revoked_by"] == "eve"
        agent = control_plane.agent("n1").upgrade().hello()
        agent.expect(Welcome)
        assert control_plane.get("nodes/n1")["cordon"]["reason"] == "disk"
        agent.close()
        assert control_plane.get("status")["epoch"] == 8
    finally:
        assert control_plane.stop() == 0
    backups = sorted((control_plane.state / "backups").glob("*")) if url.startswith("postgresql") else []
    backups += sorted(tmp_path.glob("old.db.before-*"))
    (backup,) = backups
    assert "0001" in backup.name and stat.S_IMODE(backup.stat().st_mode) == 0o600
    if url.startswith("postgresql"):
        with unpacked(backup, tmp_path / "unpacked") as (manifest, _):
            assert manifest.schema == "0001"
            assert {name: rows for name, (rows, _) in manifest.tables.items()} == {
                "api_keys": 2,
                "leadership": 1,
                "node_intents": 1,
                "secrets": 1,
            }
    else:
        with sqlite3.connect(backup) as connection:
            assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
            assert connection.execute("SELECT count(*) FROM api_keys").fetchall() == [(2,)]
        connection.close()
    found = look(backend_of(url, None, tmp_path), tmp_path / "none")
    assert (found.schema, found.faults) == (head(), [])
    control_plane.start()
    assert control_plane.get("status")["epoch"] == 9
    assert control_plane.stop() == 0
    assert "Traceback" not in control_plane.log()
    folder = control_plane.state / "backups"
    assert len(list(folder.glob("*")) if folder.exists() else []) + len(list(tmp_path.glob("old.db.before-*"))) == 1


def test_an_upgrade_without_room_for_the_copy_does_not_begin(url: str, tmp_path: Path) -> None:
    """STO-01: the control plane ends with words, and the old release can go on."""
    control_plane = ControlPlane(tmp_path, store__url=url)
    control_plane.state.mkdir(mode=0o700)
    if url.startswith("postgresql"):
        in_the_way = control_plane.state / "backups"
        in_the_way.write_text("")
    else:
        in_the_way = tmp_path / "old.db.before-0001"
        in_the_way.mkdir()
    with pytest.raises(AssertionError, match="did not start"):
        control_plane.start()
    assert control_plane.process is not None and control_plane.process.wait(20) == 2
    control_plane.stop()
    log = control_plane.log()
    assert "Traceback" not in log and str(in_the_way) in log and "its schema is to be upgraded" in log, log
    found = look(backend_of(url, None, tmp_path), tmp_path / "none")
    assert found.schema == "0001", "as it was"
    in_the_way.rename(tmp_path / "elsewhere")
    control_plane.start()
    assert control_plane.get("status")["epoch"] == 8
    assert control_plane.stop() == 0
