"""The demo's installation on disk: ports, settings, identities, catalog. Everything is in one folder."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llmgw.demo.engine import Installed
from llmgw.demo.processes import free_port, free_range
from llmgw.identity.names import Identity, Kind
from llmgw.identity.root_folder import RootFolder

NODE = "this-machine"
ROUTER_ID = "demo-router"
MODEL_NAME = "smollm2-135m"
ALIAS = "smollm"

DEFAULT_PORTS = (8080, 7000, 7001, 7002, 7003)
"""The product's own: router, admin API, agents, routers, join."""

PARTS = ("controlplane", "agent", "router")


@dataclass(frozen=True)
class Ports:
    """Where everything listens on loopback."""

    router: int
    admin: int
    agents: int
    routers: int
    join: int
    engines: tuple[int, int]

    @classmethod
    def choose(cls) -> "Ports":
        """The product's default ports, or free ones where a default is taken."""
        router, admin, agents, routers, join = (free_port(port) for port in DEFAULT_PORTS)
        return cls(router, admin, agents, routers, join, free_range(20000, 10))

    def taken(self) -> str:
        """The default ports that something else listens on, in words; empty if none."""
        chosen = (self.router, self.admin, self.agents, self.routers, self.join)
        return ", ".join(str(usual) for usual, port in zip(DEFAULT_PORTS, chosen, strict=True) if usual != port)


class Site:
    """Paths of the demo's folder, and what is written there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.catalog = folder / "catalog.yaml"
        self.key_file = folder / "api-key"
        self.admin_token = folder / "controlplane" / "admin.token"
        self.agent_state = folder / "agent"

    def make(self) -> None:
        """Make the folders, for the owner's eyes only."""
        for folder in (self.folder, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)

    def forget(self) -> None:
        """Remove what the parts of an earlier run kept, such as its identities, keys and cordons."""
        for part in PARTS:
            shutil.rmtree(self.folder / part, ignore_errors=True)

    def settings(self, part: str) -> Path:
        """The settings file of a part."""
        return self.folder / f"{part}.yaml"

    def log(self, name: str) -> Path:
        """The log of a part or of an installation."""
        return self.logs / f"{name}.log"

    def write(self, ports: Ports, engine: Installed) -> None:
        """Write every file a part reads."""
        self._write_identities()
        self.write_catalog(engine)
        private(
            self.settings("controlplane"),
            _yaml(
                {
                    "state_dir": str(self.folder / "controlplane"),
                    "catalog": str(self.catalog),
                    "agents": {"listen": f"127.0.0.1:{ports.agents}"},
                    "routers": {"listen": f"127.0.0.1:{ports.routers}"},
                    "admin": {"listen": f"127.0.0.1:{ports.admin}"},
                    "join": {"listen": f"127.0.0.1:{ports.join}"},
                    "loop": {"interval": "1s"},
                    "drain": {"grace": "5s"},
                    "stop": {"grace": "5s"},
                }
            ),
        )
        private(
            self.settings("agent"),
            _yaml(
                {
                    "node_id": NODE,
                    "control_planes": [f"127.0.0.1:{ports.agents}"],
                    "state_dir": str(self.agent_state),
                    "engine_ports": "{}-{}".format(*ports.engines),
                    "engines": {
                        "llamacpp": {"kind": "python-package", "venv": str(engine.venv), "binary": engine.binary}
                    },
                }
            ),
        )
        private(
            self.settings("router"),
            _yaml(
                {
                    "listen": f"127.0.0.1:{ports.router}",
                    "workers": 2,
                    "control_planes": [f"127.0.0.1:{ports.routers}"],
                    "router_id": ROUTER_ID,
                    "state_dir": str(self.folder / "router"),
                }
            ),
        )

    def _write_identities(self) -> None:
        """Who the three parts are, each in its state directory. The authority is forgotten at once: what the control
        plane signs, it signs with its issuer."""
        kinds: tuple[Kind, ...] = ("controlplane", "node", "router")
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            root = RootFolder(Path(place))
            root.init("llmgw demo")
            for part, kind, name in zip(PARTS, kinds, ("demo", NODE, ROUTER_ID), strict=True):
                (self.folder / part).mkdir(mode=0o700)
                root.issue(Identity(kind, name), self.folder / part / "identity")

    def write_catalog(self, engine: Installed | None) -> None:
        """The catalog with the demo's model, or an empty one."""
        models: dict[str, Any] = {}
        if engine is not None:
            profile = {
                "name": "cpu",
                "engine": "llamacpp",
                "source": f"file:{engine.model}",
                "min_memory_gb": 0.5,
                "cpu_cores": 1,
                "context": 4096,
                "slots": 2,
            }
            models[MODEL_NAME] = {"aliases": [ALIAS], "scaling": {"min": 1, "max": 1}, "profiles": [profile]}
        private(
            self.catalog, "# Reload after a change: the control plane does it on SIGHUP.\n" + _yaml({"models": models})
        )


def private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        os.fchmod(descriptor, 0o600)
        stream.write(text)


def _yaml(tree: Any) -> str:
    return str(yaml.safe_dump(tree, sort_keys=False))
