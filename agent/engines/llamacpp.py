"""llama.cpp's ``llama-server`` (ENG-01, ENG-03, ENG-04).

Flags and behaviour were checked against build b10068; its ``--help`` is a test's
sample (ENG-08).
"""

import re

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

_PROFILE = "use the profile's field {} instead"
_PLACEMENT = "placement decides it"
_SAFETY = "it opens the node to whoever can reach the engine"
_DOWNLOAD = "weights come from the profile's source"

DENIED_ARGS: dict[str, str] = {
    **dict.fromkeys(("-m", "--model"), _PROFILE.format("source")),
    **dict.fromkeys(("-a", "--alias"), "clients use the model's name"),
    **dict.fromkeys(("-c", "--ctx-size"), _PROFILE.format("context")),
    **dict.fromkeys(("-np", "--parallel"), _PROFILE.format("slots")),
    **dict.fromkeys(("-t", "--threads"), _PROFILE.format("cpu_cores")),
    **dict.fromkeys(("--host", "--port", "--reuse-port", "-dev", "--device", "--rpc"), _PLACEMENT),
    **dict.fromkeys(("--api-key", "--api-key-file"), "every replica has its own key"),
    **dict.fromkeys(
        ("--ssl-key-file", "--ssl-cert-file", "--api-prefix", "--path"), "routers expect plain HTTP at /v1"
    ),
    **dict.fromkeys(
        ("--tools", "-ag", "--agent", "--ui-mcp-proxy", "--webui-mcp-proxy", "--props", "--media-path"), _SAFETY
    ),
    **dict.fromkeys(("--ui", "--webui"), "the engine's own page stays off"),
    **dict.fromkeys(("--models-dir", "--models-preset"), "one engine serves one model"),
    **dict.fromkeys(
        ("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-hft", "--hf-token", "-mu", "--model-url", "-dr"), _DOWNLOAD
    ),
    **dict.fromkeys(("--docker-repo",), _DOWNLOAD),
    **dict.fromkeys(("--log-file", "--log-disable"), "the agent keeps the output"),
    **dict.fromkeys(("--sse-ping-interval", "--no-slots"), "llmgw relies on its value"),
}

_ENV_OF = {
    "MODEL": "source",
    "CTX_SIZE": "context",
    "N_PARALLEL": "slots",
    "THREADS": "cpu_cores",
}
DENIED_ENV: dict[str, str] = {
    **{f"LLAMA_ARG_{name}": _PROFILE.format(field) for name, field in _ENV_OF.items()},
    **{f"LLAMA_ARG_{name}": _PLACEMENT for name in ("HOST", "PORT", "REUSE_PORT", "DEVICE", "RPC", "ALIAS")},
    **{f"LLAMA_ARG_{name}": _SAFETY for name in ("TOOLS", "AGENT", "UI", "UI_MCP_PROXY", "ENDPOINT_PROPS")},
    **{f"LLAMA_ARG_{name}": "routers expect plain HTTP at /v1" for name in ("SSL_KEY_FILE", "SSL_CERT_FILE")},
    **{f"LLAMA_ARG_{name}": _PLACEMENT for name in ("API_PREFIX", "STATIC_PATH", "MODELS_DIR", "MODELS_PRESET")},
    **{f"LLAMA_ARG_{name}": _DOWNLOAD for name in ("MODEL_URL", "HF_REPO", "HF_FILE", "DOCKER_REPO")},
    "LLAMA_ARG_API_KEY_FILE": "every replica has its own key",
    "LLAMA_ARG_SSE_PING_INTERVAL": "llmgw relies on its value",
}

_GPU_LAYERS = frozenset({"-ngl", "--gpu-layers", "--n-gpu-layers"})
_VERSION = re.compile(r"version:\s*(\d+)(?:\s*\(([0-9a-f]+)\))?", re.ASCII)


class LlamaCpp:
    """llama-server of llama.cpp; GGUF weights, CPU and GPU, one node."""

    name = "llamacpp"
    needs_weights = True
    weights_magic = b"GGUF"

    def version_command(self, install: Install) -> tuple[str, ...]:
        """``llama-server --version``."""
        return (install.path, "--version")

    def parse_version(self, output: str) -> str | None:
        """Such as ``b10068``; the commit alone for a build that does not know its number."""
        match = _VERSION.search(output)
        if match is None:
            return None
        return match[2] if match[1] == "1" and match[2] else f"b{match[1]}"

    def faults(self, spec: ShardSpec) -> list[SpecFault]:
        """Arguments and variables that llmgw owns, and what one node cannot do."""
        faults = common_faults(spec, DENIED_ARGS, DENIED_ENV)
        if spec.world != 1:
            faults.append(SpecFault("invalid_spec", f"llamacpp runs on one node here, not on {spec.world} shards"))
        if not spec.devices and any(arg in _GPU_LAYERS for arg in spec.args):
            message = "args: GPU layers without a device: give the profile gpu_class and gpus"
            faults.append(SpecFault("invalid_spec", message))
        return faults

    def plan(self, spec: ShardSpec, install: Install, node: NodeFacts) -> LaunchPlan:
        """``-t`` is ``cpu_cores``, else half of the node's CPUs (ENG-04)."""
        threads = spec.cpu_cores or (node.cpu_count or 2) / 2
        argv = [install.path, "-m", spec.source.removeprefix("file:"), "--host", spec.host, "--port", str(spec.port)]
        argv += ["--alias", spec.served_name, "-t", str(max(1, int(threads)))]
        if spec.context is not None:
            argv += ["-c", str(spec.context)]
        if spec.slots is not None:
            argv += ["-np", str(spec.slots)]
        # A busy server notices a SIGTERM only at its next ping.
        argv += ["--metrics", "--no-ui", "--offline", "--sse-ping-interval", "2"]
        if not spec.devices:
            argv += ["--device", "none", "-ngl", "0"]
        elif not any(arg in _GPU_LAYERS for arg in spec.args):
            argv += ["-ngl", "all"]
        env = {**spec.env, **device_env(spec.devices)}
        headers = {}
        if spec.engine_key:
            env["LLAMA_API_KEY"] = spec.engine_key
            headers["Authorization"] = f"Bearer {spec.engine_key}"
        return LaunchPlan(
            commands=(Command((*argv, *spec.args), env),),
            probe=ReadinessProbe(connect_host(spec.host), spec.port, "/health", headers),
            metrics="llamacpp",
            capabilities=("chat", "completions", "streaming"),
        )

    def cause(self, tail: tuple[str, ...]) -> SpecFault | None:
        """The faults that llama-server tells in words."""
        for line in tail:
            if "couldn't bind" in line or "bind HTTP server socket" in line:
                return SpecFault("port_in_use", "llama-server could not bind its port")
            if "error loading model" in line or "failed to load model" in line:
                return SpecFault("exited", f"llama-server could not load the model: {line.strip()[:300]}")
            if "unknown argument" in line or "invalid argument" in line:
                return SpecFault("invalid_spec", f"llama-server: {line.strip()[:300]}")
        return None
