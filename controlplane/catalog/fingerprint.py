"""Fingerprint of a profile: what, if changed, changes the running engine (CAT-08)."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


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
    nodes: int = 1,
    pp: int | None = None,
    dp: int | None = None,
    launch_mode: str | None = None,
) -> str:
    """16 hex digits. Priority, weights of routing, claims of memory, selectors and
    time-outs are left out: they do not reach the engine. ``tp`` is left out because the
    others leave it no choice (CAT-03).

    What a profile does not use is no part of it, so that a release that knows more
    fields marks nothing stale that did not change."""
    content: dict[str, Any] = {
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
    if nodes != 1:
        content["nodes"] = nodes
    for name, ranks in (("pp", pp), ("dp", dp)):
        if ranks not in (None, 1):
            content[name] = ranks
    if launch_mode not in (None, "native"):
        content["launch_mode"] = launch_mode
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
