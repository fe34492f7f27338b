"""What clients see: the official client, the router, real llama-server (RTR-01, RTR-02, RTR-11, RTR-12)."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import requests

from tests.gguf import REPLY
from tests.harness import Cluster, until
from tests.harness.models import sim_model
from tests.harness.streams import OpenStream

QUESTION: list[Any] = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def serving(
    tmp_path_factory: pytest.TempPathFactory, llama_engines: dict[str, Any], models: dict[str, Any]
) -> Iterator[tuple[Cluster, str]]:
    """One installation for the tests of this module, which only ask; and a key."""
    catalog = {
        "tiny": {**models["tiny"], "aliases": ["small"]},
        "endless": models["endless"],
        "simulated": sim_model("--loop", "--decode-rate", "30"),
        "silent": sim_model("--ttft", "60"),
    }
    with Cluster(tmp_path_factory.mktemp("requests"), catalog, engines=llama_engines) as cluster:
        cluster.start()
        yield cluster, cluster.serve("tiny", "endless", "simulated", ready=("silent",))


@pytest.fixture
def client(serving: tuple[Cluster, str]) -> openai.OpenAI:
    """The official client with the key."""
    cluster, key = serving
    return cluster.client(key)


def test_chat_and_completion(client: openai.OpenAI) -> None:
    """RTR-01: whole answers of the real engine, under the model's name and its alias."""
    for name in ("tiny", "small"):
        chat = client.chat.completions.create(model=name, messages=QUESTION)
        assert str(chat.choices[0].message.content).strip() == REPLY
        assert chat.choices[0].finish_reason == "stop"
        assert chat.usage is not None
        assert chat.usage.completion_tokens > 10
    text = client.completions.create(model="tiny", prompt="Well:", max_tokens=3)
    assert text.choices[0].text.strip() == " ".join(REPLY.split()[:3])
    assert text.choices[0].finish_reason == "length"


def test_stream_has_usage_only_when_asked(client: openai.OpenAI) -> None:
    """RTR-09, RTR-10: every piece arrives, once, in order; the usage chunk only on request."""
    plain = list(client.chat.completions.create(model="tiny", messages=QUESTION, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in plain).strip() == REPLY
    assert all(chunk.usage is None and chunk.choices for chunk in plain)
    assert len(plain) > 10
    counted = list(
        client.chat.completions.create(
            model="tiny", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
    )
    assert counted[-1].choices == []
    assert counted[-1].usage is not None
    assert counted[-1].usage.completion_tokens > 10
    assert sum(chunk.usage is not None for chunk in counted) == 1
    pieces = client.completions.create(model="tiny", prompt="Well:", stream=True, max_tokens=5)
    assert "".join(c.choices[0].text for c in pieces).strip() == " ".join(REPLY.split()[:5])


def test_stream_ends_with_done_in_raw_bytes(serving: tuple[Cluster, str]) -> None:
    """RTR-09: the client's own parser is forgiving; the bytes must be right too."""
    cluster, key = serving
    answer = requests.post(
        f"{cluster.router_url}/v1/chat/completions",
        json={"model": "tiny", "messages": QUESTION, "stream": True},
        headers={"Authorization": f"Bearer {key}"},
        timeout=10,
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.strip().split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    assert '"usage"' not in answer.text or '"usage":null' in answer.text


def test_list_of_models(client: openai.OpenAI) -> None:
    """RTR-01: what may be asked for, and one of them."""
    assert {"tiny", "endless", "simulated"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("tiny").id == "tiny"


def test_wrong_key_is_401(serving: tuple[Cluster, str]) -> None:
    """RTR-02: wrong, missing and revoked keys; in OpenAI's shape, and nothing of the key comes back."""
    cluster, _ = serving
    wrong = "sk-llmgw-" + "A" * 32
    with pytest.raises(openai.AuthenticationError) as caught:
        cluster.client(wrong).chat.completions.create(model="tiny", messages=QUESTION)
    assert caught.value.code == "invalid_api_key"
    assert wrong not in str(caught.value)
    bare = requests.post(f"{cluster.router_url}/v1/chat/completions", json={}, timeout=10)
    assert bare.status_code == 401
    assert bare.json()["error"]["code"] == "invalid_api_key"
    assert requests.get(f"{cluster.router_url}/v1/models", timeout=10).status_code == 401


def test_unknown_model_is_404(client: openai.OpenAI) -> None:
    """RTR-02: 404 ``model_not_found``, told with the name asked for."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    assert "no-such-model" in str(caught.value)


def test_engines_own_refusal_is_passed_on(client: openai.OpenAI) -> None:
    """Case 13: the engine's answer about the request itself reaches the client as it is."""
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        client.completions.create(model="tiny", prompt="word " * 3000, max_tokens=1)


def test_client_abort_reaches_the_engine(serving: tuple[Cluster, str], client: openai.OpenAI) -> None:
    """RTR-11: llama-server's own list of slots shows the slot busy, then free within a second.

    A router that reads on after its client left would keep the slot busy for the minutes
    that the endless answer takes.
    """
    cluster, _ = serving
    head = {"Authorization": f"Bearer {cluster.engine_key(cluster.engine_pid('endless'))}"}

    def busy() -> int:
        slots = requests.get(f"{cluster.engine_url('endless')}/slots", headers=head, timeout=5).json()
        return sum(slot["is_processing"] for slot in slots)

    until(lambda: busy() == 0, 5, "no slot is busy before the test")
    stream = OpenStream(client, "endless", max_tokens=10_000)
    stream.goes_on(3)
    assert busy() == 1
    stream.close()
    until(lambda: busy() == 0, 2, "the slot is free after the client left")


@pytest.mark.parametrize("streamed", [True, False])
def test_client_abort_in_silent_prefill_reaches_the_engine(serving: tuple[Cluster, str], streamed: bool) -> None:
    """Case 3: the client leaves before the first byte of the answer, which no write can notice.

    By the simulated engine, which works on a request for a minute before its first token and
    sees its client leave; llama-server b10068 works on to the end of an answer that is not
    streamed, whoever left.
    """
    cluster, key = serving
    url = cluster.engine_url("silent")

    def state() -> dict[str, Any]:
        return dict(requests.get(f"{url}/sim/state", timeout=5).json())

    aborted = state()["aborted"]
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", cluster.router_port, timeout=20)
    body = json.dumps({"model": "silent", "prompt": "x", "stream": streamed})
    connection.request("POST", "/v1/completions", body, head)
    until(lambda: state()["active"] == 1, 5, "the engine works on it")
    connection.close()
    until(lambda: state()["active"] == 0, 1.5, "the slot is free after the client left")
    assert state()["aborted"] == aborted + 1


def test_clients_key_never_reaches_the_engine(serving: tuple[Cluster, str], client: openai.OpenAI) -> None:
    """RTR-12, case 9: the engine saw its own key on every request, and no other."""
    cluster, _ = serving
    client.completions.create(model="simulated", prompt="x", max_tokens=1)
    state = requests.get(f"{cluster.engine_url('simulated')}/sim/state", timeout=5).json()
    assert state["credentials"]["engine-key"] > 0
    assert state["credentials"]["other"] == state["credentials"]["absent"] == 0
    assert state["last_headers"].count("authorization") == 1
    assert "cookie" not in state["last_headers"]


def test_engine_refuses_whoever_lacks_its_key(serving: tuple[Cluster, str]) -> None:
    """ENG-03: the engine's port is no way round the router."""
    cluster, key = serving
    for model in ("tiny", "simulated"):
        for credential in ({}, {"Authorization": f"Bearer {key}"}):
            answer = requests.post(
                f"{cluster.engine_url(model)}/v1/completions", json={"prompt": "x"}, headers=credential, timeout=5
            )
            assert answer.status_code == 401


def test_revoked_key_stops_working(serving: tuple[Cluster, str]) -> None:
    """RTR-12: revocation is effective within one poll."""
    cluster, _ = serving
    made = cluster.llmgw_json("keys", "create", "short-lived")
    client = cluster.client(made["key"])
    until(lambda: cluster.answers(client, "tiny"), 5, "the new key works")
    cluster.llmgw("keys", "revoke", made["id"])

    def refused() -> bool:
        with pytest.raises(openai.AuthenticationError):
            client.completions.create(model="tiny", prompt="x", max_tokens=1)
        return True

    def tried() -> bool:
        try:
            return refused()
        except BaseException as error:  # pytest.raises fails by an exception that is not an AssertionError
            raise AssertionError(str(error)) from error

    until(tried, 5, "the revoked key is refused")
