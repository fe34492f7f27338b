"""A whole installation on loopback: control plane, agents, router, in one temporary folder."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import requests
import yaml

from llmgw.demo.processes import Found, end, marked
from tests.harness.ports import PortBlock
from tests.harness.process import Process
from tests.harness.waiting import until

QUICK: dict[str, Any] = {
    "agents": {"heartbeat": "500ms", "silence": "3s"},
    "loop": {"interval": "500ms"},
    "nodes": {"unreachable_after": "3s", "lost_after": "2m"},
    "settling": {"steady": "15s", "limit": "30s"},
    "drain": {"grace": "5s"},
    "stop": {"grace": "2s"},
    "backoff": {"first": "200ms", "limit": "2s"},
}
"""Settings of the control plane for tests: the product's own are for people's patience."""

ROOT = Path(__file__).resolve().parents[2]
MARK = "LLMGW_TEST_CLUSTER"
NODE = "node-a"
ROUTER_ID = "router-a"


class Cluster:
    """Use as a context manager: ``with Cluster(folder, catalog) as cluster: cluster.start()``.

    ``catalog`` is the ``models`` mapping of a catalog file. ``controlplane``, ``agent``
    and ``router`` overlay the parts' settings. The parts are ``Process`` objects under
    the same names, once started.
    """

    def __init__(
        self,
        folder: Path,
        catalog: Mapping[str, Any],
        *,
        engines: Mapping[str, Any] | None = None,
        controlplane: Mapping[str, Any] | None = None,
        agent: Mapping[str, Any] | None = None,
        router: Mapping[str, Any] | None = None,
        name: str = "c",
    ) -> None:
        self.folder = folder / name
        self.folder.mkdir(mode=0o700)
        self._stack = ExitStack()
        block = PortBlock()
        self._stack.callback(block.close)
        self.admin_port, self.agents_port, self.routers_port, self.router_port = range(block.first, block.first + 4)
        self.engine_ports = (block.first + 4, block.last)
        self.secrets: dict[str, str] = {
            "node token": "at-" + secrets.token_hex(24),
            "router token": "rt-" + secrets.token_hex(24),
        }
        self.agent_state = self.folder / "agent"
        self._write_settings(controlplane or {}, agent or {}, router or {}, engines or {"sim": {"kind": "builtin"}})
        self.set_catalog(catalog)
        self.controlplane: Process
        self.agent: Process
        self.router: Process

    # ------------------------------------------------------------ life

    def __enter__(self) -> "Cluster":
        self._stack.callback(self._sweep)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self._show_logs()
        self._stack.close()

    def start(self) -> "Cluster":
        """Start all parts and wait until each answers."""
        self.start_controlplane()
        self.start_agent()
        self.start_router()
        return self.wait_up()

    def start_controlplane(self) -> Process:
        """Start the control plane; does not wait."""
        self.controlplane = self.run_part("controlplane")
        return self.controlplane

    def start_agent(self) -> Process:
        """Start the agent; does not wait."""
        self.agent = self.run_part("agent")
        return self.agent

    def start_router(self) -> Process:
        """Start the router; does not wait."""
        self.router = self.run_part("router")
        return self.router

    def run_part(self, part: str, settings: Path | None = None) -> Process:
        """Start a part with its own settings file or another one."""
        command = [sys.executable, "-m", f"{part}.main", "--config", str(settings or self.settings(part))]
        return Process(part, command, self.folder / f"{part}.log", {MARK: str(self.folder)})

    def wait_up(self, seconds: float = 20.0) -> "Cluster":
        """Until admin API, router and agent's session are there."""
        until(self.admin_up, seconds, f"the admin API answers\n{self.controlplane.tail()}")
        until(self.router_up, seconds, f"the router has a table\n{self.router.tail()}")
        until(self.node_in_session, seconds, f"the agent is in session\n{self.agent.tail()}")
        return self

    def admin_up(self) -> bool:
        """Whether the admin API answers."""
        try:
            return requests.get(f"{self.admin_url}/api/v1/status", headers=self.auth, timeout=5).ok
        except (requests.ConnectionError, FileNotFoundError):
            return False

    def router_up(self) -> bool:
        """Whether the router is ready for requests."""
        try:
            return requests.get(f"{self.router_url}/readyz", timeout=5).ok
        except requests.ConnectionError:
            return False

    def _sweep(self) -> None:
        """End whatever carries this cluster's marks: parts first, so that nothing is started again."""
        end(lambda: marked(MARK, str(self.folder)), grace=5.0)
        left = end(self.engines, grace=0.5)
        assert not left, f"cannot be ended: {left}"

    def _show_logs(self) -> None:
        for log in sorted(self.folder.glob("*.log")):
            sys.stderr.write(f"\n---- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-60:]))

    # ------------------------------------------------------------ files

    def settings(self, part: str) -> Path:
        """The settings file of a part."""
        return self.folder / f"{part}.yaml"

    @property
    def catalog_file(self) -> Path:
        """The catalog."""
        return self.folder / "catalog.yaml"

    def set_catalog(self, models: Mapping[str, Any]) -> None:
        """Write the catalog file (``reload`` makes the control plane read it)."""
        self.catalog_file.write_text(yaml.safe_dump({"models": dict(models)}))

    def _write_settings(
        self, controlplane: Mapping[str, Any], agent: Mapping[str, Any], router: Mapping[str, Any], engines: Any
    ) -> None:
        tokens = {"nodes": {NODE: self.secrets["node token"]}, "routers": {ROUTER_ID: self.secrets["router token"]}}
        private(self.folder / "fleet-tokens.yaml", yaml.safe_dump(tokens))
        private(self.folder / "agent.token", self.secrets["node token"])
        private(self.folder / "router.token", self.secrets["router token"])
        base: dict[str, dict[str, Any]] = {
            "controlplane": {
                "state_dir": str(self.folder / "controlplane"),
                "catalog": str(self.catalog_file),
                "fleet_tokens": str(self.folder / "fleet-tokens.yaml"),
                "agents": {"listen": f"127.0.0.1:{self.agents_port}"},
                "routers": {"listen": f"127.0.0.1:{self.routers_port}"},
                "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
            },
            "agent": {
                "node_id": NODE,
                "control_planes": [f"127.0.0.1:{self.agents_port}"],
                "token_file": str(self.folder / "agent.token"),
                "state_dir": str(self.agent_state),
                "address": "127.0.0.1",
                "engine_ports": "{}-{}".format(*self.engine_ports),
                "hardware": {"gpu": "off"},
                "engines": engines,
            },
            "router": {
                "listen": f"127.0.0.1:{self.router_port}",
                "workers": 2,
                "control_plane": f"127.0.0.1:{self.routers_port}",
                "router_id": ROUTER_ID,
                "token_file": str(self.folder / "router.token"),
                "state_dir": str(self.folder / "router"),
            },
        }
        overlays = {"controlplane": merged(QUICK, controlplane), "agent": agent, "router": router}
        for part, settings in base.items():
            self.settings(part).write_text(yaml.safe_dump(merged(settings, overlays[part])))

    # ------------------------------------------------------------ interfaces

    @property
    def admin_url(self) -> str:
        """Address of the admin API."""
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def router_url(self) -> str:
        """Address clients use."""
        return f"http://127.0.0.1:{self.router_port}"

    @property
    def token_file(self) -> Path:
        """The file with the local token of the admin API."""
        return self.folder / "controlplane" / "admin.token"

    @property
    def auth(self) -> dict[str, str]:
        """The header that the admin API asks for; the token is one of the run's secrets."""
        self.secrets["admin token"] = self.token_file.read_text().strip()
        return {"Authorization": f"Bearer {self.secrets['admin token']}"}

    def api(self, path: str) -> Any:
        """A resource of the admin API."""
        answer = requests.get(f"{self.admin_url}/api/v1/{path}", headers=self.auth, timeout=10)
        assert answer.ok, f"GET {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def llmgw(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the ``llmgw`` command against this installation."""
        environment = {**os.environ, "LLMGW_API": self.admin_url, "NO_COLOR": "1", "COLUMNS": "200"}
        environment["LLMGW_TOKEN_FILE"] = str(self.token_file)
        command = [sys.executable, "-m", "llmgw.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)
        assert not check or done.returncode == 0, f"llmgw {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done

    def ctl(self, *arguments: str) -> str:
        """What ``llmgw ctl`` prints."""
        return self.llmgw("ctl", *arguments).stdout

    def llmgw_json(self, *arguments: str) -> Any:
        """What the ``llmgw`` command prints as JSON."""
        return json.loads(self.llmgw(*arguments, "-o", "json").stdout)

    def make_key(self, name: str = "tests") -> str:
        """An API key, made through the real command; one of the run's secrets."""
        key = str(self.llmgw_json("keys", "create", name)["key"])
        self.secrets[f"key {name}"] = key
        return key

    def client(self, key: str, **options: Any) -> openai.OpenAI:
        """The official client, without retries so that every failure is seen."""
        return openai.OpenAI(
            base_url=f"{self.router_url}/v1", api_key=key, **{"max_retries": 0, "timeout": 30} | options
        )

    def engines(self) -> list[Found]:
        """The processes of engines of this installation, from /proc."""
        return marked("LLMGW_AGENT_STATE", str(self.agent_state))

    def engine_pids(self) -> set[int]:
        """Their process ids."""
        return {engine.pid for engine in self.engines()}

    def replica(self, model: str) -> dict[str, Any]:
        """The one live replica of a model, as the admin API has it; fails if it is not ready."""
        shown = self.api(f"models/{model}")
        assert shown["ready"] == 1, f"{model}: {shown['ready']} ready, {shown.get('state')}: {shown.get('reason')}"
        ready = [replica for replica in map(self._replica, shown["replicas"]) if replica["state"] == "ready"]
        assert len(ready) == 1, ready
        return ready[0]

    def _replica(self, replica_id: str) -> dict[str, Any]:
        return dict(self.api(f"replicas/{replica_id}"))

    def engine_pid(self, model: str) -> int:
        """Process id of the engine of a model with one ready replica."""
        return int(self.replica(model)["shards"][0]["pid"])

    def engine_url(self, model: str) -> str:
        """Where that engine listens."""
        return f"http://127.0.0.1:{self.replica(model)['shards'][0]['port']}"

    def engine_key(self, pid: int) -> str:
        """The key an engine was started with, from its environment; one of the run's secrets."""
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        names = ("LLAMA_API_KEY=", "LLMGW_SIM_API_KEY=")
        (key,) = [entry.partition("=")[2] for entry in entries if entry.startswith(names)]
        self.secrets[f"engine key {key[:6]}"] = key
        return key

    def serve(self, *models: str, ready: Iterable[str] = (), seconds: float = 30.0) -> str:
        """Wait until every model answers through the router, and those of ``ready``, which would
        take too long to ask, are ready. Returns the API key used."""
        key = self.make_key()
        client = self.client(key)
        for model in (*models, *ready):
            until(lambda model=model: self.replica(model), seconds, f"{model} is ready")  # type: ignore[misc]
        for model in models:
            until(lambda model=model: self.answers(client, model), 10, f"the router serves {model}")  # type: ignore[misc]
        return key

    @staticmethod
    def answers(client: openai.OpenAI, model: str) -> bool:
        """Whether a request for one token gets its answer."""
        try:
            client.completions.create(model=model, prompt="x", max_tokens=1)
        except openai.InternalServerError as error:
            raise AssertionError(str(error)) from error
        return True

    def node_in_session(self) -> bool:
        """Whether the control plane has the agent's session."""
        return bool(self.api(f"nodes/{NODE}")["status"] == "connected")

    def reload(self) -> None:
        """Have the control plane read its catalog again (SIGHUP)."""
        self.controlplane.signal(signal.SIGHUP)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid over it, section by section."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
