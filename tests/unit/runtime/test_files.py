"""Atomic writes: the old content or the new, never a part (AGT-07)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmgw.runtime.files import write_atomic

WRITER = """
import sys
from pathlib import Path
from llmgw.runtime.files import write_atomic
file, size = Path(sys.argv[1]), int(sys.argv[2])
number = 0
while True:
    number += 1
    write_atomic(file, (str(number % 10) * size).encode())
    if number == 1:
        print("ready", flush=True)
"""


def test_the_content_is_replaced(tmp_path: Path) -> None:
    """Whole, with the mode asked for, and nothing left beside it."""
    file = tmp_path / "table"
    write_atomic(file, b"one")
    assert file.stat().st_mode & 0o777 == 0o600
    write_atomic(file, b"two", mode=0o644)
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"two", 0o644)
    assert [file.name for file in tmp_path.iterdir()] == ["table"]


def test_the_umask_does_not_open_a_secret(tmp_path: Path) -> None:
    """SEC-03: 0600 whatever the process's umask is."""
    before = os.umask(0)
    try:
        write_atomic(tmp_path / "secret", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, as the file system would tell it."""
    file = tmp_path / "table"
    write_atomic(file, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(file, b"new")
    assert file.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["table"]


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    """It is not made silently with some other owner and mode."""
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "none" / "table", b"x")


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011, 0.019, 0.031])
def test_kill_nine_leaves_whole_content(tmp_path: Path, delay: float) -> None:
    """A writer killed at any moment: a plain open-and-write shows parts of 2 MB here."""
    file, size = tmp_path / "table", 2_000_000
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(file), str(size)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline:
            content = file.read_bytes()
            assert len(content) == size
            assert len(set(content)) == 1
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    content = file.read_bytes()
    assert len(content) == size
    assert len(set(content)) == 1
