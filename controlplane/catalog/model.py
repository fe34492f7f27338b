"""The catalog as values: models, profiles, scaling (CAT-01).

Built only by ``controlplane.catalog.load``, which validates the whole. Immutable:
what changes is which catalog is current.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to run a model (CAT-04). ``memory_bytes`` is claimed on the node;
    ``gpus`` counts devices of ``gpu_class`` (0 = CPU only). ``fingerprint`` covers
    what changes the running engine (CAT-08). Of an engine that spreads over devices,
    ``tp``, ``pp`` and ``dp`` are filled in; ``launch_mode`` is set where ``nodes`` is
    above 1. ``memory_bytes`` and ``cpu_cores`` are those of the model's ``resources``
    where it has them."""

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
    nodes: int = 1
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    launch_mode: Literal["ray", "native"] | None = None
    keep_within: str | None = None
    power_watts: float | None = None
    target_waiting: float | None = None
    kv_ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """When other bounds hold (DEM-06). ``days`` are 0 (Monday) to 6, ``start`` and ``end``
    minutes after midnight; ``end`` at or before ``start`` is on the next day."""

    days: frozenset[int]
    start: int
    end: int
    min: int
    max: int
    prewarm: bool = False


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many replicas. ``min 0 max >= 1`` is on demand, ``0/0`` off (CAT-05)."""

    min: int = 0
    max: int = 0
    idle_timeout: float = 900.0
    schedule: tuple[Window, ...] = ()

    @property
    def mode(self) -> Literal["always", "on-demand", "off"]:
        """What the two numbers mean."""
        if self.max == 0:
            return "off"
        return "always" if self.min > 0 else "on-demand"


@dataclass(frozen=True, slots=True)
class External:
    """A provider outside the cluster that serves a model (CAT-10). ``url`` is the base
    that ends before ``/chat/completions``, such as ``https://api.example.com/v1``."""

    url: str
    model: str
    api_key_file: str | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter on the replicas of model ``base`` (CAT-14)."""

    base: str
    source: str


@dataclass(frozen=True, slots=True)
class Resources:
    """What each profile of the model claims instead of what it says itself (CAT-12)."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None


ServiceClass = Literal["critical", "standard", "opportunistic"]


@dataclass(frozen=True, slots=True)
class Model:
    """What clients ask for by name. ``profiles`` are sorted by falling priority; a model
    has profiles, or is ``external``, or an ``adapter``; the last two have no scaling: look
    at them first. ``origin`` is the file it was written in, or ``store``. ``role``
    ``guard`` is not listed to clients (CAT-11). ``fallbacks`` and the adapter's ``base``
    are names of models of the same catalog (CAT-02)."""

    name: str
    profiles: tuple[Profile, ...]
    scaling: Scaling = Scaling()
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    external: External | None = None
    adapter: Adapter | None = None
    role: Literal["guard"] | None = None
    service_class: ServiceClass | None = None
    owner: str = ""
    resources: Resources | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class WeightedAlias:
    """A name that stands for several models by weight (CAT-13). ``sticky``: a caller's key
    always draws the same one while the weights stay. ``targets`` are models, each with a
    weight above 0. ``origin`` as that of a model."""

    name: str
    targets: tuple[tuple[str, float], ...]
    sticky: bool = False
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models by name. ``source`` is the file or directory it was read from,
    ``modified`` when its newest file was last written, in Unix seconds (0 = unknown).
    ``aliases`` are the weighted ones; those of one model are its own. ``definitions`` hold
    each model as it was written, by name: plain data that JSON can hold, not to be changed.
    ``unresolved`` are the models before the names of others in them were looked up, and
    ``allowed`` the operator's ``ENGINE FLAG`` pairs, for the next catalog to be made of."""

    models: Mapping[str, Model] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""
    modified: int = 0
    aliases: Mapping[str, WeightedAlias] = field(default_factory=lambda: MappingProxyType({}))
    definitions: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    unresolved: Mapping[str, Model] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)
    allowed: tuple[str, ...] = field(default=(), compare=False)
