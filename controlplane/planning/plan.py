"""A plan as values: ordered actions, each with its reason; refusals; figures."""

from dataclasses import dataclass, field
from typing import Any

from controlplane.events import Decision
from controlplane.planning.view import Refusal, Verdict
from llmgw.wire.messages import ShardSpec


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """One shard of a placement and its node."""

    node_id: str
    spec: ShardSpec


@dataclass(frozen=True, slots=True)
class Place:
    """Make a new replica. ``rejected`` are the candidates turned down (PLC-24)."""

    replica: str
    model: str
    profile: str
    fingerprint: str
    shards: tuple[ShardPlace, ...]
    reason: str
    rejected: tuple[Verdict, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drain:
    """Send nothing new to a ready replica; stop it within ``grace`` seconds (REC-06)."""

    replica: str
    model: str
    reason: str
    grace: float


@dataclass(frozen=True, slots=True)
class Stop:
    """End a replica. ``failure`` is a code of ``errors.SHARD`` if that is why, and
    counts against the model."""

    replica: str
    model: str
    reason: str
    failure: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)


Action = Place | Drain | Stop


@dataclass(slots=True)
class Plan:
    """What one pass decided. ``refused`` are models with no room, ``fits`` models whose
    earlier refusal is void. ``complete`` is false if the bound on actions cut it."""

    version: int
    actions: list[Action] = field(default_factory=list)
    refused: dict[str, Refusal] = field(default_factory=dict)
    fits: set[str] = field(default_factory=set)
    complete: bool = True


def decision(action: Action) -> Decision:
    """The record of an action: what, and why. Holds no secret."""
    if isinstance(action, Place):
        nodes = [place.node_id for place in action.shards]
        figures = {"profile": action.profile, "nodes": nodes, **action.figures}
        return Decision("place", action.reason, action.model, action.replica, nodes[0], figures)
    if isinstance(action, Drain):
        return Decision("drain", action.reason, action.model, action.replica, None, {"grace": action.grace})
    return Decision("stop", action.reason, action.model, action.replica, None, dict(action.figures))
