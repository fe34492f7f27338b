"""What a seed draws before anything happens: the fleet, the catalog, the mood."""

import random
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controlplane.catalog.fingerprint import fingerprint
from controlplane.catalog.model import Catalog, External, Model, Profile, Scaling
from controlplane.planning.policy import LoopSettings
from llmgw.sim.lease_keeper import Times
from llmgw.sim.world import World
from llmgw.wire.messages import PortRange

GIB = 1 << 30

RACK = "llmgw.io/rack"
RACKS = ("r1", "r2", "r3")
TIER = "tier"
GOLD = "gold"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node's hardware."""

    name: str
    memory: int
    cores: int
    devices: tuple[str, ...]
    ports: PortRange
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Scenario:
    """A fleet and how long and how hard it is shaken. Times in seconds."""

    nodes: tuple[NodePlan, ...]
    routers: tuple[str, ...]
    catalog: Catalog
    settings: LoopSettings
    controls: int
    """How many control planes there are."""
    alone: bool
    """The one there is knows no standby: it leads by a lock (HA-01)."""
    times: Times
    storm: float
    """How long faults are injected."""
    pause: float
    """Mean time between two faults."""
    quiet: float = 1500.0
    """Within this time after the last fault the desired state must be reached."""
    gentle: bool = False
    """Faults leave engines, hosts, routers and the catalog alone, and settling outlasts them:
    every request must be answered throughout (REC-25, AGT-09)."""
    spare: list[Model] = field(default_factory=list)
    """Models that may be added later."""
    stop_after: bool = False
    """Once faults are over people stop serving, see everything end, and start it again."""


@dataclass(frozen=True, slots=True)
class Given:
    """What is given rather than drawn: ``storm`` in virtual seconds, ``only`` these kinds
    of faults."""

    storm: float | None = None
    only: tuple[str, ...] = ()

    def options(self) -> str:
        """The same as options of the command."""
        storm = "" if self.storm is None else f" --storm {self.storm:g}"
        return storm + "".join(f" --only {kind}" for kind in self.only)


def draw(world: World, given: Given) -> Scenario:
    """The scenario of the world's seed."""
    rng = world.rng("scenario")
    nodes = tuple(_node(rng, number) for number in range(1, rng.choice((1, 2, 2, 3, 3, 4, 6)) + 1))
    models = [_model(rng, f"m{number}", nodes) for number in range(rng.randint(2, 8))]
    spare = [models.pop()] if len(models) > 2 else []
    models += [external_model(f"x{number}") for number in range(rng.choice((0, 0, 1, 2)))]
    gentle = rng.random() < 0.25 and not given.only
    settings = LoopSettings(
        drain_grace=rng.choice((30.0, 120.0, 300.0)),
        lost_after=900.0 if gentle else rng.choice((120.0, 300.0)),
        parking_failures=rng.choice((3, 5)),
        resend_after=rng.choice((2.0, 30.0)),
        settling_steady=300.0 if gentle else 40.0,
        settling_limit=450.0 if gentle else 90.0,
    )
    controls = rng.choice((1, 1, 2, 2, 2, 3))
    return Scenario(
        nodes=nodes,
        controls=controls,
        alone=controls == 1 and rng.random() < 0.7,
        times=rng.choice((Times(), Times(), Times(), Times(ttl=12.0, renew=2.0, margin=3.0))),
        routers=tuple(f"r{number}" for number in range(1, rng.randint(1, 2) + 1)),
        catalog=catalog_of(models),
        settings=settings,
        storm=given.storm if given.storm is not None else rng.uniform(300.0, 900.0),
        pause=rng.choice((4.0, 10.0, 25.0)),
        gentle=gentle,
        spare=spare,
        stop_after=not gentle and rng.random() < 0.2,
    )


def external_model(name: str) -> Model:
    """A model that somebody else serves, with its key in a file."""
    external = External("https://provider.example/api/v1", f"big-{name}", f"/keys/{name}")
    return Model(name, (), external=external)


def catalog_of(models: list[Model]) -> Catalog:
    """A catalog of these."""
    return Catalog(models=MappingProxyType({model.name: model for model in models}), source="sim")


def _node(rng: random.Random, number: int) -> NodePlan:
    name = f"n{number}"
    devices = tuple(f"GPU-{name}-{index}" for index in range(rng.choice((0, 0, 1, 2, 4))))
    first = 20000
    ports = PortRange(first=first, last=first + rng.choice((1, 3, 5, 20)))
    labels = {RACK: rng.choice(RACKS)} if rng.random() < 0.7 else {}
    if rng.random() < 0.5:
        labels[TIER] = rng.choice((GOLD, "silver"))
    return NodePlan(name, rng.choice((16, 32, 64)) * GIB, rng.choice((4, 8, 16)), devices, ports, labels)


def _model(rng: random.Random, name: str, nodes: tuple[NodePlan, ...]) -> Model:
    profiles = tuple(_profile(rng, f"p{number}", -number) for number in range(rng.choice((1, 1, 1, 2))))
    if rng.random() < 0.1:
        too_much = (max(node.memory for node in nodes) // GIB + 1) * GIB
        profiles = tuple(replace(profile, memory_bytes=too_much) for profile in profiles)
    least = rng.choice((0, 1, 1, 1, 2, 3))
    return Model(name, profiles, Scaling(min=least, max=least + rng.choice((0, 1)) or 1))


def _profile(rng: random.Random, name: str, priority: int) -> Profile:
    gpus = rng.choice((0, 0, 0, 1, 1, 2))
    return with_args(
        Profile(
            name=name,
            engine="sim",
            source="sim:",
            fingerprint="",
            priority=priority,
            gpu_class="sim-gpu" if gpus else None,
            gpus=gpus,
            memory_bytes=rng.choice((2, 6, 12, 20)) * GIB,
            cpu_cores=float(rng.choice((1, 2, 3))),
            startup_timeout=rng.choice((20.0, 60.0, 120.0)),
            node_selector={TIER: GOLD} if rng.random() < 0.1 else {},
        ),
        (),
    )


def with_args(profile: Profile, args: tuple[str, ...]) -> Profile:
    """The same profile with other arguments of the engine: another fingerprint."""
    print_ = fingerprint(
        engine=profile.engine,
        source=profile.source,
        gpu_class=profile.gpu_class,
        gpus=profile.gpus,
        cpu_cores=profile.cpu_cores,
        context=profile.context,
        slots=profile.slots,
        args=args,
        env=profile.env,
    )
    return replace(profile, args=args, fingerprint=print_)
