"""Completion in shells (CLI-01)."""

import shutil
import socket
import subprocess
import sys
import time

import pytest

from tests.fakes.controlplane import ControlPlane
from tests.fleet.cli.conftest import Run


def complete(line: str, control_plane: ControlPlane | None = None, **environment: str) -> list[str]:
    """What bash is told to offer behind ``line``; a blank at its end begins a new word."""
    words = line.split(" ")
    if control_plane is not None:
        environment["LLMGW_API"] = control_plane.api
        environment["LLMGW_TOKEN_FILE"] = str(control_plane.state / "admin.token")
    asked = {"_LLMGW_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from llmgw.cli import main; main(prog_name='llmgw')"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment, **asked},
        timeout=30,
        check=False,
    )
    assert not done.stderr, "a person who presses tab is told nothing"
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each]


def test_commands_and_options() -> None:
    """Without an API."""
    assert complete("llmgw ctl no") == ["nodes", "node"]
    assert "--watch" in complete("llmgw ctl nodes --w")
    assert complete("llmgw ctl nodes -o j") == ["json"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("llmgw ctl explain sim-h", ["sim-huge"]),
        ("llmgw ctl explain org", ["org/small:1b@main"]),
        ("llmgw ctl model show sim-o", ["sim-off"]),
        ("llmgw ctl replicas --model sma", ["small"]),
        ("llmgw ctl cordon no", ["node-1"]),
        ("llmgw ctl label node", ["node-1"]),
        ("llmgw keys create me --model sim-h", ["sim-huge"]),
        ("llmgw ctl explain nothing-like-it", []),
    ],
)
def test_names_that_the_api_knows(control_plane: ControlPlane, line: str, offered: list[str]) -> None:
    """Models with their aliases, nodes."""
    assert complete(line, control_plane) == offered


def test_replicas(control_plane: ControlPlane) -> None:
    """Ids that nobody can remember."""
    (replica,) = control_plane.get("replicas?model=sim-small")["replicas"]
    assert complete("llmgw ctl restart sim-sm", control_plane) == [replica["id"]]


def test_an_api_that_is_absent_or_silent() -> None:
    """Nothing is offered, nothing is said, and nobody waits longer than a second for it."""
    assert complete("llmgw ctl explain s", LLMGW_API="http://127.0.0.1:9") == []
    assert complete("llmgw ctl explain s", LLMGW_API="nonsense://") == []
    assert complete("llmgw ctl explain s", LLMGW_TOKEN_FILE="/nonexistent") == []
    began = time.monotonic()
    complete("llmgw ctl explain s", LLMGW_API="http://127.0.0.1:9")
    alone = time.monotonic() - began
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert complete("llmgw ctl explain s", LLMGW_API=f"http://127.0.0.1:{silent.getsockname()[1]}") == []
    assert time.monotonic() - began - alone < 15, "a command would wait a minute"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(run: Run, shell: str) -> None:
    """The script names the command, and the shell can read it where there is one."""
    done = run("completion", shell)
    assert done.exit_code == 0 and "_LLMGW_COMPLETE" in done.output
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run([program, "-n"], input=done.output, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
    assert run("completion", "tcsh").exit_code == 2
