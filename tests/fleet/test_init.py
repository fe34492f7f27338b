"""``llmgw init``: what it writes is what the three parts take, as it is."""

import json
import os
import pty
import select
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
import yaml
from click.testing import Result

from controlplane.store.database import Database
from controlplane.store.opening import backend_of
from controlplane.store.sqlite import Sqlite
from llmgw.demo.processes import end, marked
from llmgw.identity.folder import Folder
from tests.fakes.postgresql import Server
from tests.harness import identities
from tests.harness.commands import llmgw, program
from tests.harness.ports import PortBlock
from tests.harness.process import Process
from tests.harness.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MARK = "LLMGW_TEST_INIT"
NOT_OURS = ("SUDO_USER", "LLMGW_TOKEN", "LLMGW_TOKEN_FILE")
"""Variables of whoever runs the tests that say who that is."""


class Machine:
    """A home directory, and ``llmgw`` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etc, self.state, self.home = folder / "etc", folder / "var", folder / "home"
        self.home.mkdir(mode=0o700)
        self.block = PortBlock()
        ports = range(self.block.first, self.block.first + 5)
        self.router, self.admin, self.agents, self.routers, self.join = (f"127.0.0.1:{port}" for port in ports)
        self.token_file = self.home / ".config" / "llmgw" / "token"
        self.environment = {**os.environ, "HOME": str(self.home), "NO_COLOR": "1", MARK: str(folder)}
        self.environment |= {"LLMGW_API": f"http://{self.admin}"}
        for name in NOT_OURS:
            self.environment.pop(name, None)

    @property
    def places(self) -> list[str]:
        """Options that name directories and ports of this test's own."""
        given = {
            "--directory": self.etc,
            "--state-dir": self.state,
            "--node": "box",
            "--listen": self.router,
            "--admin-listen": self.admin,
            "--agents-listen": self.agents,
            "--routers-listen": self.routers,
            "--join-listen": self.join,
            "--engine-ports": f"{self.block.first + 5}-{self.block.last}",
        }
        return [str(word) for pair in given.items() for word in pair]

    def llmgw(self, *arguments: object, code: int = 0, **environment: str) -> Result:
        here = {**dict.fromkeys(NOT_OURS), **self.environment, **environment}
        return llmgw(*arguments, code=code, environment=here)

    def init(self, *more: object, code: int = 0, **environment: str) -> Result:
        return self.llmgw("init", "--yes", *self.places, *more, code=code, **environment)

    def part(self, name: str, module: str) -> Process:
        command = [sys.executable, "-m", module, "--config", str(self.etc / f"{name}.yaml")]
        return Process(name, command, self.folder / f"{name}.log", {MARK: str(self.folder), "HOME": str(self.home)})

    def files(self) -> dict[str, bytes]:
        """What init wrote, but for the store and the administrator's token."""
        found = sorted([*self.etc.rglob("*"), *self.state.glob("*/identity/*")])
        return {str(file.relative_to(self.folder)): file.read_bytes() for file in found if file.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    end(lambda: marked(MARK, str(tmp_path)), grace=5.0)
    end(lambda: marked("LLMGW_AGENT_STATE", str(made.state / "agent")), grace=0.5)
    made.block.close()


def test_from_nothing_to_an_answer(machine: Machine) -> None:
    """CLI-04: init, the three commands it names, a model, and the official client gets an
    answer with the key it printed; the command finds the administrator's token by itself."""
    done = machine.init()
    key = done.stdout.strip()
    assert key.startswith("sk-llmgw-") and "\n" not in key
    assert key not in done.stderr
    for name in ("server", "agent ", "router"):
        assert f"llmgw {name} --config {machine.etc}" in done.stderr
    keys = list(machine.folder.rglob("*key.pem"))
    assert len(keys) == 5, "three parts, the issuer and the root"
    private = [*machine.etc.glob("*.yaml"), *keys, machine.token_file, machine.state / "controlplane" / "llmgw.db"]
    for file in private:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    for folder in [machine.etc, *(found for found in machine.folder.glob("*/**/*") if found.is_dir())]:
        if machine.home not in folder.parents:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder

    # As the catalog's own comment says.
    example = (machine.etc / "catalog.yaml").read_text().partition("models: {}\n")[2]
    lines = [line.removeprefix("# ") for line in example.splitlines()]
    (machine.etc / "catalog.yaml").write_text("\n".join(lines[lines.index("models:") :]) + "\n")
    parts = {
        name: machine.part(name, module)
        for name, module in (("controlplane", "controlplane.main"), ("agent", "agent.main"), ("router", "router.main"))
    }

    def status() -> Any:
        for part in parts.values():
            assert part.running, part.tail()
        return json.loads(program("ctl", "models", "-o", "json", environment=machine.environment))

    def up() -> bool:
        try:
            return requests.get(f"http://{machine.admin}/healthz", timeout=5).ok
        except requests.ConnectionError:
            return False

    until(up, 30, "the control plane answers")
    until(lambda: any(model["ready"] for model in status()["models"]), 60, "the model is ready", every=0.5)
    client = openai.OpenAI(base_url=f"http://{machine.router}/v1", api_key=key, max_retries=0, timeout=30)

    def answer() -> str:
        try:
            made = client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "Hello"}])
        except openai.OpenAIError as error:
            raise AssertionError(str(error)) from error
        return made.choices[0].message.content or ""

    assert until(answer, 30, "an answer")
    token = machine.token_file.read_text().strip()
    told = [done.stdout, *(file.read_text() for file in machine.folder.glob("*.log"))]
    assert not any(token in text for text in told) and key not in "".join(told[1:])


def test_again_it_tells_and_adds_what_is_missing(machine: Machine) -> None:
    """CLI-04: nothing is made twice; a part that is missing is made; files with other
    content are kept unless --force says so, and identities always."""
    first = machine.init()
    before = machine.files()
    again = machine.init()
    assert again.stdout == "" and machine.files() == before
    assert "there is an administrator already" in again.stderr and "API keys already" in again.stderr
    (machine.etc / "router.yaml").unlink()
    shutil.rmtree(machine.state / "agent" / "identity")
    (machine.etc / "catalog.yaml").write_text("models: {}  # mine\n")
    third = machine.init()
    assert "with other content: kept" in third.stderr
    after = machine.files()
    assert after["etc/router.yaml"] == before["etc/router.yaml"]
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        "etc/catalog.yaml",
        "etc/authority/issued.jsonl",
        "var/agent/identity/certificate.pem",
        "var/agent/identity/key.pem",
    }, "an identity that is in use stays"
    for part, kind, name in (("agent", "node", "box"), ("router", "router", "box-router")):
        assert Folder(machine.state / part / "identity").check(kind=kind, name=name) == []
    assert b"mine" in after["etc/catalog.yaml"]
    machine.init("--force")
    forced = machine.files()
    assert b"mine" not in forced["etc/catalog.yaml"]
    assert {name for name in after if after[name] != forced[name]} == {"etc/catalog.yaml"}
    assert first.stdout.strip()
    database = Database(Sqlite(machine.state / "controlplane" / "llmgw.db")).open()
    users = database.transact(lambda tx: tx.people.users())
    keys = database.transact(lambda tx: tx.keys.all())
    audit = database.transact(lambda tx: tx.audit.page(10)).items
    database.close()
    assert len(users) == 1 and len(keys) == 1
    assert {entry.kind for entry in audit} == {"user", "token", "key"} and {e.operation for e in audit} == {"init"}


def test_identities_of_another_authority_are_told(machine: Machine) -> None:
    """CLI-04, SEC-01: what is there is kept, and what is wrong with it is said, with the remedy; without the
    authority nothing can be made, and nothing is."""
    machine.init()
    identities.strangers().node(machine.state / "agent" / "identity", "box")
    kept = machine.files()
    told = machine.init().stderr
    assert machine.files() == kept
    assert f"{machine.state}/controlplane/identity/authorities.pem: does not hold the authority of" in told
    identities.ours().node(machine.state / "agent" / "identity", "another")
    assert "is that of node another, not of node box" in machine.init().stderr

    shutil.rmtree(machine.etc / "authority")
    shutil.rmtree(machine.state / "agent" / "identity")
    refused = machine.init(code=2).stderr
    assert "node box cannot be made without it" in refused and "llmgw ctl cert issue" in refused
    assert not (machine.etc / "authority").exists() and not (machine.state / "agent" / "identity").exists()


def test_beside_an_identity_from_elsewhere_nothing_is_written(machine: Machine) -> None:
    """CLI-04: such as a control plane's, of llmgw ctl cert issue: what is lacking cannot be made, and that is said
    before anything is. With all of them there it goes on, and speaks of no root that is elsewhere."""
    folder = machine.state / "controlplane" / "identity"
    identities.ours().controlplane(folder, "box")
    told = machine.init(code=2).output
    assert f"another has made {folder}; node box and router box-router cannot be made" in " ".join(told.split())
    assert not machine.etc.exists() and [child.name for child in machine.state.iterdir()] == ["controlplane"]
    assert not machine.token_file.exists()
    identities.ours().node(machine.state / "agent" / "identity", "box")
    identities.ours().router(machine.state / "router" / "identity", "box-router")
    assert "root-key.pem" not in machine.init().output


def test_who_the_administrator_is(machine: Machine) -> None:
    """API-05: under sudo it is whoever called it; a token of another installation is not overwritten."""
    machine.token_file.parent.mkdir(parents=True)
    machine.token_file.write_text("adm-llmgw-another\n")
    done = machine.init(SUDO_USER="eve")
    assert "made the administrator eve" in done.stderr
    assert machine.token_file.read_text() == "adm-llmgw-another\n"
    assert f"--token-file {machine.state}/controlplane/init.token" in done.stderr
    database = Database(Sqlite(machine.state / "controlplane" / "llmgw.db")).open()
    (user,) = database.transact(lambda tx: tx.people.users())
    entry = database.transact(lambda tx: tx.audit.page(10)).items[0]
    database.close()
    assert user.name == "eve" and "sudo by eve" in entry.actor


def test_wrong_answers_are_told_and_nothing_is_half_done(machine: Machine, tmp_path: Path) -> None:
    """CLI-04: every refusal says what to do."""
    text = machine.llmgw("init", "--help").stdout
    assert text.startswith("Usage: llmgw init") and "Example:" in text
    assert "give --yes" in machine.llmgw("init", *machine.places, code=2).stderr
    for more, words in (
        (("--listen", "nowhere"), "must be HOST:PORT"),
        (("--admin-listen", "0.0.0.0:7000"), "loopback"),
        (("--node", "a b"), "letters, digits"),
        (("--store", "mysql://x"), "postgresql://"),
        (("--store", "postgresql://u:secret@h/d"), "must not hold a password"),
        (("--user", "local"), "must not be local"),
    ):
        refused = machine.init(*more, code=2)
        assert words in refused.stderr and "secret" not in refused.stderr, refused.stderr
    away = machine.init("--store", "postgresql://u@127.0.0.1:1/d", code=1)
    assert "postgresql://u@127.0.0.1:1/d" in away.stderr
    assert not machine.etc.exists(), "nothing was written yet"
    machine.etc.mkdir(mode=0o700)
    machine.etc.joinpath("controlplane.yaml").write_text("stat_dir: x\n")
    assert "stat_dir" in machine.init(code=2).stderr


def test_postgresql_is_tried_and_used(machine: Machine, postgresql_server: Server) -> None:
    """CLI-04, STO-01: the connection is tried before anything is written; the password is
    in a file, and in no argument."""
    database = postgresql_server.create()
    url = postgresql_server.url(database)
    done = machine.init("--store", url)
    assert done.stdout.startswith("sk-llmgw-")
    assert yaml.safe_load((machine.etc / "controlplane.yaml").read_text())["store"] == {"url": url}
    opened = Database(backend_of(url, None, machine.state)).open()
    assert len(opened.transact(lambda tx: tx.keys.all())) == 1
    opened.close()
    assert not (machine.state / "controlplane" / "llmgw.db").exists()
    found = json.loads(
        machine.llmgw("store", "check", "--config", machine.etc / "controlplane.yaml", "-o", "json").stdout
    )
    assert found["ok"] and found["rows"]["users"] == 1


def test_asking_on_a_terminal(machine: Machine) -> None:
    """CLI-04: questions with defaults; a wrong answer is told and asked for again."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "llmgw.cli", "init", *machine.places]
    process = subprocess.Popen(
        command, stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=machine.environment, cwd=ROOT
    )
    os.close(slave)
    seen = ""

    def wait_for(words: str) -> None:
        nonlocal seen
        while words not in seen:
            ready, _, _ = select.select([master], [], [], 30)
            assert ready, f"{words!r} did not come: {seen}"
            try:
                seen += os.read(master, 4096).decode(errors="replace")
            except OSError as error:
                raise AssertionError(seen) from error
        seen = seen.partition(words)[2]

    try:
        wait_for("Store: sqlite, or postgresql")
        os.write(master, b"mysql://x\n")
        wait_for("must begin with postgresql://")
        wait_for("Store: sqlite, or postgresql")
        os.write(master, b"sqlite\n")
        wait_for("Name of the first administrator")
        os.write(master, b"Not A Name\n")
        wait_for("must be 1 to 100")
        wait_for("Name of the first administrator")
        os.write(master, b"ada\n")
        wait_for("made the administrator ada")
        assert process.stdout is not None
        assert process.stdout.read().decode().startswith("sk-llmgw-")
        assert process.wait(20) == 0
    finally:
        process.kill()
        os.close(master)
        if process.stdout is not None:
            process.stdout.close()
