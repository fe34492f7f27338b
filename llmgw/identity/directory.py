"""A directory by its descriptor: nobody can put another one in its place while it is used."""

import errno
import os
from pathlib import Path


def opened(path: Path, *, make: bool = False) -> int:
    """A descriptor of the directory; close it. ``make``: with mode 0700 if it is not there.

    What root makes in another's directory is that other's: a service must be able to read
    what an administrator gave it. A link there is not followed: it leads where its owner
    wants. Raises ``OSError``.
    """
    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name or "."
    around = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owner = os.fstat(around)
        others = os.geteuid() == 0 and owner.st_uid != 0
        made = make and _made(name, around)
        link = os.O_NOFOLLOW if others else 0
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link, dir_fd=around)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(around)
    if made and others:
        try:
            _give(directory, owner, path)
        except BaseException:
            os.close(directory)
            raise
    return directory


def _made(name: str, around: int) -> bool:
    try:
        os.mkdir(name, 0o700, dir_fd=around)
    except FileExistsError:
        return False
    return True


def _give(directory: int, owner: os.stat_result, path: Path) -> None:
    """Only the one that was just made: another of root's may be there instead by now."""
    if os.fstat(directory).st_uid != 0 or os.listdir(directory):
        raise PermissionError(errno.EPERM, "another was put in its place while it was made", str(path))
    os.fchown(directory, owner.st_uid, owner.st_gid)
