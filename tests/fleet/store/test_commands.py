"""``llmgw store`` as people use it, with the real control plane beside it."""

import json
import shutil
import signal
import sqlite3
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from controlplane.fleet.lead import MAX_EPOCH_STEP
from controlplane.store.database import Database
from controlplane.store.opening import backend_of
from controlplane.store.postgresql import Postgresql
from controlplane.store.sqlite import Sqlite
from llmgw.wire.messages import Refuse, Start, Welcome
from llmgw.wire.routing import EPOCH_HEADER, decode_table
from tests.fakes.controlplane import ControlPlane, until
from tests.fakes.postgresql import Server
from tests.harness.commands import llmgw, program
from tests.unit.controlplane.operations.filled import filled, seen


def facts(*arguments: object, code: int = 0) -> dict[str, Any]:
    return dict(json.loads(llmgw(*arguments, "-o", "json", code=code).stdout))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane that does not run yet, with a filled store."""
    control_plane = ControlPlane(tmp_path)
    control_plane.state.mkdir(mode=0o700)
    filled(Sqlite(control_plane.state / "llmgw.db"))
    yield control_plane
    if control_plane.process is not None:
        control_plane.stop(signal.SIGKILL)


def use(site: ControlPlane, url: str, password_file: Path | None = None) -> None:
    """Name another store in the settings."""
    tree = yaml.safe_load(site.config.read_text())
    tree["store"] = {"url": url, **({"password_file": str(password_file)} if password_file else {})}
    site.config.write_text(yaml.safe_dump(tree))


def test_help_shows_examples_and_every_command(tmp_path: Path) -> None:
    """CLI-04: each command explains itself, under the name people type."""
    text = program("store", "--help")
    assert text.startswith("Usage: llmgw store") and all(n in text for n in ("check", "backup", "restore", "move"))
    for name in ("check", "backup", "restore", "move"):
        text = llmgw("store", name, "--help").stdout
        assert f"Usage: llmgw store {name}" in text and "Example:" in text and "--config" in text
    assert "No such command" in llmgw("store", "burn", code=2).stderr
    broken = tmp_path / "broken.yaml"
    broken.write_text("stat_dir: /x\n")
    assert "stat_dir" in llmgw("store", "check", "--config", broken, code=2).stderr
    assert "cannot be read" in llmgw("store", "check", "--config", tmp_path / "none.yaml", code=2).stderr


def test_check_beside_a_running_control_plane(site: ControlPlane) -> None:
    """CLI-04: tells what there is; exit status 1 and words when something is wrong."""
    site.start()
    found = facts("store", "check", "--config", site.config)
    assert found["ok"] and found["rows"]["api_keys"] == 2 and found["spooled_batches"] == 0 and found["faults"] == []
    shown = llmgw("store", "check", "--config", site.config).stdout
    assert "Nothing is wrong." in shown and "api_keys" in shown
    assert len(site.get("keys")["keys"]) == 2
    site.stop()
    (site.state / "llmgw.db").unlink()
    assert "no store yet" in llmgw("store", "check", "--config", site.config, code=1).stdout
    assert not facts("store", "check", "--config", site.config, code=1)["ok"]


def test_backup_while_it_runs_and_restore_after_a_loss(site: ControlPlane, tmp_path: Path) -> None:
    """STO-02: the machine loses its disk; the backup brings everything back but what came after it."""
    site.enrol("node-1")  # which does not come: meanwhile nothing is decided
    before = seen(Sqlite(site.state / "llmgw.db"))
    site.start()
    to = tmp_path / "b.backup"
    told = facts("store", "backup", "--config", site.config, "--to", to)
    assert told["file"] == str(to) and told["rows"]["api_keys"] == 2
    assert stat.S_IMODE(to.stat().st_mode) == 0o600
    usual = llmgw("store", "backup", "--config", site.config)
    assert Path(usual.stdout.strip()).parent == site.state / "backups" and "secrets" in usual.stderr
    assert "exists already" in llmgw("store", "backup", "--config", site.config, "--to", to, code=1).stderr
    refused = llmgw("store", "restore", "--config", site.config, to, "--replace", code=1)
    assert "stop it first" in refused.stderr
    site.stop()
    refused = llmgw("store", "restore", "--config", site.config, to, code=1)
    assert "not empty" in refused.stderr and "--replace" in refused.stderr
    shutil.rmtree(site.state)
    restored = llmgw("store", "restore", "--config", site.config, to)
    assert "verified" in restored.stdout
    assert seen(Sqlite(site.state / "llmgw.db")) == before
    site.start()
    assert len(site.get("keys")["keys"]) == 2


def test_a_restore_tells_what_is_valid_again(site: ControlPlane, tmp_path: Path) -> None:
    """STO-02, SEC-03: what was revoked after the backup is named; the events of that time are in the
    journal, and in the restored store again."""
    site.start()
    ask = partial(requests.request, headers=site.auth, timeout=20)
    url = f"{site.api}/api/v1"
    key = ask("POST", f"{url}/keys", json={"name": "leaked"}).json()["id"]
    assert ask("POST", f"{url}/users", json={"name": "mallory", "roles": [{"role": "auditor"}]}).status_code == 201
    token = ask("POST", f"{url}/tokens", json={"user": "mallory", "name": "laptop"}).json()["id"]
    to = tmp_path / "b.backup"
    llmgw("store", "backup", "--config", site.config, "--to", to)
    assert ask("DELETE", f"{url}/keys/{key}").status_code in {200, 204}
    assert ask("DELETE", f"{url}/tokens/{token}").status_code in {200, 204}
    assert ask("DELETE", f"{url}/identities/router/edge-1").status_code == 204
    agent = site.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    agent.close()

    def events() -> set[str]:
        database = Database(Sqlite(site.state / "llmgw.db")).open()
        try:
            return {event.id for event in database.transact(lambda tx: tx.events.page(1000)).items}
        finally:
            database.close()

    def journal() -> set[str]:
        lines = (site.state / "decisions.jsonl").read_text().splitlines()
        return {json.loads(line)["id"] for line in lines}

    until(lambda: journal() and journal() <= events(), "events")
    site.stop()
    restored = llmgw("store", "restore", "--config", site.config, to, "--replace").stderr
    assert (
        "3 that were revoked" in restored
        and "certificate router/edge-1" in restored
        and f"key {key} (leaked)" in restored
    )
    assert f"token {token} (laptop of mallory)" in restored
    assert facts("store", "check", "--config", site.config)["rows"]["join_tokens"] == 0, "one may have been used since"
    site.start()
    until(lambda: journal() <= events(), "the events since the backup")
    site.stop()
    told = facts("store", "restore", "--config", site.config, to, "--replace")
    assert "valid_again" not in told, "nothing was revoked since"


def lease_problem(site: ControlPlane) -> str:
    """What people are told of the lease; empty if nothing."""
    return "".join(problem["message"] for problem in site.get("status")["problems"] if problem["kind"] == "lease")


def test_agents_obey_after_a_restore(tmp_path: Path) -> None:
    """AGT-04, STO-02: agents took commands of epochs that the backup never saw; they get a
    higher one at once, from the restored store, and act on it."""
    site = ControlPlane(tmp_path).start()
    try:
        assert "restore" not in site.log()
        to = tmp_path / "b.backup"
        llmgw("store", "backup", "--config", site.config, "--to", to)
        for _ in range(3):
            site.stop()
            site.start()
        agent = site.agent().upgrade().hello()
        highest = agent.expect(Welcome).epoch
        assert highest == 4
        agent.close()
        site.stop()
        epoch = facts("store", "restore", "--config", site.config, to, "--replace")["epoch"]
        site.start()
        agent = site.agent().upgrade().hello(highest_epoch=highest)
        assert agent.expect(Welcome).epoch == epoch + 1 > highest
        agent.register()
        assert agent.expect(Start).epoch == epoch + 1
        agent.close()
        assert "a peer had seen a higher epoch" not in site.log(), "it did not take the agent to tell"
        # And where the lost store had gone further than that, however far, the agent's word counts.
        site.stop()
        site.start()
        further = epoch + 2 * MAX_EPOCH_STEP + 5000
        agent = site.agent().upgrade().hello(highest_epoch=further)
        assert agent.expect(Refuse).code == "epoch_unproven", "the store is asked first"
        agent.close()
        assert f"obeyed up to epoch {further} (node node-1)" in lease_problem(site)

        def welcome() -> Welcome | None:
            agent = site.agent().upgrade().hello(highest_epoch=further)
            answer = agent.receive()
            agent.close()
            return answer if isinstance(answer, Welcome) else None

        reached = until(welcome, "a welcome").epoch
        assert reached > further and lease_problem(site) == ""
        headers = {EPOCH_HEADER: f"{further} somebody"}
        table = site.router().get(f"{site.routers}/router/v1/table?wait=2", headers=headers, timeout=30)
        assert decode_table(table.content).epoch == reached, "routers take it"
    finally:
        site.stop(signal.SIGKILL)


def test_what_is_replaced_is_kept(site: ControlPlane, tmp_path: Path) -> None:
    """STO-02: ``--replace`` backs the old store up first; a store too damaged for that is moved aside."""
    to = tmp_path / "b.backup"
    llmgw("store", "backup", "--config", site.config, "--to", to)
    connection = sqlite3.connect(site.state / "llmgw.db")
    connection.execute("UPDATE scopes SET title = 'later'")
    connection.commit()
    connection.close()
    kept = facts("store", "restore", "--config", site.config, to, "--replace")["replaced"]
    assert b"later" not in (site.state / "llmgw.db").read_bytes()
    llmgw("store", "restore", "--config", site.config, kept, "--replace")
    assert {scope.title for scope in seen(Sqlite(site.state / "llmgw.db"))["scopes"]} == {"later"}  # type: ignore[attr-defined]
    (site.state / "llmgw.db").write_bytes(b"what a disk leaves " * 1000)
    aside = Path(facts("store", "restore", "--config", site.config, to, "--replace")["replaced"])
    assert aside.read_bytes().startswith(b"what a disk leaves")
    assert facts("store", "check", "--config", site.config)["ok"]
    before = (site.state / "llmgw.db").read_bytes()
    to.write_bytes(to.read_bytes()[:-50])
    assert "damaged" in llmgw("store", "restore", "--config", site.config, to, "--replace", code=1).stderr
    assert (site.state / "llmgw.db").read_bytes() == before, "a bad backup changes nothing"
    assert not [file for file in site.state.iterdir() if file.name.startswith(".llmgw")], "nothing is left over"


@pytest.fixture
def sealed(postgresql_server: Server) -> Iterator[str]:
    """The URL of an empty database whose owner needs a password."""
    database = postgresql_server.create()
    postgresql_server.execute("CREATE ROLE sealed LOGIN PASSWORD 'not-a-word-for-logs'")
    postgresql_server.execute(f"ALTER DATABASE {database} OWNER TO sealed")
    postgresql_server.execute("GRANT ALL ON SCHEMA public TO sealed", database)
    yield postgresql_server.url(database, "sealed")
    postgresql_server.execute(f"DROP DATABASE {database} WITH (FORCE)")
    postgresql_server.execute("DROP ROLE sealed")


def test_moving_to_postgresql_and_back(site: ControlPlane, tmp_path: Path, sealed: str) -> None:
    """STO-02: the whole way a person goes, by password file, and the same content at each end."""
    file = Sqlite(site.state / "llmgw.db")
    before = seen(file)
    url = sealed
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("wrong\n")
    to = ("--to", url, "--password-file", password)
    assert "password is wrong" in llmgw("store", "move", "--config", site.config, *to, code=1).stderr
    password.write_text("not-a-word-for-logs\n")
    password.chmod(0o644)
    assert "chmod 600" in llmgw("store", "move", "--config", site.config, *to, code=1).stderr
    password.chmod(0o600)
    site.start()
    assert "another control plane" in llmgw("store", "move", "--config", site.config, *to, code=1).stderr
    site.stop()
    before = seen(file)
    moved = llmgw("store", "move", "--config", site.config, *to)
    assert "counts and checksums agree" in moved.stdout and f"url: {url}" in moved.stderr
    assert "not-a-word-for-logs" not in moved.stdout + moved.stderr
    assert "not empty" in llmgw("store", "move", "--config", site.config, *to, code=1).stderr
    assert seen(Postgresql(url, lambda: "not-a-word-for-logs")) == before == seen(file)

    use(site, url, password)
    site.start()
    assert len(site.get("keys")["keys"]) == 2
    assert (
        "another control plane uses it"
        in llmgw("store", "move", "--config", site.config, "--to", f"sqlite://{tmp_path}/back.db", code=1).stderr
    )
    to_file = tmp_path / "pg.backup"
    llmgw("store", "backup", "--config", site.config, "--to", to_file)
    assert facts("store", "check", "--config", site.config)["ok"]
    site.stop()
    after = seen(Postgresql(url, lambda: "not-a-word-for-logs"))
    back = facts("store", "move", "--config", site.config, "--to", f"sqlite://{tmp_path}/back.db")
    assert back["tables"]["secrets"]["rows"] == 1
    assert seen(Sqlite(tmp_path / "back.db")) == after
    assert stat.S_IMODE((tmp_path / "back.db").stat().st_mode) == 0o600
    llmgw("store", "restore", "--config", site.config, to_file, "--replace")
    assert "store in use" in llmgw("store", "move", "--config", site.config, *to, code=1).stderr
    assert (
        "must not hold a password"
        in llmgw("store", "move", "--config", site.config, "--to", "postgresql://a:secret@h/d", code=2).stderr
    )
    assert backend_of(url, None, tmp_path).name == back["from"]
