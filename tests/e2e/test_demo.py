"""The demo, as ``make demo`` runs it."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.demo.engine import Installed
from llmgw.demo.processes import marked
from tests.harness import until

pytestmark = pytest.mark.usefixtures("llama")


def command(folder: Path, *arguments: str) -> list[str]:
    """The demo in a folder of its own."""
    return [sys.executable, "-m", "llmgw.demo", "--folder", str(folder), *arguments]


def left(folder: Path) -> list[str]:
    """What of a demo still runs."""
    found = marked("LLMGW_DEMO", str(folder)) + marked("LLMGW_AGENT_STATE", str(folder / "agent"))
    return [process.command for process in found]


def test_once(tmp_path: Path) -> None:
    """``ONCE=1``: a real answer, status, exit status 0, nothing left, and the key was never printed."""
    folder = tmp_path / "demo"
    environment = {**os.environ, "ONCE": "1"}
    done = subprocess.run(command(folder), capture_output=True, text=True, env=environment, timeout=110, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    answer = re.search(r"^  < (.+)$", done.stdout, re.MULTILINE)
    assert answer is not None, text
    assert "Paris" in answer[1], text
    assert re.search(r"time to first token \d+\.\d\d s, \d+ tokens/s", text), text
    assert "smollm2-135m" in text
    assert "Nothing is left running." in text
    key_file = folder / "api-key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert key_file.read_text().startswith("sk-llmgw-")
    assert key_file.read_text() not in text
    assert "\x1b" not in text
    assert left(folder) == []


def test_stays_up_until_ctrl_c_and_a_second_run_says_so(llama: Installed, tmp_path: Path) -> None:
    """Ctrl-C drains, stops and leaves nothing; while it is up a second run names its process.

    Without the drain the agent's stop would leave the engine running, as it should for an upgrade.
    """
    folder = tmp_path / "demo"
    log = tmp_path / "log"
    with log.open("wb") as stream:
        demo = subprocess.Popen(command(folder), stdout=stream, stderr=stream, start_new_session=True)
    try:
        until(lambda: "What to try next" in log.read_text() or demo.poll() is not None, 90, "the demo is up")
        assert demo.poll() is None, log.read_text()
        second = subprocess.run(command(folder), capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode == 1
        assert f"already running here (process {demo.pid})" in second.stdout
        (curl,) = re.findall(r"^  (curl (?:.*\\\n)+.*)$", log.read_text(), re.MULTILINE)
        # The printed command works as it is.
        said = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=60, check=False)
        assert '"choices"' in said.stdout, said
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0, log.read_text()
        assert "Nothing is left running." in log.read_text()
        assert left(folder) == []
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)
            demo.wait(60)
