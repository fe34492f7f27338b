"""Events, effects and messages in one short line for the trace."""

from typing import Any

from agent import events, session
from controlplane.events import CloseSession, Commit, Note, PublishRoutes, Send
from llmgw.wire.messages import (
    CommandResult,
    Hello,
    Register,
    ShardChanged,
    ShardExit,
    ShardExited,
    ShardSpec,
    ShardStatus,
    Start,
    Stop,
    Welcome,
)


def describe(value: Any) -> str:
    """What it is, and which shard, command or model it is about."""
    name = type(value).__name__
    match value:
        case events.Save(sequence, item):
            about = item.key if isinstance(item, events.RemoveRecord) else getattr(item, "spec", item)
            return f"Save {sequence} {type(item).__name__} {describe(about)}"
        case events.Commanded(message) | session.Received(_, message) | Send(_, message):
            return f"{name} {describe(message)}"
        case events.Booted(boot_id, _, stored, found):
            return f"Booted {boot_id} stored={len(stored)} found={len(found)}"
        case events.Validate(spec) | events.Launch(spec) | events.Probe(spec):
            return f"{name} {spec.key}"
        case events.Watch(spec, process):
            return f"Watch {spec.key} {process}"
        case events.InventoryRead(inventory):
            return f"InventoryRead {inventory.boot_id}"
        case ShardSpec():
            devices = ",".join(value.devices)
            return f"{value.key} port={value.port} devices=[{devices}]"
        case ShardStatus():
            return f"{value.spec.key} {value.state} pid={value.pid}{' adopted' if value.adopted else ''} {value.detail}"
        case ShardExit():
            return f"{value.key} {value.code} status={value.exit_status} {value.message}"
        case Start():
            return f"Start {value.command_id} epoch={value.epoch} {describe(value.spec)}"
        case Stop():
            return f"Stop {value.command_id} epoch={value.epoch} {value.key}: {value.reason}"
        case ShardChanged(status=status):
            return f"ShardChanged {describe(status)}"
        case ShardExited(exit=exit_):
            return f"ShardExited {describe(exit_)}"
        case CommandResult():
            return f"CommandResult {value.command_id} {value.outcome} {value.code}"
        case Hello():
            return f"Hello epoch={value.highest_epoch} of {value.leader} last={value.last_command}"
        case Welcome():
            return f"Welcome {value.session_id} epoch={value.epoch} of {value.leader}"
        case Register():
            shards = "; ".join(describe(status) for status in value.shards)
            exits = "; ".join(describe(exit_) for exit_ in value.exits)
            return f"Register shards=[{shards}] exits=[{exits}] last={value.last_command}"
        case Commit(batch, decisions):
            words = "; ".join(f"{decision.kind} {decision.replica}: {decision.reason}" for decision in decisions)
            return f"Commit {batch} [{words}]"
        case Note(decision):
            about = " ".join(name for name in (decision.model, decision.replica, decision.node) if name)
            return f"Note {decision.kind} {about}: {decision.reason}"
        case PublishRoutes(models, settling):
            routes = " ".join(f"{model.name}={model.state}{[e.id for e in model.endpoints]}" for model in models)
            return f"PublishRoutes epoch={value.epoch} settling={settling} {routes}"
        case CloseSession(session_id, refuse):
            return f"CloseSession {session_id} {refuse.code if refuse else ''}"
        case _:
            return str(value)
