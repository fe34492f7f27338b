"""Bodies as large as chats with images are, under the limits a router has when nobody sets any."""

import base64
import json
import random

import pytest

from llmgw.wire.routing import RoutedModel
from router.settings import SETTINGS
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, Router, endpoint, table_of

LIMIT = int(next(setting for setting in SETTINGS.rows if setting.name == "limits.body_bytes").default)


@pytest.fixture(scope="module")
def upstream():
    one = FakeUpstream("m")
    yield one
    one.stop()


@pytest.fixture(scope="module")
def router(tmp_path_factory, upstream):
    model = RoutedModel(name="m", state="ready", endpoints=(endpoint(upstream),), aliases=("eyes",))
    with Router(tmp_path_factory.mktemp("router"), table_of(model)) as one:
        yield one


def chat(image: bytes) -> bytes:
    """A chat with an image in it, as clients send it."""
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return json.dumps({"model": "eyes", "messages": [{"role": "user", "content": content}]}).encode()


def test_an_image_reaches_the_engine(router, upstream):
    """Case 11, RTR-01, RTR-13: ten megabytes of base64, byte for byte but for the model's name."""
    body = chat(random.Random(1).randbytes(10_000_000))
    with router.connect() as client:
        client.post(body)
        assert client.answer().status == 200
        client.post('{"model":"m","messages":[]}')
        assert client.answer().status == 200
    assert upstream.received[-2].body == body.replace(b'"eyes"', b'"m"', 1)


def test_a_body_too_large_says_so(router, upstream):
    """Case 11, RTR-13: 413 in JSON, announced or not, with the limit in it; the engine sees nothing."""
    seen = len(upstream.received)
    body = chat(b"x" * LIMIT)
    with router.connect() as client:
        client.post(body)
        answer = client.answer()
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert answer.headers["content-type"] == "application/json"
    assert str(LIMIT) in answer.json["error"]["message"].replace(",", "")
    with router.connect() as client:
        client.send(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Length: {LIMIT + 1}\r\nExpect: 100-continue\r\n\r\n"
        )
        assert client.answer().code == "body_too_large"
    assert len(upstream.received) == seen
