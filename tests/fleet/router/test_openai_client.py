"""The official client, against a router process and an upstream that answers like an engine."""

import openai
import pytest

from llmgw.wire.routing import RoutedModel
from tests.fakes import upstream as fake
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, Router, endpoint, table_of, until

MESSAGES = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def upstream():
    one = FakeUpstream()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def router(tmp_path_factory, upstream):
    model = RoutedModel(name="m", state="ready", endpoints=(endpoint(upstream),), aliases=("alias",))
    loading = RoutedModel(name="loading", state="loading")
    with Router(tmp_path_factory.mktemp("router"), table_of(model, loading)) as one:
        yield one


@pytest.fixture
def client(router):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{router.port}/v1", api_key=KEY, max_retries=0, timeout=10) as one:
        yield one


def test_chat(client):
    """RTR-01: a chat completion, by name and by alias."""
    for name in ("m", "alias"):
        answer = client.chat.completions.create(model=name, messages=MESSAGES)
        assert answer.choices[0].message.content == fake.REPLY
        assert answer.usage.total_tokens == 21


def test_completion(client):
    """RTR-01: a text completion."""
    assert client.completions.create(model="m", prompt="x").choices[0].text == fake.REPLY


@pytest.mark.parametrize("usage", [False, True])
def test_stream(client, usage):
    """RTR-09: a stream, with the usage chunk only for who asked."""
    options = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "".join(fake.WORDS)
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == ([21] if usage else [])


def test_list(client):
    """RTR-01: the models a key may use."""
    assert [model.id for model in client.models.list()] == ["alias", "loading", "m"]
    assert client.models.retrieve("alias").id == "alias"


def test_wrong_key(client):
    """RTR-12: 401 as the client knows it."""
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="sk-llmgw-wrong").models.list()
    assert caught.value.code == "invalid_api_key"


def test_unknown_model(client):
    """RTR-02: 404 as the client knows it, with the parameter at fault and the request's id."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.request_id.startswith("req-")


def test_a_cut_stream(client, upstream):
    """RTR-09: the client raises, after what had come."""
    upstream.script.append(fake.cut(fake.chunked(next(iter(fake.events("m"))))))
    seen = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
            seen.append(chunk.choices[0].delta.content)
    assert seen == ["Hello"]
    assert caught.value.code == "upstream_error"


def test_retries_obey_the_answer(client, upstream):
    """RTR-02: the client tries again where that helps, and does not where it cannot."""
    patient = client.with_options(max_retries=2)
    upstream.script.append(fake.refuse(503, extra=b"Retry-After: 1\r\n"))
    assert patient.chat.completions.create(model="m", messages=MESSAGES).choices
    with pytest.raises(openai.NotFoundError):
        patient.chat.completions.create(model="nope", messages=MESSAGES)


def test_leaving_a_stream(client, upstream):
    """RTR-11: a client that stops in the middle ends the engine's work."""
    ended = []

    def act(exchange):
        exchange.send(fake.HEAD_STREAM + fake.chunked(next(iter(fake.events("m")))))
        ended.append(exchange.wait_for_end())

    upstream.script.append(act)
    stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert next(iter(stream)).choices
    stream.close()
    assert until(lambda: ended, 5, "the end of the engine's connection") == [True]
