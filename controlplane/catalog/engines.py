"""What a profile may ask of each engine: sources, and the flags and environment
that ``llmgw`` keeps for itself (CAT-04).

Adding an engine is one row in ``ENGINES``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_OURS = "llmgw sets the address, the port and the served name itself"
_KEYS = "keys are made and passed by llmgw; a catalog holds no secret"
_SOURCE = "the model comes from the profile's source"
_REMOTE = "it lets a model or a caller run code or read files"


def _flags(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


@dataclass(frozen=True)
class EngineRules:
    """One engine. ``schemes`` are the source schemes it can load; ``denied`` maps a
    flag to the reason why a profile may not set it; ``environment`` are variables
    (``*`` at the end matches any rest) that would do the same."""

    schemes: tuple[str, ...]
    denied: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)


_ANY_ENGINE = {
    **_flags(_REMOTE, "--trust-remote-code"),
    **_flags(_KEYS, "--api-key --api-key-file --hf-token"),
    **_flags(_OURS, "--host --port"),
}

ENGINES: Mapping[str, EngineRules] = {
    "llamacpp": EngineRules(
        schemes=("file",),
        denied={
            **_ANY_ENGINE,
            **_flags(_OURS, "-a --alias --reuse-port --api-prefix --rpc"),
            **_flags(_KEYS, "-hft --ssl-key-file --ssl-cert-file"),
            **_flags(
                _SOURCE,
                "-m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hfv -hfrv --hf-repo-v"
                " -hffv --hf-file-v --models-dir --models-preset --models-max --models-autoload",
            ),
            **_flags(
                _REMOTE,
                "--tools -ag --agent --ui-mcp-proxy --webui-mcp-proxy --path --media-path --slot-save-path --props",
            ),
            **_flags("use the profile's context", "-c --ctx-size"),
            **_flags("use the profile's slots", "-np --parallel"),
            **_flags("use the profile's cpu_cores", "-t --threads"),
            **_flags("use gpu_class and gpus: devices are placed by llmgw", "-dev --device --list-devices"),
            **_flags("llmgw keeps the engine's output itself", "--log-file --log-disable"),
            **_flags("it ends at once instead of serving", "-h --help --usage --version -cl --cache-list"),
        },
        environment=_flags("use args, context, slots or cpu_cores", "LLAMA_ARG_*"),
    ),
    "sim": EngineRules(
        schemes=("sim",),
        denied={
            **_ANY_ENGINE,
            **_flags(_OURS, "--alias --served-name --served-model-name"),
            **_flags(_SOURCE, "--model"),
            **_flags("it ends at once instead of serving", "-h --help --version"),
        },
    ),
}
"""Every engine a profile can name."""

SCHEMES = ("file", "sim", "hf", "https", "mirror")
"""Every source scheme that has a meaning."""

NOT_YET = ("hf", "https", "mirror")
"""Schemes whose weights this release does not fetch. The one place that says so."""

_ENVIRONMENT = {
    **_flags("it changes which code the engine runs", "LD_* PYTHONPATH PYTHONHOME PYTHONSTARTUP PATH BASH_ENV ENV"),
    **_flags("use gpu_class and gpus: devices are placed by llmgw", "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES"),
    **_flags("use gpu_class and gpus: devices are placed by llmgw", "GGML_VK_VISIBLE_DEVICES HIP_VISIBLE_DEVICES"),
    **_flags("llmgw sets these itself", "LLMGW_*"),
}
_SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)S?$", re.IGNORECASE)


def flag_fault(rules: EngineRules, argument: str) -> str | None:
    """Why ``argument`` may not be among a profile's args, or ``None`` if it may.

    ``--flag=value`` counts as ``--flag``, and ``--a_b`` as ``--a-b`` (engines read
    both).
    """
    name = argument.split("=", 1)[0]
    if name.startswith("--"):
        name = name.replace("_", "-").lower()
    reason = rules.denied.get(name)
    return None if reason is None else f"{name} is not allowed: {reason}"


def variable_fault(rules: EngineRules, name: str) -> str | None:
    """Why a profile's env may not hold ``name``, or ``None`` if it may."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return "is not a name of an environment variable"
    reason = _match(rules.environment.items(), name) or _match(_ENVIRONMENT.items(), name)
    if reason is None and _SECRET.search(name):
        reason = _KEYS
    return None if reason is None else f"is not allowed: {reason}"


def _match(rules: Iterable[tuple[str, str]], name: str) -> str | None:
    for pattern, reason in rules:
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            return reason
    return None
