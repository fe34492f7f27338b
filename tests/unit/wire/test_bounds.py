"""What a peer may send at most: a lie or a fault costs it its own session (AGT-03)."""

from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from llmgw.wire.frames import FrameError, encode, up_decoder
from llmgw.wire.messages import (
    Cpu,
    Device,
    Heartbeat,
    Inventory,
    Measurements,
    PortRange,
    Register,
    ShardExit,
    ShardExited,
    ShardSpec,
    ShardStatus,
    Start,
    Up,
)

NAN, INFINITE = float("nan"), float("inf")


def spec(**changes: Any) -> ShardSpec:
    base: dict[str, Any] = dict.fromkeys(("model", "profile", "fingerprint", "engine", "host", "served_name"), "x")
    return ShardSpec(**{"replica_id": "x-1", "source": "sim:", "port": 1, **base, **changes})


def inventory(**fields: Any) -> Register:
    return Register(inventory=Inventory(address="127.0.0.1", **fields))


HOSTILE = {
    "a million labels": inventory(labels={str(number): "" for number in range(1_000_000)}),
    "a long label": inventory(labels={"x": "y" * 9000}),
    "a long address": Register(inventory=Inventory(address="x" * 1000)),
    "negative CPUs": inventory(cpu=Cpu(count=-5)),
    "negative memory": inventory(memory_bytes=-1),
    "more memory than a signed number holds": inventory(memory_bytes=2**64 - 1),
    "ports beyond the last": inventory(engine_ports=PortRange(first=-1, last=2**40)),
    "devices without end": inventory(devices=tuple(Device(uuid=str(number)) for number in range(2000))),
    "not a number": Heartbeat(sequence=1, measurements=Measurements(cpu_percent=NAN)),
    "infinite load": Heartbeat(sequence=1, measurements=Measurements(load1=INFINITE)),
    "a negative sequence": Heartbeat(sequence=-1),
    "a long message": ShardExited(exit=ShardExit(replica_id="x-1", code="exited", message="x" * 100_000)),
    "a replica id that is a path": ShardExited(exit=ShardExit(replica_id="../x", code="exited")),
    "a replica id with a line end": ShardExited(exit=ShardExit(replica_id="x-1\n", code="exited")),
    "a start that never times out": Register(
        inventory=Inventory(address="127.0.0.1"),
        shards=(ShardStatus(spec=spec(startup_timeout=INFINITE), state="ready"),),
    ),
    "an age that is no number": Register(
        inventory=Inventory(address="127.0.0.1"), shards=(ShardStatus(spec=spec(), state="ready", age=NAN),)
    ),
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_content_is_no_message(message: Any) -> None:
    """AGT-03: refused by the decoder, which says at which place."""
    with pytest.raises(FrameError, match=r"\$") as caught:
        list(up_decoder().feed(encode(message)))
    assert caught.value.code == "bad_frame"


def _leaves(kind: inspect.Type, path: str) -> Any:
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _leaves(each, path)
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from _leaves(field.type, f"{path}.{field.name}")
        case inspect.VarTupleType(item_type=item):
            yield path, kind
            yield from _leaves(item, f"{path}[]")
        case inspect.DictType(key_type=key, value_type=value):
            yield path, kind
            yield from _leaves(key, f"{path}{{}}")
            yield from _leaves(value, f"{path}{{}}")
        case _:
            yield path, kind


@pytest.mark.parametrize("message", get_args(Up), ids=lambda kind: kind.__name__)
def test_everything_an_agent_sends_is_bounded(message: type[msgspec.Struct]) -> None:
    """AGT-03: also a field that is added tomorrow."""
    unbounded = []
    for path, kind in _leaves(inspect.type_info(message), message.__name__):
        match kind:
            case inspect.StrType(max_length=length, pattern=pattern):
                bounded = length is not None or pattern is not None
            case inspect.VarTupleType(max_length=length) | inspect.DictType(max_length=length):
                bounded = length is not None
            case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high):
                bounded = low is not None and high is not None
            case _:
                bounded = isinstance(kind, inspect.BoolType | inspect.LiteralType | inspect.NoneType)
        if not bounded:
            unbounded.append(path)
    assert not unbounded


def test_a_number_no_frame_can_hold() -> None:
    """AGT-03: an error of the codec, not one of the encoder's own that nobody expects."""
    with pytest.raises(FrameError, match="Start cannot be encoded"):
        encode(Start(command_id="c", epoch=2**64, spec=spec()))


def test_what_makes_no_sense_reaches_the_agent() -> None:
    """AGT-05: a spec is refused by the agent in words, not by cutting the session."""
    odd = spec(port=70000, context=0, slots=-1, cpu_cores=-1.0, startup_timeout=0.0)
    frame = Register(inventory=Inventory(address="127.0.0.1"), shards=(ShardStatus(spec=odd, state="ready"),))
    (read,) = up_decoder().feed(encode(frame))
    assert read == frame
