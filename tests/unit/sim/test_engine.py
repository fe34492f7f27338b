"""The simulated engine, each dialect as its real engine was seen to behave (ENG-07)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

KEY = "ek-0123456789abcdef0123456789abcdef"
DIALECTS = ("vllm", "sglang", "llamacpp")


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The condition's first true value; fails when there is none in time."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, "not in time"
        time.sleep(0.01)


class Sim:
    """A simulated engine of a test."""

    def __init__(self, folder: Path, *arguments: str, key: str = "", http: bool = True) -> None:
        self.log = folder / f"sim-{time.monotonic_ns()}.log"
        environment = {name: value for name, value in os.environ.items() if name != "LLMGW_SIM_API_KEY"}
        if key:
            environment["LLMGW_SIM_API_KEY"] = key
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "llmgw.sim.engine", "--port", "0", *arguments]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        if http:
            self.url = f"http://127.0.0.1:{wait_for(self._port)}"

    def _port(self) -> str | None:
        assert self.process.poll() is None, self.output
        ports = [part[5:] for line in self.output.splitlines() for part in line.split() if part.startswith("port=")]
        return ports[0] if "listening" in self.output else None

    @property
    def output(self) -> str:
        return self.log.read_text()

    def state(self) -> dict[str, Any]:
        return dict(requests.get(f"{self.url}/sim/state", timeout=5).json())

    def post(self, path: str = "/v1/completions", key: str = "", **body: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return requests.post(self.url + path, json={"prompt": "hi", **body}, headers=headers, timeout=10)

    def stream(self, **body: Any) -> requests.Response:
        """An open stream, after its first bytes came."""
        answer = requests.post(
            f"{self.url}/v1/completions", json={"prompt": "hi", "stream": True, **body}, stream=True, timeout=10
        )
        assert answer.status_code == 200, answer.text
        assert answer.raw.read(5)
        return answer

    def term(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Sim]]:
    """Starts simulated engines that end with the test."""
    with contextlib.ExitStack() as stack:

        def run(*arguments: str, **options: Any) -> Sim:
            sim = Sim(tmp_path, *arguments, **options)
            stack.callback(sim.end)
            return sim

        yield run


@pytest.fixture(scope="module", params=DIALECTS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Sim]]:
    """One engine per dialect, with a key."""
    folder = tmp_path_factory.mktemp(request.param)
    sim = Sim(folder, "--dialect", request.param, "--model", "m", "--context", "64", key=KEY)
    wait_for(lambda: sim.state()["ready"])
    yield request.param, sim
    sim.end()


def test_openai_client_gets_the_same_answer_streamed_and_whole(guarded: tuple[str, Sim]) -> None:
    """ENG-07: deterministic reply by the official client; usage only where asked for."""
    _, sim = guarded
    client = openai.OpenAI(base_url=f"{sim.url}/v1", api_key=KEY, max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "what are you?"}]
    whole = client.chat.completions.create(model="m", messages=messages)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(str(whole.choices[0].message.content).split())
    plain = list(client.chat.completions.create(model="m", messages=messages, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in plain)
    assert "".join(c.choices[0].delta.content or "" for c in plain) == whole.choices[0].message.content
    counted = list(
        client.chat.completions.create(
            model="m", messages=messages, stream=True, max_tokens=3, stream_options={"include_usage": True}
        )
    )
    assert counted[-1].choices == []
    assert counted[-1].usage is not None
    assert counted[-1].usage.completion_tokens == 3
    assert counted[-2].choices[0].finish_reason == "length"
    text = client.completions.create(model="m", prompt="hi", max_tokens=2).choices[0].text
    assert str(whole.choices[0].message.content).startswith(text)
    assert [model.id for model in client.models.list()] == ["m"]


OPEN = {
    "vllm": ["/health", "/metrics", "/version", "/load"],
    "sglang": ["/health", "/metrics"],
    "llamacpp": ["/health", "/v1/models"],
}
SHUT = {"vllm": ["/v1/models"], "sglang": ["/v1/models"], "llamacpp": ["/metrics", "/slots", "/props"]}


def test_key_guards_the_paths_the_real_engine_guards(guarded: tuple[str, Sim]) -> None:
    """ENG-03: open and guarded paths differ by engine; the body of 401 does too."""
    dialect, sim = guarded
    for path in OPEN[dialect]:
        assert requests.get(sim.url + path, timeout=5).status_code == 200, path
    for path in SHUT[dialect]:
        assert requests.get(sim.url + path, timeout=5).status_code == 401, path
        right = requests.get(sim.url + path, timeout=5, headers={"Authorization": f"Bearer {KEY}"})
        assert right.status_code == 200, path
    wrong = sim.post(key="ek-wrong")
    assert wrong.status_code == 401
    if dialect == "llamacpp":
        assert wrong.json() == {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}
    else:
        assert wrong.json() == {"error": "Unauthorized"}
    assert KEY not in sim.output


def test_faulty_requests_get_the_engines_own_errors(guarded: tuple[str, Sim]) -> None:
    """ENG-07: llama.cpp says 500 to bad JSON and serves any model name; vLLM does neither."""
    dialect, sim = guarded
    head = {"Authorization": f"Bearer {KEY}"}
    bad = requests.post(f"{sim.url}/v1/chat/completions", data=b'{"model": ', headers=head, timeout=5)
    assert bad.status_code == (500 if dialect == "llamacpp" else 400)
    assert sim.post("/v1/chat/completions", KEY, model="m").status_code == 400
    assert sim.post(key=KEY, model="other").status_code == (404 if dialect == "vllm" else 200)
    long = sim.post(key=KEY, prompt="word " * 200)
    assert long.status_code == 400
    if dialect == "llamacpp":
        assert long.json()["error"]["type"] == "exceed_context_size_error"
    embeddings = sim.post("/v1/embeddings", KEY, input="text")
    assert embeddings.status_code == (501 if dialect == "llamacpp" else 404)
    assert sim.post("/v1/nothing", KEY).status_code == 404


METRICS = {
    "vllm": ['vllm:num_requests_running{engine="0",model_name="m"} 0', "vllm:kv_cache_usage_perc", "_bucket{"],
    "sglang": ['sglang:num_running_reqs{model_name="m"} 0', "sglang:num_queue_reqs", "sglang:token_usage"],
    "llamacpp": ["llamacpp:requests_processing 0", "llamacpp:requests_deferred 0", "predicted_tokens_seconds inf"],
}


def test_metrics_have_the_engines_names(guarded: tuple[str, Sim]) -> None:
    """RTR-06: names of each engine; llama.cpp's average may be inf."""
    dialect, sim = guarded
    assert sim.post(key=KEY).status_code == 200
    page = requests.get(f"{sim.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=5).text
    for expected in METRICS[dialect]:
        assert expected in page


def test_state_tells_whose_credential_came_but_not_which(guarded: tuple[str, Sim]) -> None:
    """RTR-12: lets a test see that a client's Authorization never reaches an engine."""
    _, sim = guarded
    before = sim.state()["credentials"]
    sim.post(key=KEY)
    sim.post(key="sk-llmgw-somebody")
    after = sim.state()
    assert after["credentials"]["engine-key"] == before["engine-key"] + 1
    assert after["credentials"]["other"] == before["other"] + 1
    assert "authorization" in after["last_headers"]
    assert "somebody" not in json.dumps(after)


def test_loading_is_refused_then_503_or_refused_until_ready(start: Callable[..., Sim]) -> None:
    """AGT-08: vLLM refuses connections until ready, the others answer 503 on the way."""
    for dialect in ("llamacpp", "sglang"):
        sim = start("--dialect", dialect, "--load-time", "0.5")
        health = requests.get(f"{sim.url}/health", timeout=5)
        assert health.status_code == 503
        if dialect == "llamacpp":
            loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
            assert health.json() == sim.post().json() == loading
        url = sim.url
        wait_for(lambda: requests.get(f"{url}/health", timeout=5).status_code == 200)  # noqa: B023 - awaited here
    vllm = start("--dialect", "vllm", "--load-time", "0.5")
    assert requests.get(f"{vllm.url}/health", timeout=5).status_code == 200
    assert time.monotonic() - vllm.started > 0.5


def test_slots_and_queue(start: Callable[..., Sim]) -> None:
    """ENG-07: one runs, one waits, the next is refused; the freed slot goes to the waiting one."""
    sim = start("--slots", "1", "--queue-limit", "1", "--loop", "--decode-rate", "50")
    first = sim.stream()
    with socket.create_connection(("127.0.0.1", int(sim.url.rpartition(":")[2]))) as waiting:
        body = b'{"prompt": "hi", "max_tokens": 1}'
        waiting.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_for(lambda: sim.state()["queued"] == 1)
        page = requests.get(f"{sim.url}/metrics", timeout=5).text
        assert 'num_requests_waiting{engine="0",model_name="sim"} 1' in page
        assert sim.post().status_code == 503
        first.close()
        waiting.settimeout(20)  # the first would go on for ever
        assert b"200 OK" in waiting.recv(4096)
    assert sim.state()["rejected"] == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_client_that_leaves_frees_its_slot_at_once(start: Callable[..., Sim], streamed: bool) -> None:
    """RTR-11: also in silent prefill, where nothing is written that could fail.

    Without the watch on the connection the slot would stay taken for the minute of prefill.
    """
    sim = start("--ttft", "60", "--slots", "1")
    with socket.create_connection(("127.0.0.1", int(sim.url.rpartition(":")[2]))) as client:
        body = json.dumps({"prompt": "hi", "stream": streamed}).encode()
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_for(lambda: sim.state()["active"] == 1)
    left = time.monotonic()
    wait_for(lambda: sim.state()["active"] == 0)
    assert time.monotonic() - left < 10  # 0.1 s, and the time of the questions
    assert sim.state()["aborted"] == 1
    assert "llmgw_sim_requests_aborted_total 1" in requests.get(f"{sim.url}/metrics", timeout=5).text


def test_kv_cache_bounds_what_runs_together(start: Callable[..., Sim]) -> None:
    """ENG-07: a request waits until its tokens fit, and usage is a share of 1."""
    sim = start("--slots", "8", "--kv-tokens", "150", "--loop", "--decode-rate", "30")
    stream = sim.stream(max_tokens=100)
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(sim.post(max_tokens=50).status_code))
    waiting.start()
    wait_for(lambda: sim.state()["queued"] == 1)
    page = requests.get(f"{sim.url}/metrics", timeout=5).text
    assert 'kv_cache_usage_perc{engine="0",model_name="sim"} 0.68' in page
    stream.close()
    waiting.join(30)
    assert answers == [200]
    assert sim.state()["kv_used"] == 0


def test_times_are_kept(start: Callable[..., Sim]) -> None:
    """ENG-07: time to first token and tokens a second."""
    sim = start("--ttft", "0.2", "--decode-rate", "50", "--loop")
    began = time.monotonic()
    sim.post(max_tokens=11)
    took = time.monotonic() - began
    assert 0.4 <= took < 4


def test_sigterm_by_dialect(start: Callable[..., Sim]) -> None:
    """AGT-06: vLLM ends streams with "abort", SGLang finishes them, llama.cpp leaves them
    hanging until its next ping; a second SIGTERM ends it at once."""
    vllm = start("--dialect", "vllm", "--loop", "--decode-rate", "20")
    stream = vllm.stream()
    vllm.term()
    rest = stream.raw.read()
    assert b'"finish_reason":"abort"' in rest
    assert rest.endswith(b"[DONE]\n\n\r\n0\r\n\r\n") or b"[DONE]" in rest
    assert vllm.process.wait(20) == 0

    sglang = start("--dialect", "sglang", "--loop", "--decode-rate", "20")
    stream = sglang.stream(max_tokens=10)
    sglang.term()
    assert b'"finish_reason":"length"' in stream.raw.read()
    assert sglang.process.wait(20) == 0

    llamacpp = start("--dialect", "llamacpp", "--loop", "--decode-rate", "20", "--sse-ping-interval", "0.6")
    stream = llamacpp.stream()
    llamacpp.term()
    told = time.monotonic()
    assert b"[DONE]" not in stream.raw.read()
    assert time.monotonic() - told > 0.3
    assert llamacpp.process.wait(20) == 0

    twice = start("--dialect", "llamacpp", "--loop", "--decode-rate", "20")
    stream = twice.stream()
    twice.term()
    wait_for(lambda: "stopping" in twice.output)
    twice.term()
    assert twice.process.wait(20) == 1


def test_failure_modes(start: Callable[..., Sim]) -> None:
    """ENG-07: each way to fail that an agent or a router must survive."""
    exits = start("--fail", "exit-on-start=3", http=False)
    assert exits.process.wait(10) == 3
    assert "failed to load" in exits.output

    hangs = start("--fail", "hang-on-start", "--dialect", "llamacpp")
    assert requests.get(f"{hangs.url}/health", timeout=5).status_code == 503

    crashes = start("--fail", "crash-after=2")
    assert [crashes.post().status_code for _ in range(2)] == [200, 200]
    assert crashes.process.wait(5) == -signal.SIGABRT

    at_once = start("--fail", "crash-on-request")
    with pytest.raises(requests.ConnectionError):
        at_once.post()
    assert at_once.process.wait(5) == -signal.SIGABRT

    cut = start("--fail", "cut-stream-after=3", "--fail", "ignore-sigterm")
    answer = requests.post(f"{cut.url}/v1/completions", json={"prompt": "x", "stream": True}, stream=True, timeout=5)
    received = b""
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        for piece in answer.iter_content(None):
            received += piece
    assert received.count(b"data: ") == 3
    cut.term()
    wait_for(lambda: "ignored" in cut.output)
    assert cut.state()["active"] == 0

    errs = start("--fail", "error=500")
    assert errs.post().status_code == 500
    assert errs.post("/v1/completions", stream=True).status_code == 500


def test_taken_port_ends_the_engine_at_once(start: Callable[..., Sim]) -> None:
    """AGT-05: a port in use is exit status 1 within the load, with words."""
    for dialect in ("vllm", "llamacpp"):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            sim = start("--port", port, "--dialect", dialect, http=False)
            assert sim.process.wait(10) == 1
            assert "cannot listen" in sim.output


def test_ranks_join_and_the_head_notices_a_loss_at_the_next_request(start: Callable[..., Sim]) -> None:
    """REC-02, REC-03: no HTTP before all ranks are there; a lost rank leaves /health at 200,
    the next request fails and ends the head; a worker stays when its head is gone."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = f"127.0.0.1:{free.getsockname()[1]}"
    common = ("--nnodes", "2", "--rendezvous", meeting)
    worker = start(*common, "--node-rank", "1", http=False)
    head = start(*common)
    assert requests.get(f"{head.url}/health", timeout=5).status_code == 200
    assert "listening" not in worker.output
    worker.end()
    wait_for(lambda: "rank lost" in head.output)
    assert requests.get(f"{head.url}/health", timeout=5).status_code == 200
    assert head.post().status_code == 500
    assert head.process.wait(5) != 0

    head = start(*common, http=False)
    wait_for(lambda: "waiting for the other ranks" in head.output)
    head.term()
    wait_for(lambda: "does not react" in head.output)
    worker = start(*common, "--node-rank", "1", http=False)
    wait_for(lambda: "ready" in head.output)
    head.end()
    wait_for(lambda: "still here" in worker.output)
    assert worker.process.poll() is None
    worker.term()
    assert worker.process.wait(5) == 0


def test_command_line_says_what_is_wrong() -> None:
    """CLI-01: exit status 2 and words; --help lists the failure modes; no key option exists."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "llmgw.sim.engine", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)

    wrong = run("--fail", "explode")
    assert wrong.returncode == 2
    assert "explode" in wrong.stderr
    assert "crash-after" in wrong.stderr
    assert run("--nnodes", "2").returncode == 2
    help_text = run("--help").stdout
    assert "cut-stream-after" in help_text
    assert "LLMGW_SIM_API_KEY" in help_text
    assert "--key" not in help_text
    assert run("--version").stdout.startswith("llmgw-sim ")


def test_embeddings_are_a_function_of_the_text(start: Callable[..., Sim]) -> None:
    """RTR-01: embeddings where they are switched on."""
    sim = start("--embeddings")
    client = openai.OpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0)
    one, two, again = (
        client.embeddings.create(model="sim", input=text).data[0].embedding for text in ("a b", "c", "a b")
    )
    assert one == again != two
    assert abs(sum(value * value for value in one) - 1) < 1e-3
