from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.chunks import ChunkError, ChunkFollower, chunk
from router.relay import close_with

SIZES = st.sampled_from(["%x", "%X", "0%x", "000%x", "%x;name=value", "%x ; a", '%x;q="v"'])
DATA = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from([b"data: 10\r\n\r\n", b"0\r\n\r\n", b"\r\n0\r\n\r\n", b"\r\n", b"data: x\n\n", b"a" * 4000]),
)
TRAILERS = st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: b\r\nC:\r\n"])


@st.composite
def messages(draw):
    pieces = draw(st.lists(DATA, max_size=6))
    raw = b""
    for piece in pieces:
        raw += (draw(SIZES) % len(piece)).encode() + b"\r\n" + piece + b"\r\n"
    raw += draw(st.sampled_from([b"0", b"000", b"0;last"])) + b"\r\n" + draw(TRAILERS) + b"\r\n"
    return pieces, raw


def splits(raw, cuts):
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return [raw[a:b] for a, b in pairwise(edges) if a != b]


@given(messages(), st.lists(st.integers(0, 10000), max_size=12), st.binary(max_size=20))
def test_any_split_of_any_message_is_followed(message, cuts, after):
    """RTR-09: the end is found exactly, whatever the split; what follows it is excess."""
    pieces, raw = message
    follower = ChunkFollower()
    passed = b""
    payload = []
    rest = b""
    for part in splits(raw + after, cuts):
        if follower.ended:
            rest += part
        else:
            passed += follower.feed(part, payload)
    assert follower.ended
    assert passed == raw
    assert b"".join(payload) == b"".join(pieces)
    assert follower.excess + rest == after


@given(messages())
def test_byte_by_byte(message):
    """RTR-09: no part of a delimiter is ever passed on before all of it has come."""
    pieces, raw = message
    follower = ChunkFollower()
    payload = []
    passed = b""
    for nth in range(len(raw)):
        assert not follower.ended
        passed += follower.feed(raw[nth : nth + 1], payload)
    assert follower.ended
    assert passed == raw
    assert b"".join(payload) == b"".join(pieces)


@given(messages(), st.lists(st.integers(0, 10000), max_size=8), st.integers(0, 10000), st.integers(1, 200))
def test_a_cut_stream_can_be_closed_with_an_event(message, cuts, cut, size):
    """RTR-09: wherever a stream is cut, an event put after it reaches the reader as chunk
    data, and the framing stays unfinished."""
    pieces, raw = message
    follower = ChunkFollower()
    passed = b""
    for part in splits(raw[: cut % len(raw)], cuts):
        passed += follower.feed(part)
    event = b"\n\n" + b"e" * size + b"\n\n"
    reader = ChunkFollower()
    payload = []
    reader.feed(passed + close_with(follower, event), payload)
    assert not reader.ended
    read = b"".join(payload)
    assert event in read
    before = read[: read.rindex(event)].rstrip(b"\n")
    assert b"".join(pieces).startswith(before)


def test_data_that_looks_like_the_end_is_data():
    """RTR-09: ``data: 10\\r\\n\\r\\n`` ends like a last chunk and is none."""
    follower = ChunkFollower()
    raw = chunk(b"data: 10\r\n\r\n")
    assert follower.feed(raw) + follower.feed(b"0\r\n") == raw[:-2]
    assert not follower.ended
    assert follower.feed(b"\r\n") == b"\r\n0\r\n\r\n"
    assert follower.ended
    assert follower.closing == len(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n5\r\nhello\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"+5\r\nhello",
        b"0x5\r\nhello",
        b"5_0\r\n",
        b" 5\r\nhello",
        b"5 \r\nhello",
        b"\r\n\r\n",
        b"5\nhello\n",
        b"5\r\nhelloXX5\r\nhello\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r5\r\n",
        b"5;a\x00b\r\nhello\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"1000000000000000\r\n",
        b"5" * 3000,
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\n X: folded\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * 3000,
        b"5;" + b"a" * 3000 + b"\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 100000])
def test_what_is_not_chunked_framing_is_refused(raw, size):
    """RTR-13: sizes with signs, blanks, underscores or bare line feeds are how requests
    are smuggled."""
    follower = ChunkFollower()
    with pytest.raises(ChunkError):
        for at in range(0, len(raw), size):
            follower.feed(raw[at : at + size])


def test_a_size_line_held_back_is_bounded():
    """RTR-13: an endless size line does not fill the memory."""
    follower = ChunkFollower()
    with pytest.raises(ChunkError):
        for _ in range(10000):
            follower.feed(b"5")
