"""Replica life on the control plane's side: what agents report becomes state (REC-01
to REC-06). Stopping is decided in a plan only; here it is confirmed."""

import msgspec

from controlplane.fleet.context import Fleet
from controlplane.fleet.generations import outdated
from controlplane.fleet.health import failed_start, proved
from controlplane.planning.view import FleetView, NodeView, ReplicaState, ReplicaView, ShardView
from llmgw.wire.messages import ShardExit, ShardKey, ShardSpec, ShardStatus


def find(view: FleetView, node_id: str, key: ShardKey) -> tuple[ReplicaView, ShardView] | None:
    """The replica and shard that a key means on a node, whatever its incarnation. A
    second copy of an id is kept under ``id@node``."""
    for replica_id in (key.replica_id, copy_id(key.replica_id, node_id)):
        replica = view.replicas.get(replica_id)
        shard = replica.shards.get(key.rank) if replica else None
        if replica is not None and shard is not None and shard.node_id == node_id:
            return replica, shard
    return None


def copy_id(replica_id: str, node_id: str) -> str:
    """Under which id a second copy of a replica is kept."""
    return f"{replica_id}@{node_id}"


def staleness(view: FleetView, replica: ReplicaView) -> bool | None:
    """Whether the replica's fingerprint, as its agent reports it, differs from the
    catalog's, or its engine has a key of an older secret; ``None`` if the key is the
    current one and one of the fingerprints is unknown (CAT-08, SEC-08)."""
    if outdated(view, replica):
        return True
    model = view.catalog.models.get(replica.model)
    for profile in model.profiles if model else ():
        if profile.name == replica.profile:
            return replica.fingerprint != profile.fingerprint if replica.fingerprint else None
    return None


def status_changed(fleet: Fleet, node: NodeView, status: ShardStatus, now: float) -> None:
    """A shard is as its agent says. A shard nobody knows is adopted."""
    found = find(fleet.view, node.id, status.spec.key)
    if found is None or (found[0].state == "failed" and not found[1].live):
        adopt(fleet, node, status, now)
        return
    replica, shard = found
    altered = _altered(node, shard.spec, status.spec)
    if altered is not None:
        status = msgspec.structs.replace(status, spec=shard.spec)
        if replica.surplus is None:
            _mistrust(fleet, node, replica, altered)
    before = (shard.phase, shard.pid, shard.detail)
    _update(shard, status, now)
    replica.fingerprint = status.spec.fingerprint
    replica.stale = staleness(fleet.view, replica)
    if (shard.phase, shard.pid, shard.detail) != before:
        fleet.touch(nodes=False)
    derive(fleet, replica, now)


def _update(shard: ShardView, status: ShardStatus, now: float) -> None:
    if shard.phase != status.state:
        shard.since = now - (status.state_age or 0.0)
    shard.phase = status.state
    shard.spec = status.spec.without_secret()
    shard.pid = status.pid
    shard.adopted = status.adopted
    shard.detail = status.detail
    shard.accepted = True


def _elsewhere(node: NodeView, spec: ShardSpec) -> str | None:
    """Why a shard that was not known before is not adopted for good, if so: prompts and
    the engine's key go to the node's own address only, whatever its agent says. A known
    shard stays where it answers when its node's address changes."""
    own = node.inventory.address if node.inventory else None
    if not 0 < spec.port < 65536:
        return f"it is said to listen on port {spec.port}"
    if own is None or spec.host == own:
        return None
    return f"it is said to listen on {spec.host}, but node {node.id} is at {own}"


def _unasked(fleet: Fleet, spec: ShardSpec) -> str | None:
    """Why an engine could not be asked anything, if so: nobody knows its key any more."""
    if fleet.keys.knows(spec):
        return None
    told = f"generation {spec.key_generation}" if spec.key_generation else "a generation that its agent does not tell"
    return f"its engine's key is of {told}, which the store does not hold: nobody can ask it"


def _altered(node: NodeView, known: ShardSpec, told: ShardSpec) -> str | None:
    """What an agent tells of a known shard that cannot change in its life, if so."""
    for name in ("model", "host", "port", "served_name", "keyed", "key_generation"):
        was, now_is = getattr(known, name), getattr(told, name)
        if was != now_is:
            return f"node {node.id} says that its {name} is {now_is}, it was {was}"
    return None


def _mistrust(fleet: Fleet, node: NodeView, replica: ReplicaView, why: str) -> None:
    """Send nothing to this replica any more: the plan ends it. Its model waits, so that
    a node that lies is not given one replica after the other."""
    replica.surplus = why
    figures = failed_start(fleet, replica.model, "agent_error", why, exit_=None, node_id=node.id)
    fleet.note("mistrusted", why, model=replica.model, replica=replica.id, node=node.id, **figures)
    fleet.touch()
    fleet.routes_dirty = True


def adopt(fleet: Fleet, node: NodeView, status: ShardStatus, now: float) -> None:
    """Take over a running shard that this control plane did not know (REC-20 to REC-22)."""
    spec = status.spec.without_secret()
    shard = ShardView(spec=spec, node_id=node.id, since=now)
    _update(shard, status, now)
    replica_id, surplus = spec.replica_id, _elsewhere(node, spec) or _unasked(fleet, spec)
    known = fleet.view.replicas.get(replica_id)
    if known is not None and known.state != "failed":
        other = known.shards.get(spec.rank)
        if other is None and surplus is None and spec.rank < world(known):
            fleet.view.replicas.join(known, shard)  # another part of a replica that is being put together
            fleet.touch()
            derive(fleet, known, now)
            return
        if other is None or surplus is not None:
            replica_id = copy_id(replica_id, node.id)
            surplus = surplus or f"rank {spec.rank} of replica {spec.replica_id}, which has {world(known)}"
        elif other.live and other.phase != "commanded":
            replica_id = copy_id(replica_id, node.id)
            surplus = f"a second copy of replica {spec.replica_id}, which runs on node {other.node_id}"
        elif other.live:
            _set_aside(fleet, known, other, node.id, now)
    created = now - (status.age or 0.0)
    reason = f"adopted from node {node.id}"
    replica = ReplicaView(
        id=replica_id,
        model=spec.model,
        profile=spec.profile,
        fingerprint=spec.fingerprint,
        state="starting",
        since=now,
        created=created,
        reason=reason,
        shards={spec.rank: shard},
        surplus=surplus,
    )
    replica.stale = staleness(fleet.view, replica)
    replica.deadline = now - (status.state_age or 0.0) + spec.startup_timeout + fleet.settings.startup_margin
    fleet.view.replicas[replica_id] = replica
    fleet.note(
        "adopt",
        surplus or f"node {node.id} runs it ({status.state}, pid {status.pid})",
        model=spec.model,
        replica=replica_id,
        node=node.id,
        pid=status.pid,
        state=status.state,
        fingerprint=spec.fingerprint,
    )
    fleet.touch()
    derive(fleet, replica, now)


def _set_aside(fleet: Fleet, known: ReplicaView, other: ShardView, node_id: str, now: float) -> None:
    """A start of ours that came up nowhere loses to a copy that an agent reports
    (REC-22). It may yet come up, so it is kept, with its claims, until it is stopped."""
    aside = copy_id(known.id, other.node_id)
    why = f"replica {known.id} runs on node {node_id}; its start on {other.node_id} is taken back"
    fleet.view.replicas[aside] = ReplicaView(
        id=aside,
        model=known.model,
        profile=known.profile,
        fingerprint=known.fingerprint,
        state=known.state,
        since=now,
        created=known.created,
        reason=why,
        shards={other.spec.rank: other},
        surplus=why,
    )


def derive(fleet: Fleet, replica: ReplicaView, now: float) -> None:
    """A replica's state follows from its shards. A drain or stop under way goes on."""
    if replica.state in ("draining", "failed", "gone") or replica.unwanted:
        return
    phases = {shard.phase for shard in replica.shards.values()}
    if "stopping" in phases:
        _enter(fleet, replica, "stopping", "its agent is ending it", now)
        replica.deadline = None
    elif phases == {"ready"} and len(replica.shards) >= world(replica):
        _enter(fleet, replica, "ready", "every shard is ready", now)
        replica.deadline = None
    elif replica.state == "ready":
        _enter(fleet, replica, "starting", "a shard is no longer ready", now)
        replica.deadline = now + _startup_timeout(replica) + fleet.settings.startup_margin


def _enter(fleet: Fleet, replica: ReplicaView, state: ReplicaState, reason: str, now: float) -> None:
    if replica.state == state:
        return
    took = now - replica.created
    replica.state = state
    replica.since = now
    replica.reason = reason
    fleet.touch(nodes=False)
    fleet.routes_dirty = True
    leader = replica.shards.get(0)
    fleet.note(
        state,
        reason,
        model=replica.model,
        replica=replica.id,
        node=leader.node_id if leader else None,
        seconds=round(took, 1),
        pid=leader.pid if leader else None,
    )


def world(replica: ReplicaView) -> int:
    """How many shards the replica has when it is whole."""
    return max((shard.spec.world for shard in replica.shards.values()), default=1)


def _startup_timeout(replica: ReplicaView) -> float:
    return max((shard.spec.startup_timeout for shard in replica.shards.values()), default=600.0)


def exited(fleet: Fleet, node: NodeView, exit_: ShardExit, now: float) -> None:
    """A shard is gone, confirmed: its claims end. Whether that is a failure depends on
    whether we, or a stop from before, wanted it."""
    found = find(fleet.view, node.id, exit_.key)
    if found is None or not found[1].live:
        return
    replica, shard = found
    if exit_.incarnation < shard.spec.incarnation:
        return  # an earlier life of this shard; the present one runs
    shard.phase = "exited"
    shard.since = now
    shard.exit = exit_
    shard.pid = None
    fleet.touch()
    if exit_.code == "port_in_use":
        node.avoid_ports[shard.spec.port] = now + fleet.settings.port_rest
    if replica.unwanted or replica.state in ("draining", "failed") or exit_.requested:
        _ended(fleet, replica, exit_)
    else:
        words = exit_.message or exit_.code
        status = "" if exit_.exit_status is None else f" (exit status {exit_.exit_status})"
        fail(fleet, replica, exit_.code, f"{words}{status} on node {node.id}", now, exit_=exit_, node_id=node.id)


def late_exit(fleet: Fleet, node: NodeView, exit_: ShardExit) -> None:
    """A shard that ended before this control plane knew of it: why is kept for people to
    read. It counts against nothing: no decision of ours stands behind it."""
    if exit_.requested or exit_.model not in fleet.view.catalog.models:
        return
    health = fleet.health(exit_.model)
    if health.last_error_at is not None:
        return
    health.last_error = f"{exit_.message or exit_.code} on node {node.id}"
    health.last_error_code = exit_.code
    health.last_error_at = fleet.now
    health.last_exit = exit_
    fleet.note("exited", health.last_error, model=exit_.model, replica=exit_.replica_id, node=node.id)


def _ended(fleet: Fleet, replica: ReplicaView, exit_: ShardExit) -> None:
    if any(shard.live for shard in replica.shards.values()) or replica.state == "failed":
        return
    if replica.unwanted:
        reason = f"stopped: {replica.reason}"
    elif replica.state == "draining":
        reason = f"ended while draining: {replica.reason}"
    else:
        reason = "stopped on request of another"
    remove(fleet, replica, reason, code=exit_.code)


def remove(fleet: Fleet, replica: ReplicaView, reason: str, code: str | None = None) -> None:
    """A replica is gone, as wanted."""
    fleet.view.replicas.pop(replica.id, None)
    replica.state = "gone"
    nodes = sorted({shard.node_id for shard in replica.shards.values()})
    fleet.note("gone", reason, model=replica.model, replica=replica.id, node=nodes[0] if nodes else None, code=code)
    fleet.touch()
    fleet.routes_dirty = True


def fail(
    fleet: Fleet,
    replica: ReplicaView,
    code: str,
    reason: str,
    now: float,
    *,
    exit_: ShardExit | None = None,
    node_id: str | None = None,
    counted: bool = True,
) -> None:
    """A replica failed as a whole (REC-03). It stays in sight until a newer one
    replaces it; ``counted`` failures make its model wait."""
    replica.state = "failed"
    replica.since = now
    replica.reason = reason
    replica.deadline = None
    figures = failed_start(fleet, replica.model, code, reason, exit_=exit_, node_id=node_id) if counted else {}
    fleet.note("failed", reason, model=replica.model, replica=replica.id, node=node_id, code=code, **figures)
    fleet.touch()
    fleet.routes_dirty = True


def tick(fleet: Fleet, now: float) -> None:
    """What time does to replicas: one that came up after its model's last failure and
    held ends the row of failures; a failed one leaves the view when a newer one is
    ready or failed too, or its model is gone."""
    view = fleet.view
    for name in [name for name, health in view.health.items() if health.failures or health.failed_nodes]:
        _look_whether_proved(fleet, name, now)
    failed = [replica for replica in view.replicas.values() if replica.state == "failed"]
    newest = {name: _newest(view, name) for name in {replica.model for replica in failed}}
    for replica in failed:
        if any(shard.live for shard in replica.shards.values()):
            continue
        ready, newest_failed = newest[replica.model]
        outlived = ready >= replica.since
        outdone = newest_failed > (replica.since, replica.id)
        if view.lease.doubtful and not replica.healed:
            outdone = False  # it may yet be healed
        if outlived or outdone or replica.model not in view.catalog.models:
            view.replicas.pop(replica.id)


def _look_whether_proved(fleet: Fleet, model: str, now: float) -> None:
    last = fleet.view.health[model].last_error_at
    if last is None:
        return
    for replica in fleet.view.replicas.of_model(model):
        held = now - replica.since >= fleet.settings.stable_after
        if replica.state == "ready" and not replica.surplus and replica.since >= last and held:
            proved(fleet, model)
            return


def _newest(view: FleetView, model: str) -> tuple[float, tuple[float, str]]:
    """Since when a model's newest ready replica is so, and its newest failed one with its id."""
    ready, failed = -1.0, (0.0, "")
    for replica in view.replicas.of_model(model):
        if replica.state == "ready" and not replica.surplus:
            ready = max(ready, replica.since)
        elif replica.state == "failed":
            failed = max(failed, (replica.since, replica.id))
    return ready, failed
