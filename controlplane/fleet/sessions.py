"""The control plane's side of agent sessions (AGT-03, AGT-04, DEP-03).

hello -> welcome or refuse; register; then heartbeats, shard events, command results.
One session per node: a newer one supersedes.
"""

from controlplane.events import FrameReceived, SessionOpened
from controlplane.fleet import lead, nodes
from controlplane.fleet.adoption import acknowledge, register
from controlplane.fleet.context import Fleet, Session
from controlplane.fleet.replicas import copy_id, exited, status_changed
from controlplane.planning.examine import foreign_processes
from controlplane.planning.view import NodeView, ReplicaView, ShardView
from llmgw.wire.messages import (
    CommandResult,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Register,
    ShardChanged,
    ShardExit,
    ShardExited,
    Unknown,
    Welcome,
)
from llmgw.wire.versions import OLDEST_PROTOCOL, PROTOCOL, agree

PROVING = 1.0
"""Seconds after which an agent may say hello again while the store is asked who leads."""


def opened(fleet: Fleet, event: SessionOpened, now: float) -> None:
    """An agent said hello: welcome it, or refuse it with the remedy."""
    hello = event.hello
    protocol = agree(hello.oldest_protocol, hello.newest_protocol)
    if protocol is None:
        _refuse_protocol(fleet, event.session, hello)
        return
    node = fleet.view.nodes.get(event.node_id)
    if node is None:
        fleet.close(event.session, "unknown_node", f"node {event.node_id} is not enrolled: enrol it, then retry")
        return
    if hello.node_id != event.node_id:
        message = f"the credential is node {event.node_id}'s but hello says {hello.node_id}: check node_id"
        fleet.close(event.session, "unauthorised", message)
        return
    if lead.absurd(hello.highest_epoch):
        message = (
            f"the node says it obeyed epoch {hello.highest_epoch}, this control plane is at {fleet.epoch}, and no "
            "fleet gets that far: stop the agent, remove agent.json from its state_dir and start it again"
        )
        fleet.note("epoch-refused", message, node=node.id)
        fleet.close(event.session, "bad_frame", message)
        return
    if lead.unproven(fleet, hello.highest_epoch, hello.leader, f"node {node.id}", now, node=node.id):
        message = (
            f"the node has obeyed epoch {hello.highest_epoch}, and this control plane is at {fleet.epoch}: it asks "
            f"the store whether it leads, and then for up to {lead.MAX_EPOCH_STEP} more at a time; if another one "
            "leads, the agent finds it at its other addresses"
        )
        fleet.close(event.session, "epoch_unproven", message, PROVING)
        return
    if node.session is not None:
        fleet.close(node.session, "superseded", f"node {node.id} opened a newer session")
        nodes.disconnected(fleet, node, "superseded by a newer session")
    fleet.sessions[event.session] = Session(event.session, node.id, now, protocol)
    node.session = event.session
    node.registered = False
    node.agent_version = hello.version
    node.elsewhere = event.elsewhere
    node.capabilities = frozenset(hello.capabilities)
    node.last_heard = now
    fleet.touch()
    fleet.send(
        node,
        Welcome(
            session_id=event.session,
            protocol=protocol,
            version=fleet.version,
            epoch=fleet.epoch,
            leader=fleet.leader,
            heartbeat_seconds=fleet.settings.heartbeat,
            silence_seconds=fleet.settings.silence,
        ),
    )


def _refuse_protocol(fleet: Fleet, session: str, hello: Hello) -> None:
    ours = f"{OLDEST_PROTOCOL} to {PROTOCOL}"
    theirs = f"{hello.oldest_protocol} to {hello.newest_protocol}"
    if hello.newest_protocol < OLDEST_PROTOCOL:
        code, remedy = "protocol_too_old", "upgrade the agent"
    else:
        code, remedy = "protocol_too_new", "upgrade the control plane"
    message = f"agent {hello.version} speaks protocols {theirs}, control plane {fleet.version} {ours}: {remedy}"
    fleet.close(session, code, message)


def closed(fleet: Fleet, session_id: str, reason: str, now: float) -> None:
    """A connection ended. That of a superseded session means nothing any more."""
    session = fleet.sessions.pop(session_id, None)
    node = fleet.view.nodes.get(session.node_id) if session else None
    if node is not None:
        if node.registered:
            nodes.count_changed(fleet, now)
        nodes.disconnected(fleet, node, reason)


def received(fleet: Fleet, event: FrameReceived, now: float) -> None:
    """A frame of a current session; of any other it is dropped."""
    session = fleet.sessions.get(event.session)
    node = fleet.view.nodes.get(session.node_id) if session else None
    if session is None or node is None:
        return
    session.heard = now
    node.last_heard = now
    message = event.message
    if isinstance(message, Unknown):
        fleet.unknown_frames += 1
        return
    if isinstance(message, Register):
        register(fleet, node, message, now)
    elif isinstance(message, Hello):
        _drop(fleet, node, "bad_frame", "hello is sent once, as the first frame", now)
    elif not node.registered:
        kind = type(message).__name__
        _drop(fleet, node, "register_expected", f"{kind} came before the node had registered", now)
    elif isinstance(message, Heartbeat):
        _heartbeat(fleet, node, message, now)
    elif isinstance(message, ShardChanged):
        status_changed(fleet, node, message.status, now)
    elif isinstance(message, ShardExited):
        exited(fleet, node, message.exit, now)
        acknowledge(fleet, node, [message.exit.key])
    elif isinstance(message, CommandResult):
        _result(fleet, node, message, now)


def _drop(fleet: Fleet, node: NodeView, code: str, message: str, now: float) -> None:
    if node.session is not None:
        fleet.close(node.session, code, message)
        if node.registered:
            nodes.count_changed(fleet, now)
        nodes.disconnected(fleet, node, message)


def _heartbeat(fleet: Fleet, node: NodeView, message: Heartbeat, now: float) -> None:
    before = foreign_processes(node)
    node.measurements = message.measurements
    node.measured_at = now
    if foreign_processes(node) != before:
        fleet.touch()
    fleet.send(node, HeartbeatAck(sequence=message.sequence))


def _result(fleet: Fleet, node: NodeView, result: CommandResult, now: float) -> None:
    started = _started(fleet, node, result.command_id)
    if result.outcome != "refused":
        if started is not None:
            started[1].accepted = True
        return
    if result.code == "stale_epoch":
        # Somebody with a higher epoch commands this node; its next hello says which.
        _drop(fleet, node, "superseded", "the node obeys a higher epoch: say hello again", now)
        return
    if started is None:
        fleet.note("command-refused", result.message or result.code, node=node.id, command=result.command_id)
        return
    spec = started[1].spec
    gone = ShardExit(
        replica_id=spec.replica_id,
        rank=spec.rank,
        incarnation=spec.incarnation,
        code=result.code or "agent_error",
        message=result.message,
    )
    exited(fleet, node, gone, now)


def _started(fleet: Fleet, node: NodeView, command_id: str) -> tuple[ReplicaView, ShardView] | None:
    """The shard whose start this command was. Its replica may have been set aside since."""
    replica_id = fleet.starts.get(command_id, "")
    for known in (replica_id, copy_id(replica_id, node.id)):
        replica = fleet.view.replicas.get(known)
        for shard in replica.shards.values() if replica is not None else ():
            if replica is not None and shard.command_id == command_id and shard.node_id == node.id:
                return replica, shard
    return None


def tick(fleet: Fleet, now: float) -> None:
    """Close the sessions that were silent for too long."""
    silence = fleet.settings.silence
    if now - fleet.life.resumed < silence:
        return
    for session in [session for session in fleet.sessions.values() if now - session.heard >= silence]:
        node = fleet.view.nodes.get(session.node_id)
        if node is not None:
            _drop(fleet, node, "timeout", f"nothing was heard for {fleet.settings.silence:g} s", now)
