"""Catalog entries for tests."""

from pathlib import Path
from typing import Any


def llama_model(weights: Path, context: int, **profile: Any) -> dict[str, Any]:
    """A catalog entry for real weights, always one replica."""
    base = {"engine": "llamacpp", "source": f"file:{weights}", "min_memory_gb": 0.25, "cpu_cores": 0.5}
    return {"scaling": {"min": 1, "max": 1}, "profiles": [{**base, "context": context, "slots": 2, **profile}]}


def sim_model(*args: str, replicas: int = 1, **profile: Any) -> dict[str, Any]:
    """A catalog entry for the simulated engine."""
    base = {"engine": "sim", "source": "sim:", "min_memory_gb": 0.1, "cpu_cores": 0.1, "args": list(args)}
    return {"scaling": {"min": replicas, "max": replicas}, "profiles": [{**base, **profile}]}
