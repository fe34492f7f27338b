"""Settings of an agent, declared once."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.installs import configured_faults
from llmgw.identity.names import valid_name
from llmgw.runtime.logs import LEVELS
from llmgw.runtime.settings import (
    ADDRESSES,
    LABELS,
    MAPPING,
    PATH,
    PATHS,
    PORT_RANGE,
    TEXT,
    Address,
    Fault,
    Kind,
    Loaded,
    Setting,
    Settings,
    SettingsError,
    choice,
)
from llmgw.wire.messages import PortRange

SEARCH = "mdns"
"""Stands in ``control_planes`` for those that announce themselves in the network."""


def _control_planes(value: Any) -> tuple[Address, ...]:
    if value == SEARCH:
        return ()
    if not value:
        raise ValueError(f"must be a list of HOST:PORT, or {SEARCH}")
    parsed: tuple[Address, ...] = ADDRESSES.parse(value)
    return parsed


_CONTROL_PLANES = Kind(
    f"addresses, or {SEARCH}",
    _control_planes,
    {**ADDRESSES.schema, "type": ["array", "string"], "pattern": f"^{SEARCH}$"},
)

SETTINGS = Settings(
    "agent",
    (
        Setting("node_id", TEXT, None, "name of this node, as it is enrolled; without it the host name"),
        Setting(
            "control_planes",
            _CONTROL_PLANES,
            ["127.0.0.1:7001"],
            "agent listeners of the control planes, tried in turn; mdns looks for those that announce themselves in "
            "the local network",
        ),
        Setting(
            "identity",
            PATH,
            None,
            "directory of this node's certificate, its key and the authorities it trusts, as llmgw join makes it",
            shown="STATE_DIR/identity",
        ),
        Setting(
            "state_dir", PATH, "/var/lib/llmgw/agent", "directory of this agent alone: records and output of shards"
        ),
        Setting("address", TEXT, "127.0.0.1", "address at which routers reach the engines of this node"),
        Setting("engine_ports", PORT_RANGE, "20000-20999", "ports for engines; outside the kernel's ephemeral range"),
        Setting("labels", LABELS, {}, "labels of this node, for node_selector and the facility"),
        Setting(
            "engines",
            MAPPING,
            {},
            "engines of this node: NAME: {kind: binary, path: FILE} | {kind: python-package, venv: DIRECTORY, "
            "binary: PATH IN SITE-PACKAGES} | {kind: builtin} (only sim)",
        ),
        Setting("weights_dirs", PATHS, [], "directories that hold weights; their free space is reported"),
        Setting(
            "hardware.gpu",
            choice("auto", "nvml", "nvidia-smi", "off"),
            "auto",
            "how devices are read: NVML, the nvidia-smi program, whichever answers, or not at all",
        ),
        Setting("hardware.nvidia_smi", TEXT, "nvidia-smi", "the nvidia-smi program"),
        Setting("log.level", choice(*LEVELS), "info", "least level that is logged; changes live on SIGHUP"),
        Setting("log.format", choice("text", "json"), "text", "lines for people, or one JSON object a line"),
    ),
)


@dataclass(frozen=True)
class Config:
    """Validated settings of an agent, typed. ``state_dir`` and ``identity`` are absolute.
    ``control_planes`` is empty if they are looked for in the network."""

    node_id: str
    control_planes: tuple[Address, ...]
    identity: Path
    state_dir: Path
    address: str
    engine_ports: PortRange
    labels: dict[str, str]
    engines: dict[str, Any]
    weights_dirs: tuple[Path, ...]
    gpu: str
    nvidia_smi: str

    @property
    def searches(self) -> bool:
        """Whether control planes are looked for in the network."""
        return not self.control_planes


def configure(loaded: Loaded, source: str) -> Config:
    """Check what single settings cannot tell. Raises ``SettingsError`` with all faults."""
    node_id = loaded["node_id"] or socket.gethostname()
    faults = configured_faults(loaded["engines"])
    if not valid_name(node_id):
        faults.append(Fault("node_id", "must be 1 to 253 letters, digits, dots, dashes or underscores"))
    if not loaded["address"] or any(character.isspace() or character == "/" for character in loaded["address"]):
        faults.append(Fault("address", "must be one address or host name of this node"))
    if faults:
        raise SettingsError(source, faults)
    first, last = loaded["engine_ports"]
    return Config(
        node_id=node_id,
        control_planes=loaded["control_planes"],
        identity=(loaded["identity"] or loaded["state_dir"] / "identity").absolute(),
        state_dir=loaded["state_dir"].absolute(),
        address=loaded["address"],
        engine_ports=PortRange(first=first, last=last),
        labels=loaded["labels"],
        engines=loaded["engines"],
        weights_dirs=loaded["weights_dirs"],
        gpu=loaded["hardware.gpu"],
        nvidia_smi=loaded["hardware.nvidia_smi"],
    )
