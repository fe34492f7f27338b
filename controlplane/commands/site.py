"""The files of an installation on one machine, as ``llmgw init`` writes them (CLI-04)."""

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from controlplane.listeners.tokens import FleetTokens, load_tokens
from llmgw.runtime.files import write_atomic
from llmgw.runtime.settings import read_secret

NODE_TOKEN = "at-"  # noqa: S105 - how one begins
ROUTER_TOKEN = "rt-"  # noqa: S105
RANDOM_BYTES = 24


@dataclass(frozen=True)
class Answers:
    """What a person decided. ``store`` is a PostgreSQL URL, or empty for SQLite."""

    directory: Path
    state: Path
    store: str
    password_file: Path | None
    node: str
    listen: str
    admin: str
    agents: str
    routers: str
    engine_ports: str


@dataclass(frozen=True)
class Tokens:
    """The secrets of this machine's node and router."""

    node: str
    router: str

    def __repr__(self) -> str:
        return "Tokens()"


class Site:
    """Paths and contents. ``router`` is the name of this machine's router."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        folder = answers.directory
        self.controlplane = folder / "controlplane.yaml"
        self.agent = folder / "agent.yaml"
        self.router = folder / "router.yaml"
        self.catalog = folder / "catalog.yaml"
        self.fleet_tokens = folder / "fleet-tokens.yaml"
        self.node_token = folder / "agent.token"
        self.router_token = folder / "router.token"
        self.router_id = f"{answers.node}-router"

    def make_directories(self) -> None:
        """The directories, for their owner only. Raises ``OSError``."""
        for folder in (self.answers.directory, *(self.answers.state / part for part in PARTS)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def tokens(self) -> Tokens:
        """The tokens that are there already, in whichever file; new ones else. Raises
        ``SettingsError`` for a file that cannot be used."""
        fleet = load_tokens(self.fleet_tokens) if self.fleet_tokens.exists() else FleetTokens()
        return Tokens(
            fleet.nodes.get(self.answers.node) or _kept(self.node_token) or _token(NODE_TOKEN),
            fleet.routers.get(self.router_id) or _kept(self.router_token) or _token(ROUTER_TOKEN),
        )

    def contents(self, tokens: Tokens) -> dict[Path, str]:
        """Every file, with its content."""
        return {
            self.controlplane: self._controlplane(),
            self.agent: self._agent(),
            self.router: self._router(),
            self.catalog: CATALOG,
            self.fleet_tokens: _FLEET.format(
                node=_yaml(self.answers.node),
                node_token=_yaml(tokens.node),
                router=_yaml(self.router_id),
                router_token=_yaml(tokens.router),
            ),
            self.node_token: f"{tokens.node}\n",
            self.router_token: f"{tokens.router}\n",
        }

    def _controlplane(self) -> str:
        answers = self.answers
        store = ""
        if answers.store:
            store = f"\nstore:\n  url: {_yaml(answers.store)}\n"
            if answers.password_file:
                store += f"  password_file: {_yaml(answers.password_file)}\n"
        return f"""\
# Settings of the control plane, by llmgw init. Start it: llmgw server --config {self.controlplane}
# Every setting, with its default, is in docs/reference/settings-controlplane.md

state_dir: {_yaml(answers.state / "controlplane")}
catalog: {_yaml(self.catalog)}
fleet_tokens: {_yaml(self.fleet_tokens)}
{store}
agents:
  listen: {_yaml(answers.agents)}
routers:
  listen: {_yaml(answers.routers)}
admin:
  listen: {_yaml(answers.admin)}

# One machine that starts together: there is no fleet to wait for.
settling:
  steady: 5s
  limit: 30s
"""

    def _agent(self) -> str:
        answers = self.answers
        return f"""\
# Settings of this machine's agent, by llmgw init. Start it: llmgw agent --config {self.agent}
# Every setting, with its default, is in docs/reference/settings-agent.md

node_id: {_yaml(answers.node)}
control_planes:
  - {_yaml(answers.agents)}
token_file: {_yaml(self.node_token)}
state_dir: {_yaml(answers.state / "agent")}
engine_ports: {_yaml(answers.engine_ports)}

# An engine counts only if it is named here. sim answers without a model, to try things out.
engines:
  sim:
    kind: builtin
  # llamacpp:
  #   kind: binary
  #   path: /opt/llama.cpp/llama-server
"""

    def _router(self) -> str:
        answers = self.answers
        return f"""\
# Settings of this machine's router, by llmgw init. Start it: llmgw router --config {self.router}
# Every setting, with its default, is in docs/reference/settings-router.md

# Where clients connect: their base URL is http://{answers.listen}/v1
listen: {_yaml(answers.listen)}
control_plane: {_yaml(answers.routers)}
router_id: {_yaml(self.router_id)}
token_file: {_yaml(self.router_token)}
state_dir: {_yaml(answers.state / "router")}
"""


PARTS = ("controlplane", "agent", "router")

_FLEET = """\
# Who may connect, by llmgw init. Read again on SIGHUP. Holds secrets: mode 0600.
nodes:
  {node}: {node_token}
routers:
  {router}: {router_token}
"""

CATALOG = """\
# The models that should be served, by llmgw init. After a change: llmgw ctl catalog reload
# How a model is written: docs/howto/add-a-model.md
models: {}

# A model to try things out with, which needs no weights. Put it in the place of the line above:
#
# models:
#   sim:
#     scaling: {min: 1, max: 1}
#     profiles:
#       - {engine: sim, source: "sim:", min_memory_gb: 0.5, cpu_cores: 1}
"""


def write(file: Path, text: str) -> None:
    """A file for its owner only. Raises ``OSError``."""
    write_atomic(file, text.encode())


def _token(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(RANDOM_BYTES)


def _kept(file: Path) -> str:
    """The token in a file; empty if there is no file."""
    return read_secret(file) if file.exists() else ""


def _yaml(value: str | os.PathLike[str]) -> str:
    """``value`` as a scalar that YAML reads back as text; JSON's strings are YAML's."""
    return json.dumps(os.fspath(value), ensure_ascii=False)
