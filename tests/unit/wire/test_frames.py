"""The frame codec: any split, and nothing a peer sends does worse than end its session."""

import itertools
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.wire import errors, frames
from llmgw.wire.frames import MAX_FRAME, Decoder, FrameError, encode
from llmgw.wire.messages import Heartbeat, Hello, Register, Unknown, Up
from tests.unit.wire.samples import Builder

KINDS = [Hello, Register, Heartbeat]


def _frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _hello(**changes: object) -> dict[str, object]:
    return {"type": "hello", "node_id": "n", "version": "1", "oldest_protocol": 1, "newest_protocol": 1, **changes}


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5), st.lists(st.integers(0, 1 << 16), max_size=20))
def test_any_split_gives_the_same_messages(kinds: list[type], cuts: list[int]) -> None:
    """AGT-03: where the network cuts the stream does not matter."""
    builder = Builder()
    sent = [builder.struct(kind) for kind in kinds]
    decoder = frames.up_decoder()
    received = [m for piece in _pieces(b"".join(map(encode, sent)), cuts) for m in decoder.feed(piece)]
    assert received == sent
    assert decoder.pending == 0


def test_byte_by_byte() -> None:
    """The worst split."""
    sent = Builder().struct(Register)
    decoder = frames.up_decoder()
    received = [m for byte in encode(sent) for m in decoder.feed(bytes([byte]))]
    assert received == [sent]


@given(st.sampled_from(KINDS), st.integers(1, 1 << 16))
def test_truncation_is_seen(kind: type, cut: int) -> None:
    """A stream that ends inside a frame yields no message and says so."""
    data = encode(Builder().struct(kind))
    part = data[: cut % (len(data) - 1) + 1]
    decoder = frames.up_decoder()
    assert list(decoder.feed(part)) == []
    assert decoder.pending == len(part) > 0


def test_an_oversized_frame_is_refused_by_its_announcement() -> None:
    """No byte of the content is waited for, let alone stored."""
    decoder = frames.up_decoder()
    with pytest.raises(FrameError) as caught:
        list(decoder.feed(struct.pack(">I", MAX_FRAME + 1)))
    assert caught.value.code == "frame_too_large"
    assert str(MAX_FRAME) in str(caught.value)


def test_the_limit_itself_fits() -> None:
    """Both sides agree on what is too large."""
    hello = Builder().struct(Hello)
    size = len(encode(hello)) - 4
    assert list(Decoder(Up, max_frame=size).feed(encode(hello, max_frame=size))) == [hello]
    with pytest.raises(FrameError) as caught:
        encode(hello, max_frame=size - 1)
    assert caught.value.code == "frame_too_large"


BAD_BODIES = {
    "empty": b"",
    "truncated inside": msgspec.msgpack.encode(_hello())[:-3],
    "trailing bytes": msgspec.msgpack.encode(_hello()) + b"\0",
    "not a map": msgspec.msgpack.encode([1, 2]),
    "no tag": msgspec.msgpack.encode({"node_id": "n"}),
    "tag of a wrong type": msgspec.msgpack.encode(_hello(type=3)),
    "field of a wrong type": msgspec.msgpack.encode(_hello(node_id=7)),
    "required field absent": msgspec.msgpack.encode({"type": "hello"}),
    "required field null": msgspec.msgpack.encode(_hello(version=None)),
    "text that is not UTF-8": b"\x82\xa4type\xa5hello\xa7node_id\xa2\xff\xfe",
    "tag that is not UTF-8": b"\x81\xa4type\xa2\xff\xfe",
    "extension type": b"\xd4\x01\x01",
    "array that announces 4 GiB": b"\xdd\xff\xff\xff\xff",
    "map that announces 4 GiB": b"\x82\xa4type\xa5hello\xa1x\xdf\xff\xff\xff\xff",
    "text that announces 4 GiB": b"\xdb\xff\xff\xff\xff",
    "nesting without end": b"\x91" * 200_000,
    "nesting inside a skipped field": b"\x82\xa4type\xa9heartbeat\xa1x" + b"\x91" * 200_000,
    "nesting inside an unknown message": b"\x82\xa4type\xa6future\xa1x" + b"\x91" * 200_000,
    "JSON": b'{"type": "hello"}',
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_frame_is_a_frame_error(name: str) -> None:
    """The driver catches one exception with a session code, whatever came."""
    with pytest.raises(FrameError) as caught:
        list(frames.up_decoder().feed(_frame(BAD_BODIES[name])))
    assert caught.value.code == "bad_frame"
    assert caught.value.code in errors.SESSION


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_garbage_never_raises_anything_else(body: bytes) -> None:
    """Random bytes in a frame."""
    try:
        received = list(frames.up_decoder().feed(_frame(body)))
    except FrameError as error:
        assert error.code in errors.SESSION
    else:
        assert all(isinstance(message, Unknown) for message in received)


@given(st.sampled_from(KINDS), st.integers(0, 1 << 16), st.integers(1, 255))
@settings(max_examples=500)
def test_a_flipped_byte_never_raises_anything_else(kind: type, place: int, flip: int) -> None:
    """One damaged byte anywhere in a real frame, its length included."""
    data = bytearray(encode(Builder().struct(kind)))
    data[place % len(data)] ^= flip
    decoder = frames.up_decoder()
    try:
        list(decoder.feed(bytes(data)))
    except FrameError as error:
        assert error.code in errors.SESSION


def test_a_kind_of_a_newer_peer_is_told_apart_from_garbage() -> None:
    """DEP-03: the session goes on, and the frame after it is read."""
    hello = Builder().struct(Hello)
    body = msgspec.msgpack.encode({"type": "telemetry", "points": [1, 2, 3]})
    received = list(frames.up_decoder().feed(_frame(body) + encode(hello)))
    assert received == [Unknown("telemetry"), hello]


def test_an_unknown_kind_is_cut_to_size() -> None:
    """It ends in logs and metrics: a peer does not choose how long those are."""
    (received,) = frames.up_decoder().feed(_frame(msgspec.msgpack.encode({"type": "x" * 100_000})))
    assert received == Unknown("x" * frames.MAX_KIND)


def test_a_frame_that_cannot_be_read_is_not_quoted_at_length() -> None:
    """SEC-03: why a session ended stands in logs and events of both sides."""
    body = msgspec.msgpack.encode({"type": "command_result", "command_id": "c", "outcome": "x" * 100_000})
    with pytest.raises(FrameError, match="Invalid enum value 'xxx") as refused:
        list(frames.up_decoder().feed(_frame(body)))
    assert len(str(refused.value)) < 300


def test_messages_of_the_other_direction_are_unknown() -> None:
    """An agent that sends commands is not obeyed."""
    (received,) = frames.up_decoder().feed(encode(Builder().struct(frames.Down.__args__[0])))
    assert isinstance(received, Unknown)


def test_a_bad_frame_stops_the_messages_behind_it() -> None:
    """Messages before the fault are delivered, those behind it are not."""
    hello = Builder().struct(Hello)
    stream = frames.up_decoder().feed(encode(hello) + _frame(b"\xc1") + encode(hello))
    assert next(stream) == hello
    with pytest.raises(FrameError):
        next(stream)
    assert list(stream) == []
