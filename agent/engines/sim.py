"""The simulated engine that comes with llmgw (ENG-07)."""

import re
import sys

from agent.engines.base import (
    Command,
    Install,
    LaunchPlan,
    NodeFacts,
    ReadinessProbe,
    common_faults,
    connect_host,
    device_env,
)
from agent.events import SpecFault
from llmgw.wire.messages import ShardSpec

_MODULE = "llmgw.sim.engine"
_DENIED_ARGS = {
    **dict.fromkeys(("--host", "--port"), "placement decides it"),
    **dict.fromkeys(("--model", "--served-model-name"), "clients use the model's name"),
    **dict.fromkeys(("--nnodes", "--node-rank", "--rendezvous"), "placement decides it"),
    "--api-key": "every replica has its own key",
}
_VERSION = re.compile(r"\d+(\.\d+)+\S*", re.ASCII)


class Sim:
    """``python -m llmgw.sim.engine``: no weights, behaviour by its arguments."""

    name = "sim"
    needs_weights = False
    weights_magic = b""

    def version_command(self, install: Install) -> tuple[str, ...]:
        """The engine's module with ``--version``."""
        return (install.path or sys.executable, "-m", _MODULE, "--version")

    def parse_version(self, output: str) -> str | None:
        """The version of llmgw it belongs to."""
        match = _VERSION.search(output)
        return match[0] if match else None

    def faults(self, spec: ShardSpec) -> list[SpecFault]:
        """Arguments and variables that llmgw owns."""
        return common_faults(spec, _DENIED_ARGS, {})

    def plan(self, spec: ShardSpec, install: Install, node: NodeFacts) -> LaunchPlan:  # noqa: ARG002 - the protocol's
        """The key goes through ``LLMGW_SIM_API_KEY``."""
        argv = [install.path or sys.executable, "-m", _MODULE, "--host", spec.host, "--port", str(spec.port)]
        argv += ["--model", spec.served_name]
        if spec.context is not None:
            argv += ["--context", str(spec.context)]
        if spec.slots is not None:
            argv += ["--slots", str(spec.slots)]
        env = {**spec.env, **device_env(spec.devices)}
        headers = {}
        if spec.engine_key:
            env["LLMGW_SIM_API_KEY"] = spec.engine_key
            headers["Authorization"] = f"Bearer {spec.engine_key}"
        return LaunchPlan(
            commands=(Command((*argv, *spec.args), env),),
            probe=ReadinessProbe(connect_host(spec.host), spec.port, "/health", headers),
            metrics=_dialect(spec.args),
            capabilities=("chat", "completions", "streaming"),
        )

    def cause(self, tail: tuple[str, ...]) -> SpecFault | None:
        """The engine's own words for a taken port."""
        if any("Address already in use" in line for line in tail):
            return SpecFault("port_in_use", "the simulated engine could not bind its port")
        return None


def _dialect(args: tuple[str, ...]) -> str:
    """The dialect the engine was told to speak."""
    for index, arg in enumerate(args):
        if arg.startswith("--dialect="):
            return arg.partition("=")[2]
        if arg == "--dialect" and index + 1 < len(args):
            return args[index + 1]
    return "vllm"
