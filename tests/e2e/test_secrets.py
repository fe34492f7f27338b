"""No secret of a whole run is in a command line, a log, or a file that others can read (SEC-03)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.harness import Cluster, until
from tests.harness.models import sim_model
from tests.harness.streams import OpenStream

Make = Callable[..., Cluster]


class CommandLines(threading.Thread):
    """Collects every command line on the machine, again and again, so that short-lived
    processes are seen too."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        while not self._stopping.wait(0.02):
            for folder in Path("/proc").iterdir():
                if folder.name.isdigit():
                    try:
                        self.seen.add((folder / "cmdline").read_bytes())
                    except OSError:
                        continue

    def stop(self) -> None:
        """Stop looking."""
        self._stopping.set()
        self.join()


@contextmanager
def watched_command_lines() -> Iterator[CommandLines]:
    """Collect while the block runs."""
    watcher = CommandLines()
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop()


def test_no_secret_in_the_open(cluster: Make, models: dict[str, Any]) -> None:
    """SEC-03, ENG-03: a run with keys, wrong keys, errors, debug logs, restarts of every part."""
    with watched_command_lines() as watcher:
        options = {part: {"log": {"level": "debug"}} for part in ("controlplane", "agent", "router")}
        c = cluster(
            {"tiny": models["tiny"], "sim": sim_model("--fail", "crash-after=3"), "bad": sim_model("--nonsense")},
            **options,
        ).start()
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
        # Engines that crash and engines that refuse their arguments: their output is reported.
        until(lambda: c.api("models/bad")["failures"] >= 2, 20, "the bad one failed")
        for part in (c.agent, c.router, c.controlplane):
            part.kill()
            part.restart()
        c.wait_up()
        until(lambda: c.replica("tiny")["shards"][0]["adopted"], 30, "adopted")
        until(lambda: c.answers(client, "tiny"), 10)
        for arguments in (("status",), ("models",), ("replicas",), ("nodes",), ("explain", "bad")):
            shown = c.ctl(*arguments) + str(c.llmgw_json("ctl", *arguments))
            assert not [name for name, secret in c.secrets.items() if secret in shown], arguments
        for path in ("status", "models", "replicas", "nodes", "keys", "settings"):
            assert not [name for name, secret in c.secrets.items() if secret in str(c.api(path))], path

    # The test's own command lines hold none: what is found comes from the product.
    assert any(b"keys\0create" in line for line in watcher.seen), "the watcher did not see short-lived commands"
    for name, secret in c.secrets.items():
        assert not [line for line in watcher.seen if secret.encode() in line], name

    given = {c.token_file, *(c.folder / name for name in ("fleet-tokens.yaml", "agent.token", "router.token"))}
    read = 0
    for file in c.folder.rglob("*"):
        if not file.is_file():
            continue
        data, read = file.read_bytes(), read + 1
        holds = [name for name, secret in c.secrets.items() if secret.encode() in data]
        if holds:
            assert file.stat().st_mode & 0o077 == 0, f"{file} holds {holds} and can be read by others"
            assert ".log" not in file.name, f"{file} holds {holds}"
            clients = [name for name in holds if name.startswith(("key", "a wrong"))]
            assert not clients, f"{file} holds {clients}, of which only digests are kept"
            tokens = [name for name in holds if name.endswith("token")]
            assert not tokens or file in given, f"{file} holds {tokens}"
    assert read > 10
    engine_logs = [file for file in c.agent_state.rglob("*") if file.is_file() and b"llama" in file.read_bytes()]
    assert engine_logs, "the engine's output was not among the files looked through"
