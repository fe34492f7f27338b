"""The simulator's command: replay of one seed, ranges, and what a failure prints."""

import re

import pytest
from click.testing import CliRunner

from llmgw.sim.run import main
from tests.sim.mutations.replicas import adopts_nothing


def _run(*arguments: str):
    return CliRunner().invoke(main, arguments)


def test_a_seed_is_replayed_with_a_readable_trace():
    """Each line says when, who and what."""
    result = _run("--seed", "1", "--storm", "60", "--trace")
    assert result.exit_code == 0, result.output
    *trace, summary = result.output.splitlines()
    assert any("agent n1" in line and "boots" in line for line in trace)
    assert summary.startswith("seed 1: ok;")


def test_a_range_sums_up_faults_by_kind():
    """How often each kind was injected, and in how many seeds."""
    result = _run("--seeds", "0:3", "--jobs", "1", "--storm", "120", "--only", "engine-crash", "--only", "reset")
    assert result.exit_code == 0, result.output
    assert "engine-crash" in result.output
    assert "connection-reset" in result.output
    assert "3 of 3 seeds passed" in result.output


def test_a_range_tells_faults_of_leadership():
    """First in the table; and how often somebody began to lead."""
    result = _run("--seeds", "0:4", "--jobs", "1", "--storm", "200", "--only", "control-crash", "--only", "reset")
    assert result.exit_code == 0, result.output
    assert re.search(r"leadership .* leader-crash", result.output)
    assert result.output.index("leader-crash") < result.output.index("connection-reset")
    begun = re.search(r"a control plane began to lead (\d+) times", result.output)
    assert begun is not None and int(begun[1]) > 4
    assert re.search(r"epoch-reused .* [1-9]\d* +│ [1-4] ", result.output), "how often it could have been broken"


def test_a_failure_tells_invariant_events_and_replay(monkeypatch):
    """What a person needs to go on, and exit status 1."""
    adopts_nothing(monkeypatch)
    result = _run("--seeds", "0:4", "--jobs", "1", "--only", "agent-crash")
    assert result.exit_code == 1
    assert "broke the invariant no-decision" in result.output
    assert "VIOLATION" in result.output
    (replay, *_) = [line for line in result.output.splitlines() if line.startswith("replay: ")]
    assert replay.startswith("replay: python -m llmgw.sim.run --seed ")
    seed = replay.split()[5]
    again = _run(*replay.removeprefix("replay: python -m llmgw.sim.run ").split())
    assert again.exit_code == 1
    assert f"seed {seed}: BROKEN no-decision" in again.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either --seed N or --seeds A:B"),
        (("--seed", "1", "--seeds", "0:2"), "either --seed N or --seeds A:B"),
        (("--seeds", "5"), "not a range of seeds"),
        (("--seeds", "5:2"), "not a range of seeds"),
        (("--seeds", "0:2", "--trace"), "go with --seed"),
        (("--seed", "1", "--only", "earthquake"), "earthquake"),
    ],
)
def test_wrong_options_are_told(arguments, message):
    """Exit status 2 and words."""
    result = _run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
