"""No secret of a whole run is anywhere but where it must be (SEC-03).

Searched for: API keys, tokens of the admin API, join tokens, private keys of every part and authority, the engine
secret and the keys derived from it, the database's password. Searched in: command lines and environments of every
process, logs, journal, metrics, what every reading operation of the API and the commands say, and every file.
"""

import gzip
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from cryptography.hazmat.primitives import serialization

from tests.fakes.controlplane import ControlPlane
from tests.fakes.postgresql import Server
from tests.harness import Cluster, identities, until
from tests.harness.layout import NODE, ROUTER_ID
from tests.harness.models import sim_model
from tests.harness.streams import OpenStream

Make = Callable[..., Cluster]

ENGINE_VARIABLES = ("LLAMA_API_KEY=", "LLMGW_SIM_API_KEY=")
"""How an engine learns its key: no other variable of any process may hold a secret."""

PASSWORD = "not-a-word-for-logs"


class Processes(threading.Thread):
    """Collects every command line on the machine, and every environment, again and again, so that
    short-lived processes are seen too. Of environments without the variables of engines."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self.environments: set[bytes] = set()
        self._known: set[tuple[str, bytes]] = set()
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        while not self._stopping.wait(0.02):
            for folder in Path("/proc").iterdir():
                if folder.name.isdigit():
                    try:
                        self._look(folder)
                    except OSError:
                        continue

    def _look(self, folder: Path) -> None:
        line = (folder / "cmdline").read_bytes()
        self.seen.add(line)
        if (folder.name, line) not in self._known:
            self._known.add((folder.name, line))
            entries = (folder / "environ").read_bytes().split(b"\0")
            self.environments |= {
                entry for entry in entries if not entry.decode(errors="replace").startswith(ENGINE_VARIABLES)
            }

    def stop(self) -> None:
        """Stop looking."""
        self._stopping.set()
        self.join()


@contextmanager
def watched_processes() -> Iterator[Processes]:
    """Collect while the block runs."""
    watcher = Processes()
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop()


# ---------------------------------------------------------------- what is searched for


def forms(key: str) -> Iterator[str]:
    """A private key in PEM as it may be written elsewhere: its first two lines, for the third has the public key
    alone, and its number."""
    yield from key.splitlines()[1:3]
    private = serialization.load_pem_private_key(key.encode(), None)
    yield f"{private.private_numbers().private_value:x}"  # type: ignore[union-attr]


def learn_keys(c: Cluster, *folders: Path) -> None:
    """Every private key that is on disk now is a secret of the run: renewed ones are others than before."""
    for folder in (c.folder, *folders):
        for file in folder.rglob("*key.pem"):
            for number, form in enumerate(forms(file.read_text())):
                c.secrets[f"private key {file.parent.parent.name}/{file.name} {form[-6:]} {number}"] = form


def learn_engine_secret(state: Path, secrets: dict[str, str]) -> None:
    """Every generation that the store has."""
    with closing(sqlite3.connect(state / "llmgw.db", timeout=10)) as store:
        rows = store.execute("SELECT number, value FROM secrets").fetchall()
    assert rows
    for number, value in rows:
        secrets[f"engine secret {number}"] = bytes(value).hex()
        raw[f"engine secret {number}"] = bytes(value)


raw: dict[str, bytes] = {}
"""Secrets that are bytes, as they are in files."""


def found(secrets: dict[str, str], text: str | bytes) -> list[str]:
    """The names of those that are in ``text``."""
    data = text.encode() if isinstance(text, str) else text
    return [name for name, secret in secrets.items() if secret.encode() in data or (name in raw and raw[name] in data)]


def meant(name: str, file: Path) -> bool:
    """Whether a file is the place of that secret."""
    if name.startswith("private key") or (" of " in name and "key" in name.partition(" of ")[0].split("-")):
        return file.name.endswith("key.pem") and file.parent.name in ("identity", "authority", "issued")
    if name.startswith("engine secret"):
        return file.name.startswith("llmgw.db") or file.suffix == ".backup"
    if name.startswith("engine key"):
        return file.name == "route-table.json" or (file.parent.name == "shards" and file.suffix == ".json")
    return name.startswith("admin token of") and file.name == "admin.token"


# ---------------------------------------------------------------- the API


def readings(c: Cluster) -> dict[str, str]:
    """What every reading operation of the API answers, metrics and pages; each must answer."""
    document = requests.get(f"{c.admin_url}/api/v1/openapi.json", timeout=10).json()
    named = {
        "models": {"name": "tiny"},
        "settings": {"name": "log.level"},
        "users": {"name": "ada"},
        "secrets": {"name": "engine"},
        "identities": {"kind": "node", "name": NODE},
        "tokens": {"token_id": c.api("tokens")["tokens"][0]["id"]},
        "join-tokens": {"token_id": c.api("join-tokens")["join_tokens"][0]["id"]},
        "nodes": {"node_id": NODE},
        "holds": {"domain": "rack=r12"},
        "replicas": {"replica_id": c.replica("tiny")["id"]},
        "keys": {"key_id": c.api("keys")["keys"][0]["id"]},
        "scopes": {"path": "acme"},
        "requests": {"request_id": c.api("requests")["requests"][0]["id"]},
    }
    answers = {}
    for path, operations in document["paths"].items():
        if "get" not in operations:
            continue
        resource = path.removeprefix("/api/v1/").partition("/")[0]
        url = c.admin_url + path.format(**named.get(resource, {}))
        limited = any(parameter.get("name") == "limit" for parameter in operations["get"].get("parameters", ()))
        answer = requests.get(url, {"limit": 1000} if limited else {}, headers=c.auth, timeout=20)
        assert answer.ok, f"{url}: {answer.status_code} {answer.text}"
        answers[path] = answer.text
    assert len(answers) > 30
    for path in ("/metrics", "/healthz", "/api/v1/docs", "/api/v1/openapi.json"):
        answers[path] = requests.get(c.admin_url + path, timeout=20).text
    return answers


# ---------------------------------------------------------------- a whole run


def test_no_secret_in_the_open(cluster: Make, models: dict[str, Any], tmp_path: Path) -> None:
    """SEC-03, ENG-03, SEC-01, SEC-02: a run with keys, wrong keys, tokens, joins, renewals of certificates, a root
    that is rotated, the engine secret too, errors, debug logs, restarts of every part, and a backup."""
    with watched_processes() as watcher:
        options = {part: {"log": {"level": "debug"}} for part in ("controlplane", "agent", "router")}
        c = cluster(
            {"tiny": models["tiny"], "sim": sim_model("--fail", "crash-after=3"), "bad": sim_model("--nonsense")},
            **options,
        )
        (site,) = c.layout.control_planes.values()
        ours, short = identities.ours(), timedelta(seconds=20)
        office = ours.authority_folder(c.folder / "authority")
        folders = (c.layout.nodes[NODE].identity, c.layout.router_state / "identity")
        for kind, name, folder in (("node", NODE, folders[0]), ("router", ROUTER_ID, folders[1])):
            ours.folder(folder, kind, name, lifetime=short)
        learn_keys(c)
        before = [(folder / "key.pem").read_text() for folder in folders]
        c.start()
        key = c.serve("tiny")
        client = c.client(key)
        pid = c.engine_pid("tiny")
        engine_key = c.engine_key(pid)
        assert len(engine_key) > 16
        wrong = "sk-llmgw-" + "wrong" * 8
        c.secrets["a wrong key"] = wrong
        with pytest.raises(openai.AuthenticationError):
            c.client(wrong).models.list()
        OpenStream(client, "tiny").join(20)

        # People, their tokens, machines that join, certificates that are made by hand.
        c.ctl("user", "add", "ada", "--role", "admin")
        c.secrets["admin token of ada"] = c.ctl("token", "add", "ada", "--name", "laptop").strip()
        c.ctl("scope", "add", "acme")
        c.ctl("hold", "rack=r12", "--reason", "new cables")
        made = c.llmgw_json("ctl", "nodes", "add", "gpu-1")
        head, secret, pin = made["token"].split(".")
        c.secrets["join token"] = secret
        for text in (made["token"], f"{head}.{secret[:-4]}AAAA.{pin}"):
            identities.private(tmp_path / "token", text)
            where = ("--identity", str(c.folder / "gpu-1" / "identity"), "--token-file", str(tmp_path / "token"))
            c.llmgw("join", "node", made["join"], "gpu-1", *where, "--force", check=False)
        arguments: tuple[str, ...]
        for arguments in (
            ("issue", "node", "gpu-2", "--out", str(c.folder / "gpu-2" / "issued")),
            ("init", "--rotate"),
            ("renew", str(site.identity)),
        ):
            c.llmgw("ctl", "cert", *arguments, "--authority", str(office))
        c.ctl("cert", "revoke", "node", "gpu-1", "--reason", "stolen", "--yes")
        learn_engine_secret(site.state, c.secrets)
        c.ctl("secrets", "rotate", "engine")
        learn_engine_secret(site.state, c.secrets)

        # Engines that crash and engines that refuse their arguments: their output is reported.
        until(lambda: c.api("models/bad")["failures"] >= 2, 20, "the bad one failed")
        until(
            lambda: all((folder / "key.pem").read_text() != old for folder, old in zip(folders, before, strict=True)),
            40,
            "the certificates are renewed",
        )
        learn_keys(c)
        for part in (c.agent, c.router, c.controlplane):
            part.kill()
            part.restart()
        c.wait_up()
        until(lambda: c.replica("tiny")["shards"][0]["adopted"], 30, "adopted")
        until(lambda: c.answers(client, "tiny"), 10)
        until(lambda: c.api("requests")["requests"], 20, "a request is logged")
        answers = readings(c)
        for arguments in (("status",), ("models",), ("replicas",), ("nodes",), ("explain", "bad"), ("cert", "list")):
            answers[" ".join(arguments)] = c.ctl(*arguments) + str(c.llmgw_json("ctl", *arguments))
        c.llmgw("store", "backup", "--config", str(c.settings("controlplane")), "--to", str(c.folder / "all.backup"))
        learn_keys(c)
        learn_engine_secret(site.state, c.secrets)

    assert len([name for name in c.secrets if name.startswith("private key")]) > 30
    for what, answer in answers.items():
        assert not found(c.secrets, answer), what

    # The test's own command lines hold none: what is found comes from the product.
    assert any(b"keys\0create" in line for line in watcher.seen), "the watcher did not see short-lived commands"
    for line in watcher.seen:
        assert not found(c.secrets, line), line
    for entry in watcher.environments:
        assert not found(c.secrets, entry), entry.partition(b"=")[0]

    read, held = set(), set()
    for file in c.folder.rglob("*"):
        if not file.is_file():
            continue
        data = file.read_bytes()
        if file.suffix == ".backup":
            data = gzip.decompress(data)
        read.add(file.name)
        for name in found(c.secrets, data):
            assert meant(name, file), f"{file} holds {name}"
            assert file.stat().st_mode & 0o077 == 0, f"{file} holds {name} and can be read by others"
            held.add((re.sub(r"[\d ].*", "", name), file.name))
    assert {"decisions.jsonl", "controlplane.log", "router.log", "agent.log", "issued.jsonl", "all.backup"} <= read
    # What a backup is for; and that the search finds what is there.
    assert {("engine", "all.backup"), ("private", "root-key.pem"), ("admin", "admin.token")} <= held, held
    engine_logs = [file for file in c.agent_state.rglob("*") if file.is_file() and b"llama" in file.read_bytes()]
    assert engine_logs, "the engine's output was not among the files looked through"


def test_the_databases_password(postgresql_server: Server, tmp_path: Path) -> None:
    """SEC-03, STO-01: it is in its own file and goes to the database; also when the database refuses it, no log,
    command line, environment, answer or file of ours has it."""
    postgresql_server.execute(f"CREATE ROLE sealed LOGIN PASSWORD '{PASSWORD}'")
    name = postgresql_server.create()
    postgresql_server.execute(f"ALTER DATABASE {name} OWNER TO sealed")
    password = tmp_path / "password"
    identities.private(password, PASSWORD)
    folder = tmp_path / "run"
    folder.mkdir()
    plane = ControlPlane(
        folder,
        log__level="debug",
        store__url=postgresql_server.url(name, "sealed"),
        store__password_file=str(password),
    )
    told = []
    try:
        with watched_processes() as watcher:
            plane.start()
            plane.agent().upgrade().hello()
            told += [json.dumps(plane.get(path)) for path in ("status", "settings", "audit", "events", "secrets")]
            told.append(requests.get(f"{plane.api}/metrics", timeout=20).text)
            postgresql_server.execute("ALTER ROLE sealed PASSWORD 'another'")
            ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname <> 'postgres'"
            postgresql_server.execute(ending)
            until(lambda: "password" in json.dumps(plane.get("status")["problems"]), 20, "the refusal is shown")
            told.append(json.dumps(plane.get("status")))
            assert plane.stop() == 0
    finally:
        postgresql_server.execute(f"DROP DATABASE {name} WITH (FORCE)")
        postgresql_server.execute("DROP ROLE sealed")
    told += [file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()]
    seen = [*told, *(line.decode(errors="replace") for line in watcher.seen | watcher.environments)]
    assert any("controlplane.main" in text for text in seen)
    assert not [text[:200] for text in seen if PASSWORD in text]
