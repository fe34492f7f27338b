"""The simulated engine beside the real llama-server: the same requests, the same answers (ENG-07, ENG-08)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from llmgw.demo.engine import Installed
from tests.gguf import write_gguf
from tests.harness import until
from tests.harness.ports import PortBlock

KEY = "ek-" + "5" * 40

REQUESTS: list[tuple[str, str, bool, Any]] = [
    ("GET", "/health", False, None),
    ("GET", "/v1/models", False, None),
    ("GET", "/metrics", False, None),
    ("GET", "/metrics", True, None),
    ("GET", "/slots", False, None),
    ("GET", "/slots", True, None),
    ("GET", "/props", False, None),
    ("GET", "/props", True, None),
    ("GET", "/nothing", True, None),
    ("POST", "/v1/chat/completions", False, {"messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/v1/chat/completions", True, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    ("POST", "/v1/chat/completions", True, {"messages": [{"role": "user", "content": "hi"}], "model": "other"}),
    ("POST", "/v1/chat/completions", True, {}),
    ("POST", "/v1/chat/completions", True, b'{"messages": '),
    ("POST", "/v1/completions", True, {"prompt": "hi", "max_tokens": 2}),
    ("POST", "/v1/completions", True, {"prompt": "word " * 4000, "max_tokens": 2}),
    ("POST", "/v1/completions", True, {"prompt": "hi", "max_tokens": 2, "stream": True}),
    ("POST", "/v1/embeddings", True, {"input": "hi"}),
    ("POST", "/v1/nothing", True, {}),
]


def shape(value: Any) -> Any:
    """The keys of a JSON value that clients go by, without its contents."""
    if isinstance(value, dict):
        return sorted(key for key in value if key in ("choices", "error", "usage", "data", "object", "status"))
    return [shape(item) for item in value[:1]] if isinstance(value, list) else type(value).__name__


def told(url: str, method: str, path: str, with_key: bool, body: Any) -> tuple[Any, ...]:
    """Status, error type and shape of an answer."""
    head = {"Authorization": f"Bearer {KEY}"} if with_key else {}
    data = {"data": body} if isinstance(body, bytes) else {"json": body}
    answer = requests.request(method, url + path, headers=head, timeout=20, **data)
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if kind != "application/json":
        return answer.status_code, kind, answer.text.rstrip().endswith("data: [DONE]")
    value = answer.json()
    error = value.get("error") if isinstance(value, dict) else None
    return answer.status_code, error and error.get("type"), shape(value)


@pytest.fixture(scope="module")
def pair(llama: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, Any]]]:
    """Both engines, running: address and process."""
    folder = tmp_path_factory.mktemp("pair")
    weights = write_gguf(folder / "m.gguf")
    (binary,) = llama.venv.glob(f"lib/python3.*/site-packages/{llama.binary}")
    block = PortBlock()
    ports = {"real": str(block.first), "sim": str(block.first + 1)}
    real = [str(binary), "-m", str(weights), "-c", "2048", "-np", "1", "-t", "1", "--metrics", "--no-ui"]
    sim = [sys.executable, "-m", "llmgw.sim.engine", "--dialect", "llamacpp", "--context", "2048", "--slots", "1"]
    environment = {**os.environ, "LLAMA_API_KEY": KEY, "LLMGW_SIM_API_KEY": KEY}
    started = {}
    for name, command in (("real", real), ("sim", sim)):
        with (folder / name).open("wb") as log:
            process = subprocess.Popen([*command, "--port", ports[name]], stdout=log, stderr=log, env=environment)
        started[name] = (f"http://127.0.0.1:{ports[name]}", process)

    def up(url: str) -> bool:
        try:
            return requests.get(f"{url}/health", timeout=5).ok
        except requests.ConnectionError:
            return False

    try:
        for url, _ in started.values():
            until(lambda url=url: up(url), 15, url)  # type: ignore[misc]
        yield started
    finally:
        for _, process in started.values():
            process.kill()
            process.wait()
        block.close()


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: f"{r[0]} {r[1]} {'key' if r[2] else ''} {str(r[3])[:30]}")
def test_same_answer(pair: dict[str, tuple[str, Any]], request_: tuple[str, str, bool, Any]) -> None:
    """Status, error type and fields are those of the real engine."""
    assert told(pair["sim"][0], *request_) == told(pair["real"][0], *request_)


def test_metric_names_exist_in_the_real_engine(pair: dict[str, tuple[str, Any]]) -> None:
    """RTR-06: no name that llama-server does not have, but for the simulation's own."""
    names = {}
    for name, (url, _) in pair.items():
        page = requests.get(f"{url}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=5).text
        names[name] = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    assert {name for name in names["sim"] if not name.startswith("llmgw_sim_")} <= names["real"]


def test_sigterm_when_idle(pair: dict[str, tuple[str, Any]]) -> None:
    """AGT-06: both end with status 0 at once. (Last test: it ends the engines.)"""
    for _, process in pair.values():
        process.send_signal(signal.SIGTERM)
        assert process.wait(3) == 0
