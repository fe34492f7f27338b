"""Why models were not placed, as it is kept and told (REC-05)."""

from controlplane.fleet.context import Fleet
from controlplane.planning.plan import Plan
from controlplane.planning.wanted import wanted


def keep(fleet: Fleet, decided: Plan, now: float) -> None:
    """Keep why a model was not placed; tell when the reason changes, or again after
    ten minutes."""
    view = fleet.view
    for name in decided.fits | {name for name in view.health if wanted(view, name).lower == 0}:
        health = view.health.get(name)
        if health is not None:
            health.refusal = health.refused_since = health.refused_version = health.refusal_noted = None
    for name, refusal in decided.refused.items():
        health = fleet.health(name)
        if health.refusal is None or health.refusal.message != refusal.message:
            health.refused_since = now
            health.refusal_noted = None
        health.refusal = refusal
        health.refused_version = decided.version
    for name, health in view.health.items():
        if health.refusal is None:
            continue
        if health.refusal_noted is None or now - health.refusal_noted >= fleet.settings.repeat_refusal:
            health.refusal_noted = now
            fleet.note("no-placement", health.refusal.message, model=name, code=health.refusal.code)
