import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmgw.wire.routing import RequestRecord, UsageBatch
from router import usage
from router.usage import Done, count, count_tail

WALL = 1_800_000_000.0


def done(at=990.0, **fields):
    return Done(at, fields.pop("id", "r1"), "k1", "m", 200, **fields)


def tokens(one):
    return one.prompt_tokens, one.completion_tokens, one.cached_tokens


def sent(*dones, now=1000.0):
    """The records that the control plane reads."""
    records = usage.joined(usage.lines_of(dones, now))
    return msgspec.json.decode(usage.batch("b", 1, 0.5, records), type=UsageBatch).records


def test_a_record_has_every_field_of_the_wire():
    """TEN-06: what is written down is what crosses, by the same names."""
    ours = {field.name for field in msgspec.structs.fields(Done)}
    assert ours == {field.name for field in msgspec.structs.fields(RequestRecord)}
    values = {
        "asked": "a",
        "endpoint": "e",
        "code": "overloaded",
        "stream": True,
        "first_byte": 0.25,
        "duration": 1.5,
        "prompt_tokens": 0,
        "completion_tokens": 2,
        "cached_tokens": 3,
        "retried": ("e1: gone",),
    }
    assert sent(done(**values)) == (RequestRecord(id="r1", ago=10.0, key="k1", model="m", status=200, **values),)


def test_unknown_is_absent():
    """TEN-06: no count is not zero, and does not cross at all."""
    line = usage.lines_of([done()], 1000.0)
    assert not {"prompt_tokens", "completion_tokens", "cached_tokens", "first_byte"} & json.loads(line).keys()
    assert tokens(sent(done())[0]) == (None, None, None)


@given(st.text(), st.text(), st.lists(st.text(max_size=2000), max_size=40))
@example("", "", [""] * 17)
def test_whatever_is_in_a_record_the_batch_is_taken(asked, name, retried):
    """TEN-06: any name, at any length; one bad record would cost its whole batch."""
    long = done(asked=asked * 600, id=name * 600, endpoint=asked, retried=tuple(retried))
    first, second = sent(long, done(id="r2"))
    assert (first.asked, first.id, second.id) == ((asked * 600)[:512], (name * 600)[:512], "r2")
    assert first.retried == tuple(why[:512] for why in retried[:16])


USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4, "x": [{}]}}


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ({"usage": USAGE}, (5, 7, 4)),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, (0, 0, None)),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": None}}, (5, None, None)),
        ({"usage": None}, (None, None, None)),
        ({}, (None, None, None)),
        ([1], (None, None, None)),
        ({"usage": {"prompt_tokens": 1.5}}, (None, None, None)),
        ({"usage": {"prompt_tokens": True}}, (None, None, None)),
        ({"usage": {"prompt_tokens": -1}}, (None, None, None)),
        ({"usage": {"prompt_tokens": 2**41}}, (None, None, None)),
        ({"choices": [{"usage": USAGE}]}, (None, None, None)),
    ],
)
def test_a_whole_answers_counts(said, counts):
    """TEN-06: of its own ``usage`` only, and only what the wire can carry."""
    one = done()
    count(one, json.dumps(said).encode())
    assert tokens(one) == counts
    sent(one)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"usage":{"prompt_tokens":1}', b'"' * 9])
def test_an_answer_that_is_no_json(body):
    """TEN-06: is passed on, and counted as unknown."""
    one = done()
    count(one, body)
    assert tokens(one) == (None, None, None)


def event(data):
    return b"data: " + json.dumps(data).encode() + b"\n\n"


WORD = {"choices": [{"delta": {"content": 'it says "usage": {"prompt_tokens": 1}'}}], "usage": None}
STREAM = event(WORD) * 3 + event({"choices": [], "usage": USAGE, "timings": {"usage": 1}}) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("compact", [False, True])
def test_a_streams_counts(compact):
    """TEN-06: from the last event that has some, whatever words a text holds."""
    stream = STREAM.replace(b": ", b":").replace(b", ", b",") if compact else STREAM
    one = done()
    count_tail(one, stream, False)
    assert tokens(one) == (5, 7, 4)


@given(st.integers(1, 60), st.integers(0, len(STREAM)))
def test_a_streams_counts_whatever_the_chunks(size, cut):
    """TEN-06: with framing anywhere; of a stream cut anywhere either what it said or nothing."""
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    raw = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    one, other = done(), done()
    count_tail(one, raw + b"0\r\n\r\n", True)
    assert tokens(one) == (5, 7, 4)
    count_tail(other, STREAM[:cut], False)
    assert tokens(other) in ((5, 7, 4), (None, None, None))


@given(st.binary(max_size=300))
def test_any_tail(tail):
    """TEN-06: bytes that are no stream give no count, and no error."""
    one = done()
    count_tail(one, b'data: {"usage":' + tail, True)
    sent(one)


def test_a_tail_of_words_is_looked_at_in_no_time():
    """RTR-20: its cost does not grow with what it says: a pattern that went back would take for ever here."""
    one = done()
    count_tail(one, b'"usage":{' + b'"a' * 5000, True)
    count_tail(one, b'"usage":' + b"{" * 5000, True)
    count_tail(one, b'"usage"' * 5000, True)
    assert tokens(one) == (None, None, None)


def test_records_from_disk_keep_their_times():
    """STO-03: those of several seconds become one batch, each as long ago as it was."""
    data = usage.base_line(WALL) + usage.lines_of([done(id="a"), done(999.0, id="b")], 1000.0)
    data += usage.base_line(WALL + 60) + usage.lines_of([done(1055.0, id="c")], 1060.0)
    lines, made = usage.read_back(data)
    assert (len(lines), made) == (3, WALL + 60)
    records = usage.shifted(lines, made)
    batch = msgspec.json.decode(usage.batch("b", 7, 2.0, b",".join(records)), type=UsageBatch)
    assert (batch.boot, batch.sequence, batch.waited) == ("b", 7, 2.0)
    assert [(one.id, one.ago) for one in batch.records] == [("a", 70.0), ("b", 61.0), ("c", 5.0)]


@given(st.integers(0, 400), st.binary(max_size=80))
def test_a_damaged_file_gives_its_whole_lines(cut, garbage):
    """STO-03: a crash in the middle of a write costs that line, and what is sent is always a batch."""
    data = usage.base_line(WALL) + usage.lines_of([done(id="a"), done(id="b"), done(id="c")], 1000.0)
    lines, made = usage.read_back(data[:cut] + garbage)
    records = usage.shifted(lines, made)
    batch = msgspec.json.decode(usage.batch("b", 1, 0.0, b",".join(records)), type=UsageBatch)
    whole = data[:cut].count(b"}\n") - 1
    assert [one.id for one in batch.records][: max(0, whole)] == list("abc")[: max(0, whole)]
