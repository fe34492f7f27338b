"""The demo's installation on disk: ports, settings, tokens, catalog. Everything is in one folder."""

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llmgw.demo.engine import Installed
from llmgw.demo.processes import free_port, free_range

NODE = "this-machine"
ROUTER_ID = "demo-router"
MODEL_NAME = "smollm2-135m"
ALIAS = "smollm"

DEFAULT_PORTS = (8080, 7000, 7001, 7002)
"""The product's own: router, admin API, agents, routers."""


@dataclass(frozen=True)
class Ports:
    """Where everything listens on loopback."""

    router: int
    admin: int
    agents: int
    routers: int
    engines: tuple[int, int]

    @classmethod
    def choose(cls) -> "Ports":
        """The product's default ports, or free ones where a default is taken."""
        router, admin, agents, routers = (free_port(port) for port in DEFAULT_PORTS)
        return cls(router, admin, agents, routers, free_range(20000, 10))

    def taken(self) -> str:
        """The default ports that something else listens on, in words; empty if none."""
        chosen = (self.router, self.admin, self.agents, self.routers)
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
        """Remove what the parts of an earlier run kept, such as its keys and cordons."""
        for part in ("controlplane", "agent", "router"):
            shutil.rmtree(self.folder / part, ignore_errors=True)

    def settings(self, part: str) -> Path:
        """The settings file of a part."""
        return self.folder / f"{part}.yaml"

    def log(self, name: str) -> Path:
        """The log of a part or of an installation."""
        return self.logs / f"{name}.log"

    def write(self, ports: Ports, engine: Installed) -> None:
        """Write every file a part reads."""
        node, router = ("at-" + secrets.token_urlsafe(24), "rt-" + secrets.token_urlsafe(24))
        private(self.folder / "fleet-tokens.yaml", _yaml({"nodes": {NODE: node}, "routers": {ROUTER_ID: router}}))
        private(self.folder / "agent.token", node)
        private(self.folder / "router.token", router)
        self.write_catalog(engine)
        private(
            self.settings("controlplane"),
            _yaml(
                {
                    "state_dir": str(self.folder / "controlplane"),
                    "catalog": str(self.catalog),
                    "fleet_tokens": str(self.folder / "fleet-tokens.yaml"),
                    "agents": {"listen": f"127.0.0.1:{ports.agents}"},
                    "routers": {"listen": f"127.0.0.1:{ports.routers}"},
                    "admin": {"listen": f"127.0.0.1:{ports.admin}"},
                    # One node that starts with us: nothing to wait for as a fleet would.
                    "settling": {"steady": "1s", "limit": "20s"},
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
                    "token_file": str(self.folder / "agent.token"),
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
                    "control_plane": f"127.0.0.1:{ports.routers}",
                    "router_id": ROUTER_ID,
                    "token_file": str(self.folder / "router.token"),
                    "state_dir": str(self.folder / "router"),
                }
            ),
        )

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
