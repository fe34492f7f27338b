"""Fingerprint of a profile: what, if changed, changes the running engine (CAT-08)."""

import hashlib
import json
from collections.abc import Mapping


def fingerprint(
    *,
    engine: str,
    source: str,
    gpu_class: str | None,
    gpus: int,
    cpu_cores: float | None,
    context: int | None,
    slots: int | None,
    args: tuple[str, ...],
    env: Mapping[str, str],
) -> str:
    """16 hex digits. Priority, weights of routing, claims of memory, selectors and
    time-outs are left out: they do not reach the engine."""
    content = {
        "engine": engine,
        "source": source,
        "gpu_class": gpu_class,
        "gpus": gpus,
        "cpu_cores": cpu_cores,
        "context": context,
        "slots": slots,
        "args": list(args),
        "env": dict(sorted(env.items())),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
