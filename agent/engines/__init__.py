"""Engine adapters, one per file (ENG-01)."""

from agent.engines.base import EngineAdapter
from agent.engines.llamacpp import LlamaCpp
from agent.engines.sim import Sim

ADAPTERS: dict[str, EngineAdapter] = {adapter.name: adapter for adapter in (LlamaCpp(), Sim())}
"""Every engine this build knows, by the name profiles use."""
