"""One seed from beginning to end: storm, calm, then the desired state or a violation."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from controlplane.events import RetryRequested
from llmgw.sim.cluster import Cluster
from llmgw.sim.faults import Storm
from llmgw.sim.outcome import problems, restless
from llmgw.sim.scenario import Given, draw
from llmgw.sim.world import START, Enough, Violation, World

LOOK = 10.0
"""Seconds between two looks at whether the desired state is reached."""

RETRIES = 300.0
"""Seconds after the last fault during which people retry parked models."""

HOLD = 60.0
"""Seconds for which it must then hold without a further decision."""


GIVEN_NOTHING = Given()


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken invariant, by its short name, and how."""

    invariant: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


@dataclass(frozen=True, slots=True)
class Result:
    """How a seed ended. ``broken`` is ``None`` if all is well; ``settled`` is how
    many virtual seconds after the last fault the desired state was reached; ``leaders``
    counts how often somebody began to lead, ``occasions`` what was met of
    ``allegiance.OCCASIONS``."""

    seed: int
    broken: Broken | None
    last: tuple[str, ...]
    digest: str
    lines: int
    steps: int
    virtual: float
    settled: float | None
    faults: Counter[str]
    leaders: int
    occasions: Counter[str]


class _Errors(logging.Handler):
    """Puts what the product logs as an error, with its traceback, into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        for line in self.format(record).splitlines():
            self._world.log("log", line)


def simulate(
    seed: int,
    *,
    given: Given = GIVEN_NOTHING,
    steps: int | None = None,
    sink: Callable[[str], None] | None = None,
) -> Result:
    """Run a seed. ``given`` is taken as it is instead of drawn, ``steps`` ends after that
    many steps, ``sink`` gets each line of the trace."""
    world = World(seed, sink)
    world.most_steps = steps
    logger = logging.getLogger("llmgw")
    handler = _Errors(world)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    settled, violation = None, None
    try:
        settled = _run(world, given)
    except Violation as error:
        violation = Broken(error.invariant, error.message)
        world.log("VIOLATION", str(error))
    except Enough:
        world.log("end", f"{steps} steps were taken")
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
    return Result(
        seed=seed,
        broken=violation,
        last=tuple(world.trace.last),
        digest=world.trace.digest,
        lines=world.trace.lines,
        steps=world.steps,
        virtual=world.now - START,
        settled=settled,
        faults=world.faults,
        leaders=world.leaders,
        occasions=world.occasions,
    )


def _run(world: World, given: Given) -> float:
    scenario = draw(world, given)
    cluster = Cluster(world, scenario)
    weather = Storm(cluster, given.only)
    weather.start()
    world.run_until(START + scenario.storm)
    weather.stop()
    cluster.calm()
    world.log("calm", "faults stop")
    if scenario.stop_after:
        _come_to_rest(world, cluster)
        cluster.set_serving(stopped=True)
        world.log("person", "serving stops")
        _come_to_rest(world, cluster)
        cluster.set_serving(stopped=False)
        world.log("person", "serving starts")
    settled = _come_to_rest(world, cluster)
    world.log("calm", f"desired state reached after {settled:.0f} s")
    decisions = len(cluster.durable.journal)
    world.run_until(world.now + HOLD)
    wrong = [*problems(cluster), *restless(cluster)]
    wrong += [str(entry.decision) for entry in cluster.durable.journal[decisions:]]
    if wrong:
        raise Violation("stays", f"the desired state did not hold: {'; '.join(wrong)}")
    return settled


def _come_to_rest(world: World, cluster: Cluster) -> float:
    """Wait until what people want is what runs; how many seconds that took."""
    began, limit = world.now, cluster.scenario.quiet
    while True:
        world.run_until(world.now + LOOK)
        if world.now - began <= RETRIES:
            _ask_again(cluster)
        wrong = problems(cluster)
        if not wrong:
            return world.now - began
        if world.now - began > limit:
            raise Violation("desired-state", f"not reached {limit:g} s after the last fault: {'; '.join(wrong)}")


def _ask_again(cluster: Cluster) -> None:
    """People retry what the control plane has parked: failures of the storm may be
    reported late, once connections are back."""
    if cluster.term is not None:
        for name, health in cluster.term.loop.view.health.items():
            if health.parked:
                cluster.tell(RetryRequested(name, "ops"))
