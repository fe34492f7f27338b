"""Failures carried on the model: backoff with jitter, then parking (REC-03, REC-05)."""

from typing import Any

from controlplane.fleet.context import Fleet
from controlplane.planning.view import ModelHealth
from controlplane.planning.words import plural
from llmgw.wire.messages import ShardExit


def failed_start(
    fleet: Fleet,
    model: str,
    code: str,
    reason: str,
    *,
    exit_: ShardExit | None,
    node_id: str | None,
) -> dict[str, Any]:
    """Count a failure against a model: it waits, or is parked. Returns the figures."""
    if model not in fleet.view.catalog.models:
        return {}
    settings = fleet.settings
    health = fleet.health(model)
    health.failures += 1
    health.last_error = reason
    health.last_error_code = code
    health.last_error_at = fleet.now
    health.last_exit = exit_
    if node_id is not None:
        health.failed_nodes[node_id] = fleet.now
    if health.failures >= settings.parking_failures:
        health.parked = True
        health.backoff_until = None
        fleet.note(
            "parked",
            f"{plural(health.failures, 'failure')} in a row; it is not tried again until its definition "
            f"changes or somebody retries it; last error: {reason}",
            model=model,
            failures=health.failures,
        )
        return {"failures": health.failures}
    full = min(settings.backoff_first * 2.0 ** (health.failures - 1), settings.backoff_limit)
    delay = full * fleet.rng.uniform(0.75, 1.25)
    health.backoff_until = fleet.now + delay
    return {"failures": health.failures, "backoff": round(delay, 1)}


def proved(fleet: Fleet, model: str) -> None:
    """A replica of the model held: the row of failures ends. What is known of the last
    one stays for people to read."""
    health = fleet.view.health.get(model)
    if health is None or not (health.failures or health.failed_nodes):
        return
    health.failures = 0
    health.backoff_until = None
    health.failed_nodes.clear()
    fleet.touch()


def forgive(fleet: Fleet, model: str) -> None:
    """Start anew: the definition changed, or a person said retry (REC-05)."""
    health = fleet.view.health.get(model)
    if health is None:
        return
    fresh = ModelHealth(
        last_error=health.last_error,
        last_error_code=health.last_error_code,
        last_error_at=health.last_error_at,
        last_exit=health.last_exit,
    )
    fleet.view.health[model] = fresh
    fleet.touch()
    fleet.routes_dirty = True
