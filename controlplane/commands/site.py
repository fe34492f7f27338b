"""The files of an installation on one machine, as ``llmgw init`` writes them (CLI-04)."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from llmgw.identity.names import Identity
from llmgw.runtime.files import write_atomic
from llmgw.runtime.settings import Address, parse_address

PARTS = ("controlplane", "agent", "router")

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what is listened on, and how it is reached


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
    join: str
    engine_ports: str


class Site:
    """Paths and contents. ``router`` is the name of this machine's router."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        folder = answers.directory
        self.controlplane = folder / "controlplane.yaml"
        self.agent = folder / "agent.yaml"
        self.router = folder / "router.yaml"
        self.catalog = folder / "catalog.yaml"
        self.authority = folder / "authority"
        self.router_id = f"{answers.node}-router"

    def make_directories(self) -> None:
        """The directories, for their owner only. Raises ``OSError``."""
        for folder in (self.answers.directory, *(self.answers.state / part for part in PARTS)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def identities(self) -> dict[Path, Identity]:
        """Who each part is, by the folder that it looks into."""
        answers = self.answers
        return {
            answers.state / "controlplane" / "identity": Identity("controlplane", answers.node),
            answers.state / "agent" / "identity": Identity("node", answers.node),
            answers.state / "router" / "identity": Identity("router", self.router_id),
        }

    def served(self) -> tuple[Address, ...]:
        """The addresses at which the control plane is reached with a certificate."""
        answers = self.answers
        return tuple(parse_address(listen) for listen in (answers.agents, answers.routers, answers.join, answers.admin))

    def contents(self) -> dict[Path, str]:
        """Every file, with its content."""
        return {
            self.controlplane: self._controlplane(),
            self.agent: self._agent(),
            self.router: self._router(),
            self.catalog: CATALOG,
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

# Who it is, and what it signs for nodes and routers with, is in identity/ of its state directory. The authority that
# vouches for it is in {self.authority}: keep a copy where nobody else can read it.
{store}
agents:
  listen: {_yaml(answers.agents)}
routers:
  listen: {_yaml(answers.routers)}
admin:
  listen: {_yaml(answers.admin)}
join:
  listen: {_yaml(answers.join)}
"""

    def _agent(self) -> str:
        answers = self.answers
        return f"""\
# Settings of this machine's agent, by llmgw init. Start it: llmgw agent --config {self.agent}
# Every setting, with its default, is in docs/reference/settings-agent.md

node_id: {_yaml(answers.node)}
control_planes:
  - {_yaml(reached(answers.agents))}
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
control_planes:
  - {_yaml(reached(answers.routers))}
router_id: {_yaml(self.router_id)}
state_dir: {_yaml(answers.state / "router")}
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


def reached(listen: str) -> str:
    """Where a listener of this machine is reached from this machine."""
    address = parse_address(listen)
    return str(address._replace(host=WILDCARDS.get(address.host, address.host)))


def _yaml(value: str | os.PathLike[str]) -> str:
    """``value`` as a scalar that YAML reads back as text; JSON's strings are YAML's."""
    return json.dumps(os.fspath(value), ensure_ascii=False)
