"""Checks of a shard spec before anything is launched (AGT-05).

Errors in seconds rather than after minutes of loading. Every fault is told, with the
figures and what to do. What is unknown refuses nothing.
"""

import errno
import math
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.engines.base import EngineAdapter
from agent.events import SpecFault
from agent.hardware.base import GIB, DeviceReading
from llmgw.wire.messages import EngineInstall, PortRange, ShardSpec


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the agent knows of its node at this moment. ``devices`` by UUID, ``None`` if
    they cannot be read; ``own_pids`` are processes of its own shards."""

    engines: Mapping[str, EngineInstall]
    engine_ports: PortRange
    devices: Mapping[str, DeviceReading] | None
    own_pids: frozenset[int]
    memory_available: int | None


def spec_faults(spec: ShardSpec, adapter: EngineAdapter | None, node: NodeState) -> list[SpecFault]:
    """Everything that can be told without touching disk or network."""
    faults = _sanity(spec, node.engine_ports)
    install = node.engines.get(spec.engine)
    if adapter is None or install is None:
        message = f"the engine {spec.engine} is not in this node's settings: add it under engines"
        faults.append(SpecFault("engine_missing", message))
    else:
        faults += adapter.faults(spec)
        if install.state != "ready":
            detail = f": {install.detail}" if install.detail else ""
            faults.append(SpecFault("engine_missing", f"the engine {spec.engine} is {install.state}{detail}"))
    faults += _devices(spec, node)
    available = node.memory_available
    if spec.memory_bytes is not None and available is not None and available < spec.memory_bytes:
        message = f"needs {spec.memory_bytes / GIB:.1f} GiB of memory, {available / GIB:.1f} GiB are available"
        faults.append(SpecFault("memory_short", message))
    return faults


def _sanity(spec: ShardSpec, ports: PortRange) -> list[SpecFault]:
    faults = []
    if not 0 <= spec.rank < spec.world:
        faults.append(f"rank {spec.rank} is not one of {spec.world} ranks")
    if not ports.first <= spec.port <= ports.last:
        faults.append(f"port {spec.port} is outside this node's engine_ports {ports.first}-{ports.last}")
    if not spec.host or any(character.isspace() for character in spec.host):
        faults.append("host must be an address")
    name = spec.served_name
    if not 0 < len(name) <= 256 or not name.isprintable() or "," in name or name.startswith("-"):
        faults.append("served_name must be printable text without commas, not starting with a dash")
    if spec.cpu_cores is not None and not (math.isfinite(spec.cpu_cores) and spec.cpu_cores > 0):
        faults.append("cpu_cores must be more than 0")
    if spec.context is not None and spec.context < 1:
        faults.append("context must be at least 1")
    if spec.slots is not None and spec.slots < 1:
        faults.append("slots must be at least 1")
    if not (math.isfinite(spec.startup_timeout) and spec.startup_timeout > 0):
        faults.append("startup_timeout must be more than 0")
    if not all("!" <= character <= "~" for character in spec.engine_key):
        faults.append("engine_key must be printable ASCII")
    if len(set(spec.devices)) != len(spec.devices):
        faults.append("devices names one device twice")
    return [SpecFault("invalid_spec", fault) for fault in faults]


def _devices(spec: ShardSpec, node: NodeState) -> list[SpecFault]:
    faults = []
    for uuid in spec.devices if node.devices is not None else ():
        reading = node.devices.get(uuid) if node.devices is not None else None
        if reading is None:
            faults.append(SpecFault("device_missing", f"this node has no device {uuid}"))
            continue
        if reading.device.excluded:
            faults.append(SpecFault("device_missing", f"device {uuid} cannot be used: {reading.device.excluded}"))
        foreign = [str(process) for process in reading.processes if process.pid not in node.own_pids]
        if foreign:
            faults.append(SpecFault("device_busy", f"device {uuid} is used by {', '.join(foreign[:4])}: end it first"))
    return faults


def source_faults(spec: ShardSpec, adapter: EngineAdapter) -> list[SpecFault]:
    """The weights. Looks at the disk: may block on a slow filesystem."""
    scheme, colon, rest = spec.source.partition(":")
    if not adapter.needs_weights:
        if scheme != adapter.name or not colon:
            message = f"source {spec.source!r}: the engine {adapter.name} takes no weights; write {adapter.name}:"
            return [SpecFault("invalid_spec", message)]
        return []
    if scheme != "file" or not rest.startswith("/"):
        message = f"source {spec.source!r}: only file:/ABSOLUTE/PATH is supported; put the weights on the node"
        return [SpecFault("invalid_spec", message)]
    file = Path(rest)
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            return [SpecFault("weights_missing", f"{file} is not a regular file")]
        with file.open("rb") as stream:
            start = stream.read(len(adapter.weights_magic))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return [SpecFault("weights_missing", f"{rest!r} cannot be read: {reason}; put the weights there")]
    if start != adapter.weights_magic:
        kind = adapter.weights_magic.decode("ascii", "replace")
        return [SpecFault("weights_missing", f"{file} is not a {kind} file ({status.st_size} bytes): copy it again")]
    return []


def port_faults(spec: ShardSpec) -> list[SpecFault]:
    """Whether the engine could listen on its port right now.

    Bound with SO_REUSEADDR, as engines do: old connections in TIME_WAIT are no
    obstacle, a listener or an outgoing connection is; ``listen`` also finds a socket
    that is bound and does not listen yet. A port that is none is told by ``spec_faults``.
    """
    if not 0 < spec.port < 65536:
        return []
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            spec.host, spec.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, ValueError):  # ValueError: a NUL in it, or a name no encoding takes
        return [SpecFault("invalid_spec", f"host {spec.host!r} cannot be resolved to an address of this node")]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return [SpecFault("port_in_use", f"port {spec.port} on {spec.host} is used by another process")]
            if error.errno == errno.EADDRNOTAVAIL:
                message = f"{spec.host} is not an address of this node: correct the setting address"
                return [SpecFault("invalid_spec", message)]
            words = os.strerror(error.errno) if error.errno else str(error)
            return [SpecFault("port_in_use", f"port {spec.port} on {spec.host} cannot be used: {words}")]
    return []
