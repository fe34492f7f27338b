"""Nothing is lost on the wire (AGT-01), and newer peers are understood (DEP-03)."""

import json
from pathlib import Path

import msgspec
import pytest

from llmgw.wire import frames, messages, routing
from llmgw.wire.messages import Message, Part, ShardSpec, Start, Unknown
from llmgw.wire.versions import OLDEST_PROTOCOL, PROTOCOL, agree
from tests.unit.wire.samples import Builder, structs, unset_fields

MESSAGES = list(structs(messages, Message))
PARTS = list(structs(messages, Part))
RECORDS = list(structs(routing, routing.Record))
UP = set(messages.Up.__args__)
GOLDEN = Path(__file__).parent / "protocol-1.json"


def _through_frames(message: Message) -> Message | Unknown:
    decoder = frames.up_decoder() if type(message) in UP else frames.down_decoder()
    (received,) = decoder.feed(frames.encode(message))
    assert decoder.pending == 0
    return received


def test_every_message_has_a_direction() -> None:
    """A message in neither union would be refused by both decoders."""
    assert set(MESSAGES) == UP | set(messages.Down.__args__)
    assert not UP & set(messages.Down.__args__)
    assert len({kind.__struct_config__.tag for kind in MESSAGES}) == len(MESSAGES)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_field_of_every_message_survives(kind: type[Message]) -> None:
    """AGT-01: a field lost in transit would silently disable a feature."""
    sent = Builder().struct(kind)
    assert unset_fields(sent) == []
    received = _through_frames(sent)
    assert received == sent
    assert type(received) is kind


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_every_field_of_every_part_survives_alone(kind: type[Part]) -> None:
    """Each field set while the others have their defaults: none hides behind another."""
    full = Builder().struct(kind)
    for field in msgspec.structs.fields(kind):
        required = {f.name: getattr(full, f.name) for f in msgspec.structs.fields(kind) if f.required}
        sent = kind(**{**required, field.name: getattr(full, field.name)})
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=kind) == sent


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_field_of_every_routing_record_survives(kind: type[routing.Record]) -> None:
    """RTR-03: the route table, reports and activations lose nothing as JSON."""
    sent = Builder().struct(kind)
    assert unset_fields(sent) == []
    assert msgspec.json.decode(routing.encode(sent), type=kind) == sent


def test_route_table_decodes() -> None:
    """The table's own decoder reads what ``encode`` wrote."""
    table = Builder().struct(routing.RouteTable)
    assert routing.decode_table(routing.encode(table)) == table


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"generation": 1}', b'{"generation": "g", "x": ' + b"[" * 100_000, b"\xff", b"<html>"]
)
def test_a_bad_route_table_is_a_decode_error(data: bytes) -> None:
    """RTR-03: whatever a router is sent instead of a table, it catches one exception."""
    with pytest.raises(msgspec.DecodeError):
        routing.decode_table(data)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_fields_of_a_newer_peer_are_ignored(kind: type[Message]) -> None:
    """DEP-03: unknown fields, at the top and inside, are skipped."""
    sent = Builder().struct(kind)
    tree = msgspec.msgpack.decode(msgspec.msgpack.encode(sent))

    def add_unknown(node: object) -> None:
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            add_unknown(child)
        if isinstance(node, dict) and not any("-" in key for key in node):  # not a free mapping such as labels
            node["from_the_future"] = {"nested": [1, None, {"x": 2.5}]}

    add_unknown(tree)
    body = msgspec.msgpack.encode(tree)
    decoder = frames.up_decoder() if kind in UP else frames.down_decoder()
    assert list(decoder.feed(len(body).to_bytes(4, "big") + body)) == [sent]


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_absent_fields_are_unknown_never_zero(kind: type[Message]) -> None:
    """Rule 2: a peer too old to say leaves ``None``, not 0."""
    required = {f.name for f in msgspec.structs.fields(kind) if f.required}
    full = Builder().struct(kind)
    sent = kind(**{name: getattr(full, name) for name in required})
    assert _through_frames(sent) == sent
    for part in PARTS:
        for field in msgspec.structs.fields(part):
            is_figure = "bytes" in field.name or field.name in ("pid", "age", "cpu_cores", "count", "load1")
            if is_figure and not field.required:
                assert field.default is None, f"{part.__name__}.{field.name} defaults to {field.default!r}"


def test_messages_of_the_first_protocol_are_still_read() -> None:
    """DEP-03: recorded frames of protocol 1 decode to what they meant then.

    The file is a recording: add to it when a release ships, never change a line.
    """
    recorded = json.loads(GOLDEN.read_text())
    assert set(recorded) <= {str(kind.__struct_config__.tag) for kind in MESSAGES}
    for kind in MESSAGES:
        sample = recorded.get(str(kind.__struct_config__.tag))
        if sample is None:  # a kind that is younger than the recording
            continue
        decoder = frames.up_decoder() if kind in UP else frames.down_decoder()
        (received,) = decoder.feed(bytes.fromhex(sample["frame"]))
        held = json.loads(msgspec.json.encode(received))
        assert held == sample["content"]


def test_versions_agree_on_the_newest_common_one() -> None:
    """DEP-03: ranges that meet agree, ranges that do not are refused."""
    assert agree(PROTOCOL, PROTOCOL) == PROTOCOL
    assert agree(OLDEST_PROTOCOL, PROTOCOL + 5) == PROTOCOL
    assert agree(PROTOCOL + 1, PROTOCOL + 2) is None
    assert agree(OLDEST_PROTOCOL - 2, OLDEST_PROTOCOL - 1) is None


SECRET = "ek-0123456789abcdef0123456789abcdef"


def test_engine_keys_are_in_no_repr() -> None:
    """SEC-03: what is logged by accident must not hold a secret."""
    spec = msgspec.structs.replace(Builder().struct(ShardSpec), engine_key=SECRET, env={"TOKEN": SECRET})
    endpoint = msgspec.structs.replace(Builder().struct(routing.Endpoint), key=SECRET)
    model = msgspec.structs.replace(Builder().struct(routing.RoutedModel), endpoints=(endpoint,))
    table = msgspec.structs.replace(Builder().struct(routing.RouteTable), models=(model,))
    status = msgspec.structs.replace(Builder().struct(messages.ShardStatus), spec=spec)
    register = msgspec.structs.replace(Builder().struct(messages.Register), shards=(status,))
    holders = [spec, endpoint, model, table, status, register, Start(command_id="c", epoch=1, spec=spec)]
    for value in [*holders, {"a": holders}, messages.ShardChanged(status=status)]:
        for text in (repr(value), str(value), f"{value}", f"{value!r}"):
            assert SECRET not in text


def test_a_spec_without_its_secret_says_that_it_had_one() -> None:
    """ENG-03: the key goes down with a start and never comes back up."""
    spec = msgspec.structs.replace(Builder().struct(ShardSpec), engine_key=SECRET, keyed=False)
    bare = spec.without_secret()
    assert (bare.engine_key, bare.keyed) == ("", True)
    assert bare.without_secret() == bare
    assert SECRET.encode() not in msgspec.msgpack.encode(bare)
    keyless = msgspec.structs.replace(spec, engine_key="", keyed=False)
    assert keyless.without_secret().keyed is False


def test_shard_keys_print_as_people_write_them() -> None:
    """The marker in an engine's environment and the logs use one form."""
    spec = Builder().struct(ShardSpec)
    assert str(spec.key) == f"{spec.replica_id}/{spec.rank}.{spec.incarnation}"
    assert tuple(spec.key) == (spec.replica_id, spec.rank, spec.incarnation)
