"""Writing files so that a crash leaves either the old or the new content."""

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomic(file: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace ``file`` by ``data``: written aside, synced, renamed, directory synced.

    Blocking: call it in the threadpool from a gevent program. Raises ``OSError``; the
    old content is untouched then.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename or removal in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
