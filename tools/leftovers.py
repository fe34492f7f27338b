"""Fail if a process that was started from this checkout still runs.

Run after the tests: whatever they start, they must end. A process is recognised by
an interpreter, an engine or an argument in a virtual environment of this directory.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def ancestors(pid: int) -> set[int]:
    """``pid`` and every process above it."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return found


def leftovers() -> list[str]:
    """One line per process that should not be there."""
    own = ancestors(os.getpid())
    lines = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) in own:
            continue
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
        if f"{ROOT}/.venv" in command:
            lines.append(f"{directory.name}: {command[:200]}")
    return lines


if __name__ == "__main__":
    found = leftovers()
    if found:
        sys.stderr.write("still running:\n" + "\n".join(f"  {line}" for line in found) + "\n")
        sys.exit(1)
