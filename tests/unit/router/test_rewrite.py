import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.rewrite import MAX_MODELS, MAX_PLACES, BodyFault, model_spans, read, splice

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.one_of(TEXT, st.sampled_from(["model", '"model"', "mod\\el"])), inner, max_size=4)
    ),
    max_leaves=15,
)
NAMES = st.one_of(
    TEXT.filter(bool), st.sampled_from(["model", 'a"b', "a\\", "a\\\\", "ä", "\U0001f600", "m/x:y", '"', "}", "{"])
)


@given(
    rest=st.dictionaries(TEXT.filter(lambda key: key not in ("model", "stream")), VALUES, max_size=5),
    name=NAMES,
    other=NAMES,
    place=st.integers(0, 5),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1, "\t"]),
)
def test_only_the_top_level_model_changes(rest, name, other, *, place, ascii_only, indent):
    """RTR-01: the name is spliced at its own place, every other byte stays."""
    items = list(rest.items())
    items.insert(place, ("model", name))
    body = json.dumps(dict(items), ensure_ascii=ascii_only, indent=indent).encode()
    assert read(body).model == name
    ((start, end),) = model_spans(body)
    changed = splice(body, other)
    assert json.loads(changed) == {**rest, "model": other}
    assert changed[:start] == body[:start]
    assert changed[len(changed) - (len(body) - end) :] == body[end:]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b' \r\n\t{ "model" \n:\t"a" } ', b' \r\n\t{ "model" \n:\t"new" } '),
        (b'{"x":"model","model":"a"}', b'{"x":"model","model":"new"}'),
        (b'{"x":{"model":"a"},"model":"a"}', b'{"x":{"model":"a"},"model":"new"}'),
        (
            b'{"x":["model","a"],"model":"a","y":"\\"model\\":\\"a\\""}',
            b'{"x":["model","a"],"model":"new","y":"\\"model\\":\\"a\\""}',
        ),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"new"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"new","model":"new"}'),
        (b'{"model":"\\u0061","z":1}', b'{"model":"new","z":1}'),
        (b'{"model":"a\\\\","z":"\\\\\\""}', b'{"model":"new","z":"\\\\\\""}'),
        ('{"ü":"model","model":"ä"}'.encode(), '{"ü":"model","model":"new"}'.encode()),
    ],
)
def test_splice_finds_the_right_place(body, expected):
    """RTR-01: equal text elsewhere, nesting, escapes and duplicates do not mislead it."""
    read(body)
    assert splice(body, "new") == expected


@given(
    members=st.lists(
        st.tuples(
            st.sampled_from(['"model"', '"mod\\u0065l"', '"a\\"model"', '"x"', '"\\\\"']),
            st.sampled_from([":", " :\n"]),
            st.sampled_from(['"model"', '"\\"model"', '"b"', '{"model":"c"}', '[{"model":"d","model":"e"},{}]', "1"]),
        ),
        max_size=7,
    )
)
def test_every_model_at_top_level_and_no_other(members):
    """RTR-01: keys given twice, nested and escaped, in any order: readers that take the first and those that take
    the last see the same model."""
    items = [(key, between, value) for key, between, value in members if json.loads(key) != "model" or value[0] == '"']
    items.append(('"model"', ":", '"z"'))
    mine = [json.loads(key) == "model" for key, _, _ in items]
    body = "{" + ",".join(map("".join, items)) + "}"
    expected = [
        key + between + ('"new"' if top else value) for (key, between, value), top in zip(items, mine, strict=True)
    ]
    read(body.encode())
    if sum(mine) <= MAX_MODELS:
        assert splice(body.encode(), "new").decode() == "{" + ",".join(expected) + "}"
    else:
        with pytest.raises(BodyFault):
            splice(body.encode(), "new")


@pytest.mark.parametrize("filling", [b'"\\"\\""', b"[]", b"{}", b'""', b'{"model":1}'])
@pytest.mark.parametrize("more", [b"", b',"x":{"model":"y"}'])
def test_a_large_body_does_not_stop_the_loop(filling, more):
    """RTR-20: every stream of a worker waits meanwhile. Token by token in Python this took seconds."""
    body = b'{"model":"m"' + more + b',"y":[' + b",".join([filling] * (12_000_000 // len(filling))) + b"]}"
    read(body)
    began = time.process_time()
    assert splice(body, "new").startswith(b'{"model":"new"')
    assert time.process_time() - began < 1.0


def test_too_many_places_are_refused():
    """RTR-13: what would have to be looked at again and again."""
    body = b'{"model":"m","y":[' + b",".join([b'{"model":"x"}'] * (MAX_PLACES + 1)) + b"]}"
    read(body)
    with pytest.raises(BodyFault) as caught:
        splice(body, "new")
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b'{"model":"a"} x', "invalid_json", None),
        (b'{"model":"a",}', "invalid_json", None),
        (b'\xef\xbb\xbf{"model":"a"}', "invalid_json", None),
        (b'{"model":"a\xff"}', "invalid_json", None),
        (b'{"model":"a","x":' + b"[" * 100000 + b"]" * 100000 + b"}", "invalid_json", None),
        (b"[]", "invalid_request", None),
        (b'"model"', "invalid_request", None),
        (b"{}", "missing_model", "model"),
        (b'{"model":""}', "missing_model", "model"),
        (b'{"model":7}', "invalid_request", "model"),
        (b'{"model":null}', "invalid_request", "model"),
        (b'{"model":"a","stream":"yes"}', "invalid_request", "stream"),
    ],
)
def test_what_cannot_be_routed_is_told(body, code, param):
    """RTR-02: each fault of a body has its code and, where there is one, the parameter."""
    with pytest.raises(BodyFault) as caught:
        read(body)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_stream_flag_of_null_is_no_stream():
    """RTR-01: SDKs send null for what was not set."""
    assert not read(b'{"model":"a","stream":null}').stream
    assert read(b'{"stream":true,"model":"a"}').stream
