"""Directories for copies of a store while work goes on: private, and gone afterwards, also
those of a process that was killed, whose copies hold secrets."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".llmgw-work-"


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new directory in ``parent`` (mode 0700), which is removed at the end; what killed
    processes left there goes now. Raises ``OSError``."""
    _sweep(parent)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        descriptor = _lock(folder)
        if descriptor is not None:
            break  # else another process swept it away before it was ours
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        descriptor = _lock(folder)
        if descriptor is not None:  # nobody works in it
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """A descriptor that keeps others from sweeping ``folder``; ``None`` if it is another's, or gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():
            return descriptor
    except OSError:  # somebody works in it
        os.close(descriptor)
        return None
    os.close(descriptor)
    return None
