"""What the fleet's machines share: the view they write, and the effects they produce."""

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from controlplane.events import CloseSession, Cordon, Decision, Effect, Note, Send
from controlplane.fleet.keys import EngineKeys
from controlplane.fleet.nodelife import NodeLife
from controlplane.planning.drains import RouterSeen
from controlplane.planning.plan import Action
from controlplane.planning.policy import LoopSettings
from controlplane.planning.view import FleetView, ModelHealth, NodeView
from llmgw.wire.messages import Down, Refuse

RECENT = 1000
"""Decisions and events kept for the API."""


@dataclass(frozen=True, slots=True)
class Recent:
    """A decision or event of late; ``at`` is the loop's monotonic time."""

    at: float
    decision: Decision


@dataclass(slots=True)
class Session:
    """One agent connection. Only a node's current one is kept: a superseded or refused
    one is forgotten, and what comes from it does nothing."""

    id: str
    node_id: str
    heard: float
    protocol: int


@dataclass(slots=True)
class Fleet:
    """State of the writer. Everything here is changed only by the loop."""

    view: FleetView
    settings: LoopSettings
    rng: random.Random
    epoch: int
    leader: str
    life: NodeLife
    boot: str
    version: str
    keys: EngineKeys
    now: float
    cordons: dict[str, Cordon] = field(default_factory=dict)
    labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """People's intent by node id, also of nodes that are not enrolled (PLC-03)."""
    restarting: dict[str, int] = field(default_factory=dict)
    """Replicas with a restart that is not over, in the order of the requests."""
    restarts: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)
    spared: set[str] = field(default_factory=set)
    """Replicas that are kept although a node of theirs is lost."""
    routers: dict[tuple[str, str], RouterSeen] = field(default_factory=dict)
    batches: dict[int, tuple[Action, ...]] = field(default_factory=dict)
    waiting: list[Action] = field(default_factory=list)
    """What is committed and waits until the lease is beyond doubt, in order (HA-01)."""
    last_pass: float = 0.0
    epoch_wanted: int = 0
    epoch_asked: float = float("-inf")
    """The epoch that the store was last asked to go above, and when."""
    recent: deque[Recent] = field(default_factory=lambda: deque(maxlen=RECENT))
    out: list[Effect] = field(default_factory=list)
    dirty: bool = True
    routes_dirty: bool = True
    starts: dict[str, str] = field(default_factory=dict)
    """The replica that each start was for, by the command's id."""
    unheard_looked: float = float("-inf")
    """When routers' reports were looked through for endpoints that we do not know."""
    commands: int = 0
    last_batch: int = 0
    dropping: frozenset[str] = frozenset()
    """Generations of engine keys that the store was asked to forget."""
    look_at_keys: float = 0.0
    """When to look again whether a generation is unused."""
    unknown_frames: int = 0

    def touch(self, *, nodes: bool = True) -> None:
        """The view changed in a way that planning must consider. ``nodes``: a node may have
        changed too, rather than the state of a replica alone."""
        self.view.version += 1
        self.view.nodes_version += nodes
        self.dirty = True

    def take(self) -> list[Effect]:
        """The effects so far; they are no longer held here."""
        effects, self.out = self.out, []
        return effects

    def record(self, decision: Decision) -> None:
        """Keep a decision for the API."""
        self.recent.append(Recent(self.now, decision))

    def note(
        self,
        kind: str,
        reason: str,
        *,
        model: str | None = None,
        replica: str | None = None,
        node: str | None = None,
        **figures: Any,
    ) -> None:
        """Tell that something happened."""
        told = Decision(kind, reason, model, replica, node, {k: v for k, v in figures.items() if v is not None})
        self.record(told)
        self.out.append(Note(told))

    def send(self, node: NodeView, message: Down, *, before: float = inf) -> bool:
        """Send to a node, not at ``before`` or later; false if it has no session."""
        if node.session is None:
            return False
        self.out.append(Send(node.session, message, before))
        return True

    def close(self, session_id: str, code: str, message: str, retry: float | None = None) -> None:
        """Refuse a session and forget it; its agent may come back after ``retry`` seconds.
        What its node does without it is the caller's business."""
        self.sessions.pop(session_id, None)
        self.out.append(CloseSession(session_id, Refuse(code=code, message=message, retry_seconds=retry)))

    def command_id(self) -> str:
        """Id of a new command: unique, and ordered within this process."""
        self.commands += 1
        return f"{self.boot}-{self.commands}"

    def processed(self, last_command: str | None, command_id: str) -> bool:
        """Whether an agent whose last applied command is ``last_command`` has applied
        ``command_id``, given that it takes commands in order (AGT-04)."""
        if last_command is None:
            return False
        boot, _, number = last_command.rpartition("-")
        return boot == self.boot and number.isdigit() and int(number) >= int(command_id.rpartition("-")[2])

    def health(self, model: str) -> ModelHealth:
        """The health of a model, made on first use."""
        return self.view.health.setdefault(model, ModelHealth())
