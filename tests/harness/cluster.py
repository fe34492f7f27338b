"""A whole installation on loopback: control plane, agents, router, in one temporary folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import requests
import yaml

from llmgw.demo.processes import Found, end, marked
from tests.harness.layout import CONTROLPLANE, NODE, ControlPlaneSite, Layout
from tests.harness.process import Process
from tests.harness.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MARK = "LLMGW_TEST_CLUSTER"


class Cluster:
    """Use as a context manager: ``with Cluster(folder, catalog) as cluster: cluster.start()``.

    ``catalog`` is the ``models`` mapping of a catalog file. ``controlplane``, ``agent``
    and ``router`` overlay the settings of each part of that kind. The parts are
    ``Process`` objects once started: ``controlplane``, ``agent`` and ``router`` are the
    first of each kind, ``part`` gives any by its name.

    ``control_planes`` names several that stand by for each other, on the one store whose
    URL is ``store`` (without it, a file of SQLite's). ``nodes`` names several nodes.
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
        control_planes: Sequence[str] = (CONTROLPLANE,),
        nodes: Sequence[str] = (NODE,),
        store: str = "",
        name: str = "c",
    ) -> None:
        self._stack = ExitStack()
        self.layout = layout = Layout(folder / name, control_planes, nodes, store)
        self._stack.callback(layout.close)
        layout.write(
            controlplane=controlplane or {},
            agent=agent or {},
            router=router or {},
            engines=engines or {"sim": {"kind": "builtin"}},
        )
        self.folder = layout.folder
        self.secrets = layout.secrets
        self.router_port = layout.router_port
        self._first = layout.control_planes[control_planes[0]]
        self._asked = self._first
        self.admin_port, self.agents_port, self.routers_port = (
            self._first.admin,
            self._first.agents,
            self._first.routers,
        )
        first_node = layout.nodes[nodes[0]]
        self.engine_ports, self.agent_state = first_node.engine_ports, first_node.state
        self._processes: dict[str, Process] = {}
        self.set_catalog(catalog)

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
        for name in self.layout.control_planes:
            self.start_controlplane(name)
        for name in self.layout.nodes:
            self.start_agent(name)
        self.start_router()
        return self.wait_up()

    def start_controlplane(self, name: str = "") -> Process:
        """Start a control plane, the first without a name; does not wait."""
        return self._run(name or self._first.name, "controlplane", name or self._first.name)

    def start_agent(self, node: str = "") -> Process:
        """Start the agent of a node, the first without a name; does not wait."""
        site = self.layout.nodes[node] if node else next(iter(self.layout.nodes.values()))
        return self._run(site.name, "agent", site.part)

    def start_router(self) -> Process:
        """Start the router; does not wait."""
        return self._run("router", "router", "router")

    def run_part(self, part: str, settings: Path) -> Process:
        """Start a part with another settings file than its own; it is none of the cluster's."""
        return self._process(part, part, settings, part)

    def part(self, name: str) -> Process:
        """A started part: a control plane or a node by its name, or ``router``."""
        return self._processes[name]

    @property
    def controlplane(self) -> Process:
        """The first control plane."""
        return self.part(self._first.name)

    @property
    def agent(self) -> Process:
        """The agent of the first node."""
        return self.part(next(iter(self.layout.nodes)))

    @property
    def router(self) -> Process:
        """The router."""
        return self.part("router")

    def _run(self, name: str, module: str, file: str) -> Process:
        self._processes[name] = self._process(name, module, self.settings(file), file)
        return self._processes[name]

    def _process(self, name: str, module: str, settings: Path, log: str) -> Process:
        command = [sys.executable, "-m", f"{module}.main", "--config", str(settings)]
        return Process(name, command, self.folder / f"{log}.log", {MARK: str(self.folder)})

    def wait_up(self, seconds: float = 20.0) -> "Cluster":
        """Until a control plane leads, the router has a table, and every agent is in session."""
        until(self.admin_up, seconds, "an admin API answers")
        until(self.router_up, seconds, f"the router has a table\n{self.router.tail()}")
        until(self.nodes_in_session, seconds, "every agent is in session")
        return self

    def admin_up(self) -> bool:
        """Whether an admin API answers, of a control plane that leads."""
        return self._leader() is not None

    def leader(self, seconds: float = 20.0) -> str:
        """The name of the control plane that leads, once one does."""
        return until(self._leader, seconds, "a control plane leads", every=0.1).name  # type: ignore[union-attr]

    def _leader(self) -> ControlPlaneSite | None:
        """Who answers for the fleet; one that stands by sends people to another."""
        sites = self.layout.control_planes.values()
        for site in (self._asked, *(other for other in sites if other is not self._asked)):
            try:
                answer = requests.get(f"{site.admin_url}/api/v1/status", headers=_auth(site), timeout=5)
            except (requests.RequestException, FileNotFoundError):
                continue
            if answer.ok:
                self._asked = site
                return site
        return None

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
        return self.layout.settings(part)

    @property
    def catalog_file(self) -> Path:
        """The catalog."""
        return self.layout.catalog

    def set_catalog(self, models: Mapping[str, Any]) -> None:
        """Write the catalog file (``reload`` makes the control plane read it)."""
        self.catalog_file.write_text(yaml.safe_dump({"models": dict(models)}))

    # ------------------------------------------------------------ interfaces

    @property
    def admin_url(self) -> str:
        """Address of the admin API: of the control plane that led when it was looked for last."""
        return self._asked.admin_url

    @property
    def router_url(self) -> str:
        """Address clients use."""
        return f"http://127.0.0.1:{self.router_port}"

    @property
    def token_file(self) -> Path:
        """The file with the local token of the admin API."""
        return self._asked.token_file

    @property
    def auth(self) -> dict[str, str]:
        """The header that the admin API asks for; the token is one of the run's secrets."""
        header = _auth(self._asked)
        self.secrets[f"admin token of {self._asked.name}"] = header["Authorization"].removeprefix("Bearer ")
        return header

    def api(self, path: str) -> Any:
        """A resource of the admin API, of whichever control plane leads."""
        if self.layout.shared:
            assert self._leader() is not None, "no control plane leads"
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

    def engines(self, node: str = "") -> list[Found]:
        """The processes of engines of this installation, or of one node of it, from /proc."""
        sites = [self.layout.nodes[node]] if node else self.layout.nodes.values()
        return [found for site in sites for found in marked("LLMGW_AGENT_STATE", str(site.state))]

    def engine_pids(self, node: str = "") -> set[int]:
        """Their process ids."""
        return {engine.pid for engine in self.engines(node)}

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
        except (openai.InternalServerError, openai.AuthenticationError) as error:
            # The latter: a key that was made this moment is on its way to the router.
            raise AssertionError(str(error)) from error
        return True

    def node_in_session(self, node: str = NODE) -> bool:
        """Whether the control plane has the session of a node's agent."""
        return bool(self.api(f"nodes/{node}")["status"] == "connected")

    def nodes_in_session(self) -> bool:
        """Whether it has those of all that were started."""
        return all(self.node_in_session(node) for node in self.layout.nodes if node in self._processes)

    def reload(self) -> None:
        """Have the control plane read its catalog again (SIGHUP)."""
        self.controlplane.signal(signal.SIGHUP)


def _auth(site: ControlPlaneSite) -> dict[str, str]:
    return {"Authorization": f"Bearer {site.token_file.read_text().strip()}"}
