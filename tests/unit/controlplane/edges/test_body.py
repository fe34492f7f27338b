"""Bodies of requests that two readers could take for two things, or that nothing could
store or show (API-04)."""

import json

import pytest

from controlplane.api import body
from controlplane.api.body import MAX_DEPTH, BadBody, read_body


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"name": "one", "name": "two"}', "'name' is given twice in the body: keep one"),
        (b'{"models": [{"a": 1, "\\u0061": 2}]}', "'a' is given twice in the body: keep one"),
        (b'{"max": ' + b"9" * 5000 + b"}", "the body holds a number of 5000 digits: 40 are allowed"),
        (b'{"max": 1e999}', "the body holds a number that is too large: 1e999"),
        (b'{"max": NaN}', "NaN is not a number of JSON: leave it out where it is unknown"),
        (b'{"name": "\\ud800"}', "the body holds text that is not Unicode"),
        (b'{"\\udfff": 1}', "the body holds text that is not Unicode"),
        (b'{"name": "\xff"}', "the body is not UTF-8 text (at byte 10)"),
        (b'{"name":\n', "the body is not valid JSON: Expecting value (line 2, column 1)"),
        (b"[" * 100_000 + b"]" * 100_000, "the body is nested too deeply: 32 levels are allowed"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "the body is nested too deeply: 32 levels are allowed"),
    ],
)
def test_what_is_refused_says_why(data: bytes, words: str) -> None:
    """Each is told with the place or the remedy; none is a fault of ours (500)."""
    with pytest.raises(BadBody) as refused:
        read_body(data)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None, True, "ü\U0001f600"]}, "text", 7, [], json.loads("[" * 32 + "]" * 32)]
)
def test_the_rest_is_read_as_it_is(value: object) -> None:
    """At the limits too."""
    assert read_body(json.dumps(value).encode()) == value


def test_a_long_body_does_not_hold_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: it is read in the threadpool; a short one is not worth a thread."""
    taken: list[int] = []
    monkeypatch.setattr(body, "off_hub", lambda work, data: taken.append(len(data)) or work(data))
    assert read_body(b"[1]") == [1] and taken == []
    long = json.dumps(list(range(10_000))).encode()
    assert read_body(long)[-1] == 9999 and taken == [len(long)]
