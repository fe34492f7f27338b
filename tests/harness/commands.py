"""The ``llmgw`` command: ``store`` and ``init`` in this process too, where to start one takes longer than they do."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner, Result

from controlplane.commands.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def program(*arguments: object, environment: Mapping[str, str] | None = None) -> str:
    """What any command prints, as a process of its own; it must succeed and have nothing to complain of."""
    command = [sys.executable, "-m", "llmgw.cli", *map(str, arguments)]
    here = os.environ if environment is None else environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env=here)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def llmgw(*arguments: object, code: int = 0, environment: Mapping[str, str | None] | None = None) -> Result:
    """``store`` or ``init`` in this process. Its exit status must be ``code``, and no traceback ever reaches a
    person. ``None`` takes a variable out of the environment."""
    runner = CliRunner(env={"NO_COLOR": "1", **(environment or {})})
    done = runner.invoke(main, [*map(str, arguments)], prog_name="llmgw")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, f"{done.exit_code}: {done.output}"
    return done
