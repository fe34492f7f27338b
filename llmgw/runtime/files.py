"""Writing files so that a crash leaves either the old or the new content."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO


def open_regular(file: Path) -> BinaryIO:
    """Open a file a person named for reading. Raises ``OSError`` also for what is no
    regular file: a pipe would hold up its reader for ever, a device never ends."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        raise OSError(errno.EINVAL, "it is no regular file", str(file))
    return os.fdopen(descriptor, "rb")


def write_atomic(file: Path, data: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Replace ``file`` by ``data``: written aside, synced, renamed, directory synced.
    ``owner``: user and group that it is to belong to, which only root can give.

    Blocking: call it in the threadpool from a gevent program. Raises ``OSError``; the
    old content is untouched then.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            if owner is not None:
                os.fchown(stream.fileno(), *owner)
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


def private_directory(directory: Path) -> None:
    """Make ``directory`` (mode 0700) if it is not there. Raises ``OSError`` if it cannot
    be used, or if others than its owner, or another user than ours, could change what is
    in it: what a service believes and obeys would be theirs."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {status.st_uid})", str(directory))
    if status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, f"others can write to it: run chmod 700 {directory}", str(directory))
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


def note_holder(descriptor: int) -> None:
    """Write our process id into a lock file, for people. A full disk is no reason not to start."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
