"""Why a model is where it is, and what would happen to one more replica (PLC-24)."""

from collections.abc import Generator
from dataclasses import dataclass

from controlplane.catalog.model import Model
from controlplane.planning.candidates import Candidates
from controlplane.planning.overlay import Overlay
from controlplane.planning.placement import choose
from controlplane.planning.state import routable, standing
from controlplane.planning.view import FleetView, ModelHealth, Reason, Verdict
from controlplane.planning.wanted import counts, stopped, wanted
from controlplane.planning.words import IN_DOUBT, seconds
from controlplane.planning.work import Work
from llmgw.wire.routing import ModelState


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything known about one model's placement.

    ``state`` and ``sentence`` are what the router answers with. ``blockers`` keep
    the model from being placed at all (backoff, parked, settling, quarantined).
    ``verdicts`` is every candidate (profile x node) for one more replica: those that
    fit have a score, the best is ``chosen``. ``wanted`` replicas of ``live`` exist.
    """

    model: str
    state: ModelState
    sentence: str
    wanted: int
    live: int
    ready: int
    blockers: tuple[Reason, ...]
    verdicts: tuple[Verdict, ...]


def find(view: FleetView, name: str) -> Model:
    """A model by its name or alias. Raises ``KeyError`` if there is none."""
    model = view.catalog.models.get(name)
    if model is not None:
        return model
    for model in view.catalog.models.values():
        if name in model.aliases:
            return model
    raise KeyError(name)


def explain(view: FleetView, model_name: str, now: float) -> Explanation:
    """Explain a model by its name or alias. Raises ``KeyError`` if the catalog has
    no such model. Costs profiles x nodes: see ``explaining`` for slices."""
    work = explaining(view, model_name, now, Work())
    while True:
        try:
            next(work)
        except StopIteration as done:
            explanation: Explanation = done.value
            return explanation


def explaining(view: FleetView, model_name: str, now: float, work: Work) -> Generator[None, None, Explanation]:
    """``explain`` that yields between slices of work."""
    model = find(view, model_name)
    replicas = view.replicas.of_model(model.name)
    choice = yield from choose(view, Overlay(view, later=True), Candidates(), model, work=work, now=now)
    verdicts = yield from choice.verdicts(work)
    now_is = standing(view, model, replicas)
    return Explanation(
        model=model.name,
        state=now_is.state,
        sentence=now_is.reason,
        wanted=wanted(view, model.name).lower,
        live=sum(counts(replica) for replica in replicas),
        ready=sum(routable(view, replica) for replica in replicas),
        blockers=tuple(blockers(view, model, now)),
        verdicts=verdicts,
    )


def blockers(view: FleetView, model: Model, now: float) -> list[Reason]:
    """What keeps a model from being placed whatever the nodes are like."""
    health = view.health.get(model.name) or ModelHealth()
    found = []
    if view.serving.stopped:
        found.append(Reason("serving_stopped", stopped(view)))
    if view.lease.doubtful:
        found.append(Reason("lease_in_doubt", IN_DOUBT))
    if view.settling.active:
        found.append(Reason("settling", view.settling.reason or "the control plane waits for its nodes"))
    if health.quarantined is not None:
        found.append(Reason("quarantined", health.quarantined))
    if health.parked:
        found.append(Reason("parked", f"failed {health.failures} times in a row; last error: {health.last_error}"))
    elif health.backoff_until is not None and health.backoff_until > now:
        left = health.backoff_until - now
        message = f"the next try is in {seconds(left)}; last error: {health.last_error}"
        found.append(Reason("backoff", message, 0, left))
    if not view.nodes and model.profiles:
        found.append(Reason("no_nodes", "no node is enrolled"))
    return found
