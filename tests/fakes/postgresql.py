"""A real PostgreSQL server of our own: on a socket in a directory of its own, for one test run.

Its databases compare text by ICU's English rules, as a server set up for people does, so
that a query that relies on the order of bytes is found out.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

_INSTALLED = Path("/usr/lib/postgresql")
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Not for tests of durability."""


def binary(name: str) -> str:
    """The path of one of PostgreSQL's programs: the newest installed one, or PATH's."""
    versions = sorted(
        (version for version in _INSTALLED.glob("*/bin") if (version / name).exists()),
        key=lambda version: float(version.parent.name),
    )
    found = str(versions[-1] / name) if versions else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"PostgreSQL's {name} is not installed: run tools/setup.sh, or install 'postgresql'")
    return found


class Server:
    """One server. ``durable``: what it commits outlives its kill. ``tcp``: it listens on a
    free port of 127.0.0.1 too (``port``); the socket's directory is ``folder``."""

    def __init__(self, *, durable: bool = False, tcp: bool = False, settings: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="llmgw-pg-"))
        self.data = self.folder / "data"
        self.port = _free_port() if tcp else 5432  # without TCP only the name of the socket's file
        self._tcp = tcp
        self._settings = ({} if durable else FAST) | {"max_connections": "60"} | (settings or {})
        self._user: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=QUIT"]
        self._initialise()

    @property
    def pid(self) -> int:
        """The process that the others descend from."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> "Server":
        """Start it, and wait until it answers."""
        options = {"unix_socket_directories": str(self.folder), "listen_addresses": "127.0.0.1" if self._tcp else ""}
        options |= {"port": str(self.port)} | self._settings
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._user, binary("postgres"), "-D", str(self.data), *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                assert self._process.poll() is None and time.monotonic() < deadline, f"{error}\n{self.log()}"
                time.sleep(0.02)
            else:
                return self

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT lets go of its clients, SIGQUIT ends at once without a checkpoint,
        SIGKILL is a crash."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        self._process.send_signal(how)
        self._process.wait(30)
        self._process = None
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{child}").exists() for child in children):  # a killed server's outlive it for a moment
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        """End it and remove what it wrote."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def freeze(self) -> None:
        """Stop every process of it where it is, as a machine that hangs does."""
        for process in (*_children(self.pid), self.pid):
            os.kill(process, signal.SIGSTOP)

    def thaw(self) -> None:
        """End ``freeze``."""
        for process in (self.pid, *_children(self.pid)):
            os.kill(process, signal.SIGCONT)

    def log(self) -> str:
        """What it logged."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    # ---------------------------------------------------------------- databases

    def url(self, database: str, user: str = "postgres") -> str:
        """Where a database is: over TCP if the server listens there."""
        if self._tcp:
            return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement of its own, outside any transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create(self, template: str = "template1") -> str:
        """Make a database that is a copy of ``template``; its name."""
        self._made += 1
        name = f"test_{self._made}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """A database for one test: its URL."""
        name = self.create(template)
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _initialise(self) -> None:
        said = subprocess.run([binary("postgres"), "-V"], capture_output=True, text=True, check=True).stdout
        self.version = int(said.split()[2].partition(".")[0])
        icu = ["--locale-provider=icu", "--icu-locale=en-US"] if self.version >= 15 else []
        command = [*self._user, binary("initdb"), "-D", str(self.data), "--no-sync", "-A", "trust", "-U", "postgres"]
        command += ["-E", "UTF8", "--locale=C", *icu]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        # Who is called sealed needs a password.
        rules = self.data / "pg_hba.conf"
        sealed = "local all sealed scram-sha-256\nhost all sealed all scram-sha-256\n"
        rules.write_text(sealed + rules.read_text())


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in tasks.read_text().split()] if tasks.exists() else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A server for all tests of a run that leave it running; fast, not durable."""
    server = Server().start()
    yield server
    server.close()
