"""A real control plane in a process of its own, and an agent's end of the wire."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import requests
import yaml

from controlplane.commands.shared import backend
from controlplane.settings import load
from controlplane.store.database import Database
from controlplane.store.values import Enrolled
from llmgw.runtime.files import private_directory
from llmgw.runtime.settings import Address, parse_address
from llmgw.wire.frames import Decoder, down_decoder, encode
from llmgw.wire.messages import (
    Cpu,
    Down,
    EngineInstall,
    Heartbeat,
    Hello,
    Inventory,
    Message,
    PortRange,
    Register,
    Unknown,
)
from tests.harness import identities

ROUTER = "router-1"
DEADLINE = 30.0

LISTENERS = ("agents.listen", "routers.listen", "join.listen", "admin.listen")

CATALOG: dict[str, Any] = {
    "models": {
        "sim-small": {
            "aliases": ["small", "org/small:1b@main"],
            "scaling": {"min": 1, "max": 1},
            "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 0.5, "cpu_cores": 1}],
        },
        "sim-huge": {
            "scaling": {"min": 1, "max": 1},
            "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 999, "cpu_cores": 1}],
        },
        "sim-off": {
            "scaling": {"min": 0, "max": 0},
            "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 1}],
        },
    }
}


def until(condition: Any, what: str = "the condition", timeout: float = DEADLINE) -> Any:
    """Poll until ``condition()`` is true; its value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout:g} s")
        time.sleep(0.02)


class ControlPlane:
    """``python -m controlplane.main`` on ports of its own choice, in ``directory``, with an identity of
    the test run's authority. ``nodes`` were enrolled before its first start; others are by their
    first contact."""

    def __init__(self, directory: Path, catalog: Any = None, nodes: Collection[str] = (), **settings: Any) -> None:
        self.directory = directory
        self.config = directory / "controlplane.yaml"
        self.catalog = directory / "catalog.yaml"
        self.state = directory / "state"
        self.catalog.write_text(yaml.safe_dump(CATALOG if catalog is None else catalog))
        self.identity = identities.ours().controlplane(directory / "identity")
        tree = {
            "state_dir": str(self.state),
            "catalog": str(self.catalog),
            "identity": str(self.identity),
            **{listener.removesuffix(".listen"): {"listen": "127.0.0.1:0"} for listener in LISTENERS},
        }
        for name, value in settings.items():
            section, _, leaf = name.partition("__")
            if leaf:
                tree.setdefault(section, {})[leaf] = value  # type: ignore[index]
            else:
                tree[section] = value
        self.config.write_text(yaml.safe_dump(tree))
        if nodes:
            self.enrol(*nodes)
        self.program = ["-m", "controlplane.main"]
        self.process: subprocess.Popen[str] | None = None
        self.addresses: dict[str, Address] = {}
        self._making = threading.Lock()

    def enrol(self, *nodes: str) -> None:
        """Have nodes in its store that have never been seen. It must not be running."""
        private_directory(self.state)
        database = Database(backend(load(self.config, {}))).open()
        try:
            for node in nodes:
                known = Enrolled(kind="node", name=node, enrolled_at=time.time(), enrolled_by="tests")
                database.transact(lambda tx, known=known: tx.identities.put(known))
        finally:
            database.close()

    @property
    def log_file(self) -> Path:
        return self.directory / "log.txt"

    def log(self) -> str:
        return self.log_file.read_text()

    def start(self) -> "ControlPlane":
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "--config", str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        for _ in LISTENERS:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"the control plane did not start: {self.log()}")
            _, _, name, address = line.split()
            self.addresses[name] = parse_address(address)
        return self

    def tell(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def stop(self, number: int = signal.SIGTERM, timeout: float = DEADLINE) -> int:
        assert self.process is not None and self.process.stdout is not None
        if self.process.poll() is None:
            self.tell(number)
        code = self.process.wait(timeout)
        self.process.stdout.close()
        return code

    @property
    def api(self) -> str:
        return f"http://{self.addresses['admin.listen']}"

    @property
    def routers(self) -> str:
        return f"https://{self.addresses['routers.listen']}"

    def router(self, name: str = ROUTER, folder: Path | None = None) -> requests.Session:
        """A router's end: shows its identity, or what is in ``folder``, and says that it is ``name``."""
        folder = folder or self._peer("router", name)
        session = identities.session(folder)
        session.headers["Llmgw-Router"] = name
        return session

    @property
    def token(self) -> str:
        """The local token of the admin API."""
        return (self.state / "admin.token").read_text().strip()

    @property
    def auth(self) -> dict[str, str]:
        """The header that the admin API asks for."""
        return {"Authorization": f"Bearer {self.token}"}

    def _peer(self, kind: str, name: str) -> Path:
        """The identity of a node or router, made once."""
        with self._making:
            folder = self.directory / "peers" / f"{kind}-{name}"
            return folder if folder.exists() else identities.ours().folder(folder, kind, name)

    def get(self, path: str) -> Any:
        answer = requests.get(f"{self.api}/api/v1/{path}", headers=self.auth, timeout=DEADLINE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str) -> float:
        text = requests.get(f"{self.api}/metrics", timeout=DEADLINE).text
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name)))

    def agent(self, node: str = "node-1", folder: Path | None = None) -> "Agent":
        """A node's end: shows its identity, or what is in ``folder``, and says that it is ``node``."""
        folder = folder or self._peer("node", node)
        return Agent(self.addresses["agents.listen"], node, identities.client(folder))


class Agent:
    """An agent's end of a session, driven by hand over a blocking connection. TLS 1.3 tells a client
    that its certificate is refused by the first thing that it reads."""

    def __init__(self, address: Address, node: str, tls: ssl.SSLContext) -> None:
        self.node = node
        self.sock = tls.wrap_socket(socket.create_connection(address, timeout=DEADLINE))
        self.decoder: Decoder[Down] = down_decoder()
        self._received: Iterator[Down | Unknown] = iter(())

    def close(self) -> None:
        self.sock.close()

    def request(self, **headers: str) -> bytes:
        lines = {
            "Host": "controlplane",
            "Connection": "Upgrade",
            "Upgrade": "llmgw-agent/1",
            "Llmgw-Node": self.node,
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        return f"GET /agent/v1/session HTTP/1.1\r\n{head}\r\n".encode()

    def upgrade(self) -> "Agent":
        self.sock.sendall(self.request())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            more = self.sock.recv(1)
            assert more, f"closed after {head!r}"
            head += more
        assert head.startswith(b"HTTP/1.1 101 "), head
        return self

    def answer(self) -> tuple[int, Mapping[str, Any]]:
        """Status and JSON of an answer that is not 101; the connection must end after it."""
        data = b""
        while more := self.sock.recv(65536):
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)

    def send(self, message: Message) -> None:
        self.sock.sendall(encode(message))

    def receive(self) -> Down | None:
        """The next frame; ``None`` at the end of the connection."""
        while True:
            for message in self._received:
                assert not isinstance(message, Unknown)
                return message
            data = self.sock.recv(65536)
            if not data:
                return None
            self._received = self.decoder.feed(data)

    def expect(self, kind: type[Any]) -> Any:
        """The next frame of that kind; others are skipped."""
        while True:
            message = self.receive()
            assert message is not None, f"the connection ended before a {kind.__name__}"
            if isinstance(message, kind):
                return message

    def hello(self, **more: Any) -> "Agent":
        self.send(
            Hello(**{"node_id": self.node, "version": "test", "oldest_protocol": 1, "newest_protocol": 1, **more})
        )
        return self

    def register(self, **more: Any) -> "Agent":
        inventory = Inventory(
            address="127.0.0.1",
            hostname=self.node,
            boot_id="boot-1",
            cpu=Cpu(model="test", count=8),
            memory_bytes=16 * 1024**3,
            engine_ports=PortRange(first=20000, last=20999),
            engines=(EngineInstall(name="sim", state="ready", version="1"),),
        )
        self.send(Register(**{"inventory": inventory, **more}))
        return self

    def heartbeat(self, sequence: int) -> None:
        self.send(Heartbeat(sequence=sequence))
