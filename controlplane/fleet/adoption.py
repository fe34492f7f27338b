"""Registration: the agent's whole truth against what we thought (REC-20 to REC-23)."""

from controlplane.fleet.context import Fleet
from controlplane.fleet.dispatch import send_start, send_stop
from controlplane.fleet.nodes import count_changed
from controlplane.fleet.replicas import exited, fail, find, late_exit, remove, status_changed
from controlplane.planning.view import NodeView, ReplicaView, ShardView
from llmgw.wire.messages import Forget, Register, ShardKey


def register(fleet: Fleet, node: NodeView, message: Register, now: float) -> None:
    """A node told everything: its inventory, its shards, the exits nobody acknowledged.

    What it runs is adopted, what it does not run is let go, what is still on its way
    to it is sent again. A person's cordon stays (PLC-03).
    """
    first = not node.registered
    was = node.status
    node.inventory = message.inventory
    node.registered = True
    if was != "connected":
        node.status = "connected"
        node.since = now
    if first:
        count_changed(fleet, now)
    fleet.note(
        "node-registered",
        f"{len(message.shards)} shards, {len(message.exits)} exits to acknowledge" + ("" if first else ", again"),
        node=node.id,
        address=message.inventory.address,
        shards=len(message.shards),
        before=was,
    )
    fleet.touch()
    for exit_ in message.exits:
        if find(fleet.view, node.id, exit_.key) is None:
            late_exit(fleet, node, exit_)
        else:
            exited(fleet, node, exit_, now)
    for status in message.shards:
        status_changed(fleet, node, status, now)
    reported = {(status.spec.replica_id, status.spec.rank) for status in message.shards}
    for replica in fleet.view.replicas.on_node(node.id):
        for _, shard in sorted(replica.shards.items()):
            if shard.node_id != node.id or not shard.live:
                continue
            if (shard.spec.replica_id, shard.spec.rank) not in reported or not _is(fleet, node, replica, shard):
                _unreported(fleet, replica, shard, message.last_command, now)
            elif replica.stop_committed:
                send_stop(fleet, replica, shard, now)
    acknowledge(fleet, node, [exit_.key for exit_ in message.exits])


def _is(fleet: Fleet, node: NodeView, replica: ReplicaView, shard: ShardView) -> bool:
    """Whether a reported key means this replica (and not a copy of the same id)."""
    found = find(fleet.view, node.id, shard.spec.key)
    return found is not None and found[0] is replica


def acknowledge(fleet: Fleet, node: NodeView, keys: list[ShardKey]) -> None:
    """Tell the agent that these exits were recorded."""
    if keys:
        fleet.send(node, Forget(shards=tuple(keys)))


def _unreported(fleet: Fleet, replica: ReplicaView, shard: ShardView, last_command: str | None, now: float) -> None:
    """A shard of ours that the agent does not run (REC-23): let go at once, unless its
    start has not reached the agent yet."""
    pending = shard.phase == "commanded" and not shard.accepted
    if pending and replica.state == "placing":
        return  # its decision is not durable yet: nothing was sent
    if shard.command_id is None:
        on_its_way = pending
    else:
        on_its_way = not shard.accepted and not fleet.processed(last_command, shard.command_id)
    if on_its_way and replica.stop_committed:
        send_stop(fleet, replica, shard, now)  # the start may still come after this registration
        return
    if on_its_way and not replica.unwanted and not replica.surplus:
        send_start(fleet, replica, shard, now)
        return
    if on_its_way:
        return  # the plan stops it
    was_ready = shard.phase == "ready"
    shard.phase = "lost"
    shard.since = now
    fleet.touch()
    reason = f"node {shard.node_id} registered without it: it is not running there"
    if replica.unwanted or replica.state == "draining":
        if not any(other.live for other in replica.shards.values()):
            remove(fleet, replica, reason)
    elif replica.state != "failed":
        fail(fleet, replica, "not_found", reason, now, node_id=shard.node_id, counted=not was_ready)
