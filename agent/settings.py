"""Settings of an agent, declared once."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.installs import configured_faults
from llmgw.runtime.logs import LEVELS
from llmgw.runtime.settings import (
    ADDRESSES,
    LABELS,
    MAPPING,
    PATH,
    PATHS,
    PORT_RANGE,
    REQUIRED,
    TEXT,
    Address,
    Fault,
    Loaded,
    Setting,
    Settings,
    SettingsError,
    choice,
)
from llmgw.wire.messages import PortRange

SETTINGS = Settings(
    "agent",
    (
        Setting("node_id", TEXT, None, "name of this node, as it is enrolled; without it the host name"),
        Setting(
            "control_planes",
            ADDRESSES,
            ["127.0.0.1:7001"],
            "agent listeners of the control planes, tried in turn; loopback only until connections are encrypted",
        ),
        Setting("token_file", PATH, REQUIRED, "file (mode 0600) that holds this node's token on one line"),
        Setting(
            "state_dir", PATH, "/var/lib/llmgw/agent", "directory of this agent alone: records and output of shards"
        ),
        Setting(
            "address",
            TEXT,
            "127.0.0.1",
            "address at which routers reach the engines of this node; loopback only until connections are encrypted",
        ),
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

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


@dataclass(frozen=True)
class Config:
    """Validated settings of an agent, typed. ``state_dir`` is absolute."""

    node_id: str
    control_planes: tuple[Address, ...]
    token_file: Path
    state_dir: Path
    address: str
    engine_ports: PortRange
    labels: dict[str, str]
    engines: dict[str, Any]
    weights_dirs: tuple[Path, ...]
    gpu: str
    nvidia_smi: str


def configure(loaded: Loaded, source: str) -> Config:
    """Check what single settings cannot tell. Raises ``SettingsError`` with all faults."""
    node_id = loaded["node_id"] or socket.gethostname()
    faults = configured_faults(loaded["engines"])
    if not _NODE_ID.fullmatch(node_id):
        faults.append(Fault("node_id", "must be 1 to 253 letters, digits, dots, dashes or underscores"))
    for address in loaded["control_planes"]:
        if not address.loopback:
            message = f"{address} is not loopback: the node's token would travel in clear; use a tunnel on this host"
            faults.append(Fault("control_planes", message))
    if not loaded["address"] or any(character.isspace() or character == "/" for character in loaded["address"]):
        faults.append(Fault("address", "must be one address or host name of this node"))
    elif not Address(loaded["address"], 0).loopback:
        message = f"{loaded['address']} is not loopback: prompts and engine keys would cross the network in clear"
        faults.append(Fault("address", f"{message}; connections between machines are not encrypted yet"))
    if faults:
        raise SettingsError(source, faults)
    first, last = loaded["engine_ports"]
    return Config(
        node_id=node_id,
        control_planes=loaded["control_planes"],
        token_file=loaded["token_file"],
        state_dir=loaded["state_dir"].absolute(),
        address=loaded["address"],
        engine_ports=PortRange(first=first, last=last),
        labels=loaded["labels"],
        engines=loaded["engines"],
        weights_dirs=loaded["weights_dirs"],
        gpu=loaded["hardware.gpu"],
        nvidia_smi=loaded["hardware.nvidia_smi"],
    )
