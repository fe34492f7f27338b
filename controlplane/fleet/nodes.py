"""Node life: in session, unreachable, lost, back again; and settling (REC-10, REC-24)."""

from collections.abc import Container, Iterable, Mapping

from controlplane.fleet.context import Fleet
from controlplane.fleet.nodelife import WITNESS, witnessed
from controlplane.fleet.replicas import fail, remove
from controlplane.planning.view import FleetView, MassLoss, NodeView, ReplicaView
from controlplane.planning.words import listing, plural, seconds

AFTER_DOUBT = 10.0
"""Seconds after a doubt about the lease in which nobody is declared lost: whatever kept the
store away may have kept nodes and routers away, and they are only coming back."""


def enrol(fleet: Fleet, node_ids: frozenset[str], now: float) -> None:
    """These nodes, and no others, may open a session. A node that is no longer
    enrolled is lost at once: nothing may be sent to it any more (REC-13)."""
    view = fleet.view
    join(fleet, node_ids, now)
    gone: dict[str, None] = {}
    for node_id in sorted(view.nodes.keys() - node_ids):
        node = view.nodes[node_id]
        if node.session is not None:
            fleet.close(node.session, "unknown_node", f"node {node_id} is no longer enrolled")
        node.enrolled = False
        gone[node_id] = None
    on = _replicas_on(view, gone) if gone else {}
    for node_id in gone:
        for replica in on.get(node_id, ()):
            _give_up(fleet, replica, {node_id}, f"node {node_id} is no longer enrolled", now)
        del view.nodes[node_id]
        fleet.touch()


def join(fleet: Fleet, node_ids: frozenset[str], now: float) -> None:
    """These nodes may open a session, whether they were known or not."""
    nodes = fleet.view.nodes
    for node_id in sorted(node_id for node_id in node_ids if node_id not in nodes):
        nodes[node_id] = NodeView(
            id=node_id, since=now, cordon=fleet.cordons.get(node_id), own_labels=fleet.labels.get(node_id, {})
        )
        fleet.touch()


def disconnected(fleet: Fleet, node: NodeView, reason: str) -> None:
    """The node's session ended. Its replicas go on serving."""
    node.session = None
    node.registered = False
    fleet.note("node-disconnected", reason, node=node.id)
    fleet.touch()


def awake(fleet: Fleet, now: float) -> None:
    """A pass begins. If the last one is too long ago, this process stood still, and who was
    silent meanwhile may only not have been heard: everybody's silence begins anew."""
    settings = fleet.settings
    stood = now - fleet.last_pass
    if stood > settings.interval + settings.silence / 2:
        fleet.life.resumed = now
        fleet.note("paused", f"this control plane stood still for {seconds(stood)}: silence is counted from now on")
    fleet.last_pass = now


def tick(fleet: Fleet, now: float) -> None:
    """What silence does to nodes (REC-10, REC-11); who is lost decides ``NodeLife``. While the
    lease is in doubt nobody is: it may be we who are cut off (HA-01)."""
    view, settings, life = fleet.view, fleet.settings, fleet.life
    silent: dict[str, float] = {}
    total = 0
    for node in view.nodes.values():
        if node.avoid_ports:
            _forget_ports(fleet, node, now)
        if node.status == "lost":
            continue
        total += 1
        if node.registered:
            continue  # its session stands; how long that may be silent is the session's business
        since = node.since if node.last_heard is None else node.last_heard
        quiet = now - max(since, life.resumed)
        if quiet < settings.unreachable_after and not life.known(node.id, since):
            continue
        silent[node.id] = since
        if node.status == "connected":
            node.status = "unreachable"
            node.since = now
            fleet.note(
                "node-unreachable",
                f"not heard from for {seconds(quiet)}; its replicas keep serving",
                node=node.id,
                silent=round(quiet, 1),
            )
            fleet.touch()
    lease = view.lease
    hold = lease.doubtful or (lease.doubted and now - lease.since < AFTER_DOUBT)
    lost = life.tick(silent, len(view.nodes), total, now, hold=hold)
    view.late_losses = life.late
    _mass_loss(fleet, total)
    if lost:
        _declare(fleet, {node_id: now - silent[node_id] for node_id in lost}, now)
    if fleet.spared and not hold and not life.frozen:
        _vouched(fleet, now)


def _forget_ports(fleet: Fleet, node: NodeView, now: float) -> None:
    for port in [port for port, until in node.avoid_ports.items() if until <= now]:
        del node.avoid_ports[port]
        fleet.touch()


def _mass_loss(fleet: Fleet, total: int) -> None:
    """Tell when nothing is declared lost any more, and when that is over."""
    view, life = fleet.view, fleet.life
    before = view.mass_loss
    if life.frozen_since is None:
        view.mass_loss = None
        if before is not None:
            fleet.note("mass-loss-over", "every node that went silent is back: losses are declared again")
        return
    if before is None or before.nodes != life.frozen.keys():
        view.mass_loss = MassLoss(life.frozen_since, frozenset(life.frozen))
    if before is None:
        count = len(life.frozen)
        fleet.note(
            "mass-loss",
            f"{count} of {plural(total, 'node')} went silent together ({listing(sorted(life.frozen))}): the fault may "
            "be ours, so nothing is declared lost until they are back or somebody says llmgw ctl nodes accept-loss",
            silent=count,
            nodes=total,
        )


def accept_loss(fleet: Fleet, nodes: Container[str], actor: str) -> None:
    """A person says that these of the nodes that went silent together are lost (REC-11)."""
    life = fleet.life
    accepted = life.accept(nodes)
    fleet.view.mass_loss = None if life.frozen_since is None else MassLoss(life.frozen_since, frozenset(life.frozen))
    if accepted:
        words = f"{actor} says that {plural(len(accepted), 'node')} are lost: their replicas are rebuilt elsewhere"
        fleet.note("loss-accepted", words, nodes=len(accepted))
        fleet.dirty = True


def _declare(fleet: Fleet, lost: Mapping[str, float], now: float) -> None:
    """These nodes, each silent for so long, are lost."""
    view = fleet.view
    on = _replicas_on(view, lost)
    spared = witnessed(fleet.routers, {replica.id for found in on.values() for replica in found}, now)
    view.nodes_lost += len(lost)
    for node_id, quiet in lost.items():
        node = view.nodes[node_id]
        node.status = "lost"
        node.since = now
        fleet.note("node-lost", f"not heard from for {seconds(quiet)}", node=node_id, silent=round(quiet, 1))
        for replica in on.get(node_id, ()):
            if replica.id in spared and replica.state == "ready" and not replica.unwanted and not replica.surplus:
                _spare(fleet, replica, node_id)
            else:
                _give_up(fleet, replica, {node_id}, f"node {node_id} is lost: not heard from for {seconds(quiet)}", now)
        fleet.touch()


def _replicas_on(view: FleetView, node_ids: Iterable[str]) -> dict[str, list[ReplicaView]]:
    """The replicas with a live shard on any of these nodes, by node."""
    found: dict[str, list[ReplicaView]] = {}
    for node_id in node_ids:
        for replica in view.replicas.on_node(node_id):
            if any(shard.live and shard.node_id == node_id for shard in replica.shards.values()):
                found.setdefault(node_id, []).append(replica)
    return found


def _spare(fleet: Fleet, replica: ReplicaView, node_id: str) -> None:
    """A router had an answer of it of late: it is not rebuilt (REC-10)."""
    replica.spared = True
    fleet.spared.add(replica.id)
    replica.reason = f"node {node_id} is lost, but a router had an answer within {seconds(WITNESS)}: it serves on"
    fleet.note("spared", replica.reason, model=replica.model, replica=replica.id, node=node_id)


def _vouched(fleet: Fleet, now: float) -> None:
    """Replicas on lost nodes are kept for as long as routers have answers of them."""
    view = fleet.view
    vouched = witnessed(fleet.routers, fleet.spared, now)
    for replica_id in sorted(fleet.spared):
        replica = view.replicas.get(replica_id)
        on = {shard.node_id for shard in replica.shards.values() if shard.live} if replica is not None else set()
        lost = {node_id for node_id in on if node_id in view.nodes and view.nodes[node_id].status == "lost"}
        if replica is not None and lost and replica_id in vouched:
            continue
        fleet.spared.discard(replica_id)
        if replica is not None:
            replica.spared = False
            if replica.state == "ready":
                replica.reason = "every shard is ready"
            if lost:
                words = f"node {min(lost)} is lost, and no router had an answer for {seconds(WITNESS)}"
                _give_up(fleet, replica, lost, words, now)


def _give_up(fleet: Fleet, replica: ReplicaView, on: Container[str], reason: str, now: float) -> None:
    """Every shard of a replica on these nodes is given up, and the replica with it. Not the
    model's fault: it is rebuilt without waiting."""
    hit = [shard for shard in replica.shards.values() if shard.live and shard.node_id in on]
    for shard in hit:
        shard.phase = "lost"
        shard.since = now
    if not hit:
        return
    if replica.unwanted or replica.state == "draining":
        if not any(shard.live for shard in replica.shards.values()):
            remove(fleet, replica, reason)
    elif replica.state != "failed":
        fail(fleet, replica, "lost", reason, now, node_id=hit[0].node_id, counted=False)


def registered_count(fleet: Fleet) -> int:
    """How many nodes are registered now."""
    return sum(node.registered for node in fleet.view.nodes.values())


def settle(fleet: Fleet, now: float) -> None:
    """End settling, once, when every enrolled node has registered, when their number
    has been steady, or at the limit (REC-24). While the lease is in doubt neither counts:
    nodes may be with a leader that came after us, and a table that says that we have settled
    without them would take their endpoints from the routers that still hear us (HA-01)."""
    settling = fleet.view.settling
    if not settling.active:
        return
    count, total = registered_count(fleet), len(fleet.view.nodes)
    settings = fleet.settings
    if count == total:
        reason = f"all {plural(total, 'enrolled node')} registered" if total else "no node is enrolled"
    elif fleet.view.lease.doubtful:
        settling.started = settling.steady_since = now
        settling.reason = f"waiting for nodes, and for the lease to be beyond doubt: {count} of {total} registered"
        return
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
