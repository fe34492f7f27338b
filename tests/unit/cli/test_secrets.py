"""``ctl secrets``: which generations there are, and why older ones are kept (SEC-08)."""

import responses
from click.testing import CliRunner, Result

from llmgw.cli import main

URL = "http://127.0.0.1:7000"
GENERATIONS = [
    {
        "id": "2-9f3a61c0",
        "state": "current",
        "created_at": "2026-11-29T18:20:11+00:00",
        "created_by": "ada",
        "replicas": 1,
    },
    {
        "id": "1-04be77d2",
        "state": "old",
        "created_at": "2026-11-02T09:14:50+00:00",
        "replicas": 2,
        "kept": "2 replicas still run with it: llmgw ctl restart --stale",
    },
]
SECRET = {"name": "engine", "generation": "2-9f3a61c0", "version": 2, "generations": GENERATIONS}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["--api", URL, "ctl", "secrets", *arguments], env={"COLUMNS": "80"})


@responses.activate
def test_generations_are_listed_with_why_they_are_kept() -> None:
    """SEC-08: newest first; the first one was made by nobody in particular."""
    responses.get(f"{URL}/api/v1/secrets", json={"secrets": [SECRET]})
    done = run("list")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split()[:5] == ["SECRET", "GENERATION", "STATE", "CREATED", "REPLICAS"]
    assert lines[1].split()[:3] == ["engine", "2-9f3a61c0", "current"] and "ada" in done.output
    assert "the first start" in done.output and "llmgw ctl restart --stale" in done.output
    assert all(len(line) <= 80 for line in lines)


@responses.activate
def test_a_rotation_says_what_to_do_next() -> None:
    """SEC-08: what runs keeps its key until it is restarted."""
    responses.post(f"{URL}/api/v1/secrets/engine/rotate", json=SECRET)
    done = run("rotate", "engine")
    assert done.output == (
        "engine is at generation 2-9f3a61c0; 2 replicas still run with an older one, each until it is replaced: "
        "llmgw ctl restart --stale\n"
    )
    alone = {**SECRET, "generations": GENERATIONS[:1]}
    responses.replace(responses.POST, f"{URL}/api/v1/secrets/engine/rotate", json=alone)
    assert run("rotate", "engine").output == "engine is at generation 2-9f3a61c0\n"
