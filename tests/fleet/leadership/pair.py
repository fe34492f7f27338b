"""Two control planes on one store, with a short lease."""

import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import requests

from tests.fakes.controlplane import Agent, ControlPlane, until

TTL = 3.0
RENEW = 0.5
TAKEOVER = 4.0
"""Seconds beyond the end of the lease that a takeover may take (HA-02)."""

PATIENCE = 6.0
"""Seconds more where other tests keep the processors busy."""

SETTLED = {"settling__steady": "300ms", "settling__limit": "1s"}


class Member(ControlPlane):
    """One of them. ``name`` is ``cp-1`` or ``cp-2``."""

    def __init__(self, directory: Path, name: str, url: str, **more: Any) -> None:
        directory.mkdir()
        ha = {"enabled": True, "name": name, "ttl": f"{TTL}s", "renew": f"{RENEW}s"}
        super().__init__(directory, **{"store__url": url, "ha": ha} | SETTLED | more)
        self.name = name
        self._file = Path(url.removeprefix("sqlite://")) if url.startswith("sqlite://") else None

    def leads(self) -> bool:
        """Whether it says so itself."""
        return self.metric("llmgw_leader ") == 1

    def serves(self) -> bool:
        """Whether it leads and answers to people."""
        return self.ask("status").status_code == 200

    def sure(self) -> bool:
        """Whether it leads beyond doubt."""
        return self.metric("llmgw_lease_sure ") == 1

    def ask(self, path: str) -> requests.Response:
        """A request of a person."""
        headers = self.auth if (self.state / "admin.token").exists() else {}
        return requests.get(f"{self.api}/api/v1/{path}", headers=headers, timeout=30)

    def freeze(self) -> None:
        """SIGSTOP, but not in the middle of a write: on SQLite a process that stands still
        with the file locked keeps everybody from writing, whoever leads."""
        self._stop()
        while self._file is not None and _locked(self._file):
            self.tell(signal.SIGCONT)
            time.sleep(random.uniform(0.0, 0.02))  # another moment than the one before
            self._stop()

    def _stop(self) -> None:
        """A thread that is in the kernel when the signal comes, such as to take a lock, finishes that first."""
        self.tell(signal.SIGSTOP)
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task")
        until(lambda: all(_state(task) == "T" for task in tasks.iterdir()), "all of it stands still")

    def told(self) -> dict[str, Any]:
        """What an agent is told that is refused."""
        agent = self.agent().upgrade().hello()
        refuse = agent.receive()
        agent.close()
        return {} if refuse is None else {name: getattr(refuse, name, None) for name in refuse.__struct_fields__}


class Pair:
    """``first`` leads, ``second`` stands by, once ``start`` returns."""

    def __init__(self, directory: Path, url: str, **more: Any) -> None:
        self.first = Member(directory / "first", "cp-1", url, **more)
        self.second = Member(directory / "second", "cp-2", url, **more)

    def start(self) -> "Pair":
        """One after the other."""
        self.first.start()
        self.second.start()
        return self

    def stop(self) -> None:
        """Whoever runs, or stands still."""
        for member in (self.first, self.second):
            if member.process is not None and member.process.poll() is None:
                member.tell(signal.SIGCONT)
            if member.process is not None:
                member.stop()


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def _locked(database: Path) -> bool:
    """Whether somebody writes to the file now."""
    with closing(sqlite3.connect(database, timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
    return False


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Until now."""
        return time.monotonic() - self._began


def session(member: ControlPlane, node: str = "node-1", **hello: Any) -> Agent:
    """An agent's registered session."""
    return member.agent(node).upgrade().hello(**hello).register()
