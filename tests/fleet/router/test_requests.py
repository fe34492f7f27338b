"""Requests as files: smuggling and malformed heads (RTR-13), and odd ones that are right.

A file's first line holds the answer expected, the second the reason for the case. In the
rest line breaks are ignored and escapes are read as in Python.
"""

import contextlib
from pathlib import Path

import pytest

from llmgw.wire.routing import RoutedModel
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, Router, endpoint, table_of

FILES = Path(__file__).parent / "requests"


def load(file):
    expected, _, text = file.read_text().split("\n", 2)
    status, _, code = expected.removeprefix("# ").partition(" ")
    raw = text.replace("\n", "").encode().decode("unicode_escape").encode("latin-1")
    return int(status), code, raw.replace(b"@KEY@", KEY.encode())


@pytest.fixture(scope="module")
def upstream():
    fake = FakeUpstream()
    yield fake
    fake.stop()


@pytest.fixture(scope="module")
def router(tmp_path_factory, upstream):
    model = RoutedModel(name="m", state="ready", endpoints=(endpoint(upstream),))
    with Router(tmp_path_factory.mktemp("router"), table_of(model)) as one:
        yield one


def names(kind):
    return sorted(file.name for file in (FILES / kind).iterdir())


@pytest.mark.parametrize("name", names("refused"))
def test_refused(name, router, upstream):
    """RTR-13: answered with an error and the connection closed; no engine sees any of it."""
    status, code, raw = load(FILES / "refused" / name)
    seen = len(upstream.received)
    with router.connect() as client:
        client.send(raw)
        answer = client.answer()
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["connection"] == "close"
        # What follows on the connection is not read as a request.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.post('{"model":"m","messages":[]}')
        while client.more():
            continue
        assert b"HTTP/1.1 200" not in client.buffer
    assert len(upstream.received) == seen


@pytest.mark.parametrize("name", names("served"))
def test_served(name, router, upstream):
    """RTR-13: strict does not mean deaf."""
    status, code, raw = load(FILES / "served" / name)
    with router.connect() as client:
        client.send(raw)
        answer = client.answer()
        assert answer.status == status
        if code:
            assert answer.code == code
            return
        assert answer.json["choices"]
    assert upstream.received[-1].body == b'{"model":"m","messages":[]}'


def test_files_are_read():
    """TST: a directory that lost its files would pass."""
    assert len(names("refused")) > 45
    assert len(names("served")) > 10
