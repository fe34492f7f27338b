"""A plan as values: ordered actions, each with its reason; refusals; figures."""

from dataclasses import dataclass, field
from typing import Any, Literal

from controlplane.events import Decision
from controlplane.planning.view import Refusal, Verdict
from llmgw.wire.messages import ShardSpec


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """One shard of a placement and its node."""

    node_id: str
    spec: ShardSpec


RestartPart = Literal["replaced", "in place"]
"""Why a restart ends a replica (REC-30): its replacement is ready, or it goes first."""


@dataclass(frozen=True, slots=True)
class Place:
    """Make a new replica. ``rejected`` are the candidates turned down (PLC-24),
    ``replaces`` is the replica whose restart this is, ``heals`` the failed one that it
    follows on the same node while the lease is in doubt (HA-01)."""

    replica: str
    model: str
    profile: str
    fingerprint: str
    shards: tuple[ShardPlace, ...]
    reason: str
    rejected: tuple[Verdict, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    replaces: str | None = None
    heals: str | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Send nothing new to a ready replica; stop it within ``grace`` seconds (REC-06)."""

    replica: str
    model: str
    reason: str
    grace: float
    restart: RestartPart | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End a replica. ``failure`` is a code of ``errors.SHARD`` if that is why, and
    counts against the model."""

    replica: str
    model: str
    reason: str
    failure: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    restart: RestartPart | None = None


Action = Place | Drain | Stop


@dataclass(slots=True)
class Plan:
    """What one pass decided. ``refused`` are models with no room, ``fits`` models whose
    earlier refusal is void, ``given_up`` replicas whose restart cannot be, each with why.
    ``complete`` is false if the bound on actions cut it."""

    version: int
    actions: list[Action] = field(default_factory=list)
    refused: dict[str, Refusal] = field(default_factory=dict)
    fits: set[str] = field(default_factory=set)
    given_up: dict[str, str] = field(default_factory=dict)
    complete: bool = True


def decision(action: Action) -> Decision:
    """The record of an action: what, and why. Holds no secret."""
    if isinstance(action, Place):
        nodes = [place.node_id for place in action.shards]
        figures = {"profile": action.profile, "nodes": nodes, **action.figures}
        if action.replaces is not None:
            figures["replaces"] = action.replaces
        if action.heals is not None:
            figures["heals"] = action.heals
        return Decision("place", action.reason, action.model, action.replica, nodes[0], figures)
    if isinstance(action, Drain):
        figures = {"grace": action.grace}
        if action.restart is not None:
            figures["restart"] = action.restart
        return Decision("drain", action.reason, action.model, action.replica, None, figures)
    return Decision("stop", action.reason, action.model, action.replica, None, dict(action.figures))
