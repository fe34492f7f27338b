"""The tests' own model is one that the real engine runs and that says what it was made to say."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests

from llmgw.demo.engine import Installed
from tests.gguf import REPLY, write_gguf
from tests.harness import until
from tests.harness.ports import PortBlock


@pytest.mark.parametrize("loop", [False, True])
def test_llama_server_says_the_reply(llama: Installed, tmp_path: Path, loop: bool) -> None:
    """Whatever the prompt and the sampler; a looping one goes on until it is stopped."""
    weights = write_gguf(tmp_path / "m.gguf", "one two three", loop=loop)
    assert weights.stat().st_size < 1_000_000
    assert write_gguf(tmp_path / "again.gguf", "one two three", loop=loop).read_bytes() == weights.read_bytes()
    (binary,) = llama.venv.glob(f"lib/python3.*/site-packages/{llama.binary}")
    block = PortBlock()
    url = f"http://127.0.0.1:{block.first}"
    log = (tmp_path / "log").open("wb")
    command = [str(binary), "-m", str(weights), "--port", str(block.first), "-t", "1", "-c", "2048", "--no-ui"]
    process = subprocess.Popen(command, stdout=log, stderr=log)

    def up() -> bool:
        assert process.poll() is None
        try:
            return requests.get(f"{url}/health", timeout=5).ok
        except requests.ConnectionError:
            return False

    def ask(**body: Any) -> tuple[str, str]:
        answer = requests.post(f"{url}/v1/completions", json={"max_tokens": 8, **body}, timeout=20).json()
        return answer["choices"][0]["text"].strip(), answer["choices"][0]["finish_reason"]

    try:
        until(up, 15)
        expected = ("one two three one two three one two", "length") if loop else ("one two three", "stop")
        for prompt in ("", "x", "Wie geht's? äöü", "one two three four", "\n\n"):
            assert ask(prompt=prompt, temperature=1.9, top_k=0, top_p=1.0) == expected, prompt
    finally:
        process.kill()
        process.wait()
        log.close()
        block.close()


def test_words_must_differ(tmp_path: Path) -> None:
    """A state per word: the same word twice would have two successors."""
    with pytest.raises(ValueError, match="no word twice"):
        write_gguf(tmp_path / "m.gguf", "one two one")
    assert len(set(REPLY.split())) == len(REPLY.split())
