"""Node life: in session, unreachable, lost, back again; and settling (REC-10, REC-24)."""

from controlplane.fleet.context import Fleet
from controlplane.fleet.replicas import fail, remove
from controlplane.planning.view import NodeView
from controlplane.planning.words import plural, seconds


def enrol(fleet: Fleet, node_ids: frozenset[str], now: float) -> None:
    """These nodes, and no others, may open a session. A node that is no longer
    enrolled is lost at once: nothing may be sent to it any more (REC-13)."""
    view = fleet.view
    for node_id in sorted(node_ids - view.nodes.keys()):
        view.nodes[node_id] = NodeView(
            id=node_id, since=now, cordon=fleet.cordons.get(node_id), own_labels=fleet.labels.get(node_id, {})
        )
        fleet.touch()
    for node_id in sorted(view.nodes.keys() - node_ids):
        node = view.nodes[node_id]
        if node.session is not None:
            fleet.close(node.session, "unknown_node", f"node {node_id} is no longer enrolled")
        node.enrolled = False
        _lose(fleet, node, f"node {node_id} is no longer enrolled", now)
        del view.nodes[node_id]
    fleet.enrolled = node_ids


def disconnected(fleet: Fleet, node: NodeView, reason: str) -> None:
    """The node's session ended. Its replicas go on serving."""
    node.session = None
    node.registered = False
    fleet.note("node-disconnected", reason, node=node.id)
    fleet.touch()


def tick(fleet: Fleet, now: float) -> None:
    """What silence does to nodes.

    Limits on how many may be declared lost, and the freeze on mass loss (REC-10,
    REC-11), belong in front of the call of ``_lose``.
    """
    settings = fleet.settings
    for node_id in sorted(fleet.view.nodes):
        node = fleet.view.nodes[node_id]
        for port in [port for port, until in node.avoid_ports.items() if until <= now]:
            del node.avoid_ports[port]
            fleet.touch()
        if node.registered:
            continue  # its session stands; how long that may be silent is the session's business
        silent = now - (node.since if node.last_heard is None else node.last_heard)
        if node.status == "connected" and silent >= settings.unreachable_after:
            node.status = "unreachable"
            node.since = now
            fleet.note(
                "node-unreachable",
                f"not heard from for {seconds(silent)}; its replicas keep serving",
                node=node.id,
                silent=round(silent, 1),
            )
            fleet.touch()
        if node.status == "unreachable" and silent >= settings.lost_after:
            node.status = "lost"
            node.since = now
            fleet.note("node-lost", f"not heard from for {seconds(silent)}", node=node.id, silent=round(silent, 1))
            _lose(fleet, node, f"node {node.id} is lost: not heard from for {seconds(silent)}", now)
            fleet.touch()


def _lose(fleet: Fleet, node: NodeView, reason: str, now: float) -> None:
    """Every shard on the node is given up, and its replicas with it. Not the model's
    fault: it is rebuilt without waiting."""
    for replica in list(fleet.view.replicas.values()):
        hit = [shard for shard in replica.shards.values() if shard.node_id == node.id and shard.live]
        if not hit:
            continue
        for shard in hit:
            shard.phase = "lost"
            shard.since = now
        if replica.unwanted or replica.state == "draining":
            if not any(shard.live for shard in replica.shards.values()):
                remove(fleet, replica, reason)
        elif replica.state != "failed":
            fail(fleet, replica, "lost", reason, now, node_id=node.id, counted=False)


def registered_count(fleet: Fleet) -> int:
    """How many nodes are registered now."""
    return sum(node.registered for node in fleet.view.nodes.values())


def settle(fleet: Fleet, now: float) -> None:
    """End settling, once, when every enrolled node has registered, when their number
    has been steady, or at the limit (REC-24)."""
    settling = fleet.view.settling
    if not settling.active:
        return
    count, total = registered_count(fleet), len(fleet.view.nodes)
    settings = fleet.settings
    if count == total:
        reason = f"all {plural(total, 'enrolled node')} registered" if total else "no node is enrolled"
    elif now - settling.steady_since >= settings.settling_steady:
        reason = f"{count} of {plural(total, 'node')} registered, steady for {seconds(settings.settling_steady)}"
    elif now - settling.started >= settings.settling_limit:
        reason = f"{count} of {plural(total, 'node')} registered within {seconds(settings.settling_limit)}"
    else:
        settling.reason = f"waiting for nodes after start: {count} of {total} registered"
        return
    settling.active = False
    settling.reason = reason
    fleet.note("settled", reason, registered=count, enrolled=total)
    fleet.touch()
    fleet.routes_dirty = True


def count_changed(fleet: Fleet, now: float) -> None:
    """The number of registered nodes changed: settling waits anew."""
    fleet.view.settling.steady_since = now
