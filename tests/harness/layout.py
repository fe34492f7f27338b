"""Files and ports of an installation on loopback: where each part of it lives, and its settings."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.harness import identities
from tests.harness.ports import PortBlock

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

QUICK_HA: dict[str, Any] = {"ttl": "6s", "renew": "1s"}
"""The lease, for tests."""

CONTROLPLANE = "controlplane"
NODE = "node-a"
ROUTER_ID = "router-a"


@dataclass(frozen=True)
class ControlPlaneSite:
    """One control plane: its name, state directory and ports."""

    name: str
    state: Path
    admin: int
    agents: int
    routers: int
    join: int

    @property
    def admin_url(self) -> str:
        """Address of its admin API."""
        return f"http://127.0.0.1:{self.admin}"

    @property
    def token_file(self) -> Path:
        """The file with its local token of the admin API."""
        return self.state / "admin.token"

    @property
    def identity(self) -> Path:
        """Its identity folder."""
        return self.state / "identity"


@dataclass(frozen=True)
class NodeSite:
    """One node: its name, what its files are called, state directory and engines' ports."""

    name: str
    part: str
    state: Path
    engine_ports: tuple[int, int]

    @property
    def identity(self) -> Path:
        """Its identity folder."""
        return self.state / "identity"


class Layout:
    """Everything an installation has on disk, in ``folder``. ``close`` gives its ports back.

    Of several control planes each has its own state directory and identity, and all one
    store: ``store``, or a file of SQLite's.
    """

    def __init__(self, folder: Path, control_planes: Sequence[str], nodes: Sequence[str], store: str = "") -> None:
        self.folder = folder
        self.folder.mkdir(mode=0o700)
        self._ports = ExitStack()
        self.shared = len(control_planes) > 1
        self._store = store or (f"sqlite:///{folder}/store.db" if self.shared else "")
        block = self._block()
        admin, agents, routers, self.router_port, join = range(block.first, block.first + 5)
        engines = (block.first + 5, block.last)
        self.control_planes: dict[str, ControlPlaneSite] = {}
        for name in control_planes:
            if self.control_planes:
                admin, agents, routers, join = range((block := self._block()).first, block.first + 4)
            self.control_planes[name] = ControlPlaneSite(name, folder / name, admin, agents, routers, join)
        self.nodes: dict[str, NodeSite] = {}
        for name in nodes:
            part = f"agent-{name}" if self.nodes else "agent"
            if self.nodes:
                engines = ((block := self._block()).first, block.last)
            self.nodes[name] = NodeSite(name, part, folder / part, engines)
        self.router_state = folder / "router"
        self.secrets: dict[str, str] = {}

    def _block(self) -> PortBlock:
        block = PortBlock()
        self._ports.callback(block.close)
        return block

    def close(self) -> None:
        """Give the ports back."""
        self._ports.close()

    def settings(self, part: str) -> Path:
        """The settings file of a part."""
        return self.folder / f"{part}.yaml"

    @property
    def catalog(self) -> Path:
        """The catalog file."""
        return self.folder / "catalog.yaml"

    def write(
        self,
        *,
        controlplane: Mapping[str, Any],
        agent: Mapping[str, Any],
        router: Mapping[str, Any],
        engines: Mapping[str, Any],
    ) -> None:
        """Settings and identity of every part. Sections given overlay those of each part of the kind."""
        for site in self.control_planes.values():
            identities.ours().controlplane(site.identity, site.name)
            self._write(site.name, self._controlplane(site), merged(QUICK, controlplane))
        for node in self.nodes.values():
            identities.ours().node(node.identity, node.name)
            self._write(node.part, self._agent(node, engines), agent)
        identities.ours().router(self.router_state / "identity", ROUTER_ID)
        self._write("router", self._router(), router)
        keys = {site.name: site.identity for site in self.control_planes.values()}
        keys |= {node.name: node.identity for node in self.nodes.values()}
        keys["router"] = self.router_state / "identity"
        for name, folder in keys.items():
            for file in folder.glob("*key.pem"):
                self.secrets[f"{file.stem} of {name}"] = file.read_text().splitlines()[1]

    def _write(self, part: str, settings: Mapping[str, Any], over: Mapping[str, Any]) -> None:
        self.settings(part).write_text(yaml.safe_dump(merged(settings, over)))

    def _controlplane(self, site: ControlPlaneSite) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "state_dir": str(site.state),
            "catalog": str(self.catalog),
            "agents": {"listen": f"127.0.0.1:{site.agents}"},
            "routers": {"listen": f"127.0.0.1:{site.routers}"},
            "admin": {"listen": f"127.0.0.1:{site.admin}"},
            "join": {"listen": f"127.0.0.1:{site.join}"},
        }
        if self._store:
            settings["store"] = {"url": self._store}
        if self.shared:
            settings["ha"] = {"enabled": True, "name": site.name, **QUICK_HA}
        return settings

    def _agent(self, node: NodeSite, engines: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "node_id": node.name,
            "control_planes": [f"127.0.0.1:{site.agents}" for site in self.control_planes.values()],
            "state_dir": str(node.state),
            "address": "127.0.0.1",
            "engine_ports": "{}-{}".format(*node.engine_ports),
            "hardware": {"gpu": "off"},
            "engines": dict(engines),
        }

    def _router(self) -> dict[str, Any]:
        return {
            "listen": f"127.0.0.1:{self.router_port}",
            "workers": 2,
            "control_planes": [f"127.0.0.1:{site.routers}" for site in self.control_planes.values()],
            "router_id": ROUTER_ID,
            "state_dir": str(self.router_state),
        }


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid over it, section by section."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result
