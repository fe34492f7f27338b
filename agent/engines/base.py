"""What an engine adapter is: a shard spec becomes commands to run (ENG-01).

Adding an engine is one file here and a row in ``agent.engines.ADAPTERS``. Adapters
are pure: they neither run nor read anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agent.events import SpecFault
from llmgw.wire.messages import ShardSpec

InstallKind = Literal["binary", "python-package", "builtin"]

MAX_ARGS = 256
MAX_ARG = 8192


@dataclass(frozen=True, slots=True)
class Install:
    """Where one engine is on this node, as its settings say. ``path`` is the program to
    run; empty if it could not be found, then ``problem`` says why in words."""

    engine: str
    kind: InstallKind
    path: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """One process of a shard. ``env`` is added to the little that engines inherit.
    Its secrets are in ``env``, never in ``argv``."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ReadinessProbe:
    """An HTTP GET that answers 200 once the engine is ready (AGT-08)."""

    host: str
    port: int
    path: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What to run: all commands but the last are sidecars. ``probe`` is ``None`` for a
    rank that serves no HTTP. ``metrics`` names the dialect of the engine's metrics."""

    commands: tuple[Command, ...]
    probe: ReadinessProbe | None
    metrics: str
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What an adapter may need to know about the node."""

    cpu_count: int | None = None


class EngineAdapter(Protocol):
    """One engine."""

    name: str
    needs_weights: bool
    weights_magic: bytes
    """First bytes of the weights file."""

    def version_command(self, install: Install) -> tuple[str, ...]:
        """What to run to see that the engine runs (PLC-12)."""
        ...

    def parse_version(self, output: str) -> str | None:
        """The version in that command's output; ``None`` if it is not this engine's."""
        ...

    def faults(self, spec: ShardSpec) -> list[SpecFault]:
        """What this engine cannot do with the spec; every reason (AGT-05)."""
        ...

    def plan(self, spec: ShardSpec, install: Install, node: NodeFacts) -> LaunchPlan:
        """Commands for a spec without faults."""
        ...

    def cause(self, tail: tuple[str, ...]) -> SpecFault | None:
        """Why the engine ended, if its last output tells."""
        ...


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_DENIED_ENV = re.compile(
    r"LD_.*|PYTHON.*|LLMGW_.*|PATH|HOME|IFS|ENV|BASH_ENV|SHELLOPTS|GCONV_PATH|GLIBC_TUNABLES|MALLOC_.*"
    r"|(CUDA|NVIDIA|HIP|ROCR|GGML_VK)_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_MPS_.*|.*_API_KEY(_FILE)?"
)


def common_faults(spec: ShardSpec, denied_args: Mapping[str, str], denied_env: Mapping[str, str]) -> list[SpecFault]:
    """Rules for ``args`` and ``env`` that hold for every engine.

    ``denied_args`` and ``denied_env`` map a name that this engine's adapter owns to
    the remedy. A refusal names the argument, never its value.
    """
    faults = []
    if len(spec.args) > MAX_ARGS or any(len(arg) > MAX_ARG or "\0" in arg for arg in spec.args):
        faults.append(f"args: at most {MAX_ARGS} arguments of at most {MAX_ARG} characters each")
    for arg in spec.args:
        name = arg.partition("=")[0]
        if name.startswith("--"):
            name = "--" + name[2:].replace("_", "-")
        if (remedy := denied_args.get(name)) is not None:
            faults.append(f"args: {name} is set by llmgw: {remedy}")
    for name, value in spec.env.items():
        if not _ENV_NAME.fullmatch(name) or len(value) > MAX_ARG or "\0" in value:
            faults.append(
                f"env: {name[:64]!r} is not a usable variable: letters, digits and underscores, value bounded"
            )
        elif (remedy := denied_env.get(name)) is not None:
            faults.append(f"env: {name} is set by llmgw: {remedy}")
        elif _DENIED_ENV.fullmatch(name):
            faults.append(f"env: {name} may not be set by a profile: it changes what is run or which devices are used")
    return [SpecFault("invalid_spec", fault) for fault in faults]


def device_env(devices: tuple[str, ...]) -> dict[str, str]:
    """Environment that binds an engine to exactly these devices, by UUID (ENG-04);
    without devices it sees none."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def connect_host(host: str) -> str:
    """Where to reach, from this node, what listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - nothing is bound
