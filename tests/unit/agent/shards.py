"""Builders of specs and commands for tests of the agent."""

import itertools

from llmgw.wire.messages import ShardSpec, Start, Stop

_counter = itertools.count(1)


def make_spec(replica="tiny-0000000a", **changes):
    values = {
        "replica_id": replica,
        "model": "tiny",
        "profile": "p0",
        "fingerprint": "f",
        "engine": "sim",
        "source": "sim:",
        "host": "127.0.0.1",
        "port": 20000,
        "served_name": "tiny",
        "engine_key": "ek-0123456789abcdef",
        "keyed": True,
    }
    return ShardSpec(**(values | changes))


def start(spec, epoch=1, command_id=None):
    return Start(command_id=command_id or f"c{next(_counter)}", epoch=epoch, spec=spec)


def stop(spec, epoch=1, command_id=None, grace=10.0):
    return Stop(
        command_id=command_id or f"c{next(_counter)}",
        epoch=epoch,
        replica_id=spec.replica_id,
        rank=spec.rank,
        incarnation=spec.incarnation,
        reason="test",
        grace_seconds=grace,
    )
