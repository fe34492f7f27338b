"""One seed is one history, byte for byte, whatever process runs it."""

import os
import subprocess
import sys
from pathlib import Path

from llmgw.sim.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]
SEED = 5


def _replay(hash_seed: str) -> bytes:
    """The trace as another process prints it; string hashes differ between the two."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "llmgw.sim.run", "--seed", str(SEED), "--trace"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=100).stdout


def test_a_seed_gives_the_same_trace_in_any_process():
    """A failing seed can be replayed."""
    first, second = _replay("1"), _replay("2")
    assert first == second
    lines: list[str] = []
    result = simulate(SEED, sink=lines.append)
    assert first.decode().splitlines()[:-1] == lines
    assert result.digest[:16] in first.decode().splitlines()[-1]
    assert len(lines) > 500


def test_seeds_differ():
    """Another seed is another history."""
    assert simulate(SEED).digest != simulate(SEED + 1).digest


def test_steps_end_a_replay_where_asked():
    """A replay can be cut, and is the same up to there."""
    whole: list[str] = []
    cut: list[str] = []
    simulate(SEED, sink=whole.append)
    result = simulate(SEED, steps=500, sink=cut.append)
    assert result.steps == 500
    assert result.broken is None
    assert cut[:-1] == whole[: len(cut) - 1]
