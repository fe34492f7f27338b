"""The catalog as values: models, profiles, scaling (CAT-01).

Built only by ``controlplane.catalog.load``, which validates the whole. Immutable:
what changes is which catalog is current.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to run a model (CAT-04). ``memory_bytes`` is claimed on the node;
    ``gpus`` counts devices of ``gpu_class`` (0 = CPU only). ``fingerprint`` covers
    what changes the running engine (CAT-08)."""

    name: str
    engine: str
    source: str
    fingerprint: str
    priority: int = 0
    gpu_class: str | None = None
    gpus: int = 0
    memory_bytes: int | None = None
    cpu_cores: float | None = None
    node_selector: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    startup_timeout: float = 600.0
    context: int | None = None
    slots: int | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    weight: float = 1.0
    max_inflight: int | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many replicas. ``min 0 max >= 1`` is on demand, ``0/0`` off (CAT-05)."""

    min: int = 0
    max: int = 0

    @property
    def mode(self) -> Literal["always", "on-demand", "off"]:
        """What the two numbers mean."""
        if self.max == 0:
            return "off"
        return "always" if self.min > 0 else "on-demand"


@dataclass(frozen=True, slots=True)
class Model:
    """What clients ask for by name. ``profiles`` are sorted by falling priority."""

    name: str
    profiles: tuple[Profile, ...]
    scaling: Scaling = Scaling()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models by name. ``source`` is the file or directory it was read from,
    ``modified`` when its newest file was last written, in Unix seconds (0 = unknown)."""

    models: Mapping[str, Model] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""
    modified: int = 0
