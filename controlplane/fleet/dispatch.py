"""From accepted actions to state and commands: apply at once, send once committed.

A command that got no answer is sent again: starts by their id, stops because they are
idempotent. A stop is repeated after each reconnect until the exit is confirmed.
"""

from dataclasses import replace
from math import inf

import msgspec

from controlplane.fleet.context import Fleet
from controlplane.fleet.health import failed_start
from controlplane.fleet.replicas import remove
from controlplane.planning.plan import Action, Drain, Place
from controlplane.planning.view import ReplicaView, ShardView
from llmgw.wire.messages import Start, Stop

AT_ONCE = -inf
"""When a command was sent that has yet to be: it is sent again as soon as that is allowed."""

FEW = 100
"""Starts of replicas that are gone that are not worth being forgotten."""


def apply(fleet: Fleet, action: Action, now: float) -> None:
    """Bring an accepted action into the view. Nothing is sent yet; claims of a
    placement hold from here on, and a draining replica leaves the routes."""
    if isinstance(action, Place):
        _place(fleet, action, now)
    else:
        replica = fleet.view.replicas[action.replica]
        replica.since = now
        replica.reason = action.reason
        if action.restart == "in place" and replica.restarting is not None:
            replica.restarting = replace(replica.restarting, state="in place")
            fleet.view.in_place[replica.model] = replica.id
        if isinstance(action, Drain):
            replica.state = "draining"
            replica.deadline = now + action.grace
        else:
            replica.state = "stopping" if replica.state != "failed" else "failed"
            replica.unwanted = True
            replica.deadline = None
            if action.failure is not None:
                nodes = sorted({shard.node_id for shard in replica.shards.values()})
                node_id = nodes[0] if nodes else None
                failed_start(fleet, replica.model, action.failure, action.reason, exit_=None, node_id=node_id)
    fleet.touch()
    fleet.routes_dirty = True


def _place(fleet: Fleet, action: Place, now: float) -> None:
    old = fleet.view.replicas.get(action.replaces or "")
    if old is not None and old.restarting is not None:
        old.restarting = replace(old.restarting, state="replacing", replacement=action.replica)
    healed = fleet.view.replicas.get(action.heals or "")
    if healed is not None:
        healed.healed = True
    fleet.view.in_place.pop(action.model, None)
    generation = fleet.keys.current
    shards = {
        place.spec.rank: ShardView(
            spec=msgspec.structs.replace(place.spec, keyed=bool(generation), key_generation=generation),
            node_id=place.node_id,
            since=now,
        )
        for place in action.shards
    }
    fleet.view.replicas[action.replica] = ReplicaView(
        id=action.replica,
        model=action.model,
        profile=action.profile,
        fingerprint=action.fingerprint,
        state="placing",
        since=now,
        created=now,
        reason=action.reason,
        shards=shards,
        rejected=action.rejected,
        heals=action.heals,
    )


def dispatch(fleet: Fleet, action: Action, now: float) -> None:
    """An action's decision is durable: carry it out, unless the world moved on."""
    replica = fleet.view.replicas.get(action.replica)
    if replica is None or isinstance(action, Drain):
        return
    if isinstance(action, Place):
        if replica.state != "placing":
            return
        replica.state = "starting"
        replica.since = now
        timeout = max(shard.spec.startup_timeout for shard in replica.shards.values())
        replica.deadline = now + timeout + fleet.settings.startup_margin
        for _, shard in sorted(replica.shards.items()):
            send_start(fleet, replica, shard, now)
    elif replica.unwanted:
        replica.stop_committed = True
        for _, shard in sorted(replica.shards.items()):
            _stop_or_forget(fleet, replica, shard, now)
        if not any(shard.live for shard in replica.shards.values()):
            remove(fleet, replica, f"stopped before it was started: {replica.reason}")
    fleet.touch(nodes=False)


def _stop_or_forget(fleet: Fleet, replica: ReplicaView, shard: ShardView, now: float) -> None:
    if shard.phase == "commanded" and shard.command_id is None:
        shard.phase = "exited"  # its start was never sent
        shard.since = now
    elif shard.live:
        send_stop(fleet, replica, shard, now)


def _before(fleet: Fleet, replica: ReplicaView) -> float:
    """Until when a command for a replica may be sent: while the lease is beyond doubt, or
    without end if it heals in place (HA-01)."""
    return inf if replica.heals else fleet.view.lease.until


def send_start(fleet: Fleet, replica: ReplicaView, shard: ShardView, now: float) -> None:
    """Send the start of a shard, or again with the same id. The engine key travels
    here only. Without a session it waits for the node's registration, with a lease in doubt
    for the lease."""
    node = fleet.view.nodes.get(shard.node_id)
    if node is None or not node.registered:
        return
    before = _before(fleet, replica)
    if now >= before:
        shard.sent_at = AT_ONCE
        return
    shard.command_id = shard.command_id or fleet.command_id()
    fleet.starts[shard.command_id] = shard.spec.replica_id
    shard.sent_at = now
    spec = msgspec.structs.replace(shard.spec, engine_key=fleet.keys.key(shard.spec))
    fleet.send(node, Start(command_id=shard.command_id, epoch=fleet.epoch, spec=spec), before=before)


def send_stop(fleet: Fleet, replica: ReplicaView, shard: ShardView, now: float) -> None:
    """Send the stop of a shard whose replica's stop is committed, once the lease is beyond
    doubt."""
    node = fleet.view.nodes.get(shard.node_id)
    if node is None or not node.registered:
        return
    before = fleet.view.lease.until
    if now >= before:
        shard.sent_at = AT_ONCE
        return
    shard.sent_at = now
    if shard.phase != "stopping":
        shard.phase = "stopping"
        shard.since = now
    key = shard.spec.key
    fleet.send(
        node,
        Stop(
            command_id=fleet.command_id(),
            epoch=fleet.epoch,
            replica_id=key.replica_id,
            rank=key.rank,
            incarnation=key.incarnation,
            reason=replica.reason,
            grace_seconds=fleet.settings.stop_grace,
        ),
        before=before,
    )


def tick(fleet: Fleet, now: float) -> None:
    """Send again what got no answer in a session that stands."""
    if len(fleet.starts) > 2 * len(fleet.view.replicas) + FEW:
        shards = (shard for replica in fleet.view.replicas.values() for shard in replica.shards.values())
        fleet.starts = {shard.command_id: shard.spec.replica_id for shard in shards if shard.command_id is not None}
    patience = fleet.settings.resend_after
    replicas = fleet.view.replicas.values()
    for replica in [replica for replica in replicas if replica.stop_committed or replica.state == "starting"]:
        for _, shard in sorted(replica.shards.items()):
            if not shard.live or shard.sent_at is None or now - shard.sent_at < patience:
                continue
            if replica.stop_committed:
                if now - shard.sent_at >= patience + fleet.settings.stop_grace:
                    send_stop(fleet, replica, shard, now)
            elif replica.state == "starting" and shard.phase == "commanded" and not shard.accepted:
                send_start(fleet, replica, shard, now)
