"""Usage records on disk until the control plane has them (STO-03).

A directory holds a file per batch, ``BOOT-SEQUENCE.usage`` with a line per record, and a
locked ``BOOT.lock`` per living process. A batch that was sent is never added to, and
removed once it is acknowledged. What a process that died has left belongs to whoever gets
its lock.

Everything here blocks: call it in a thread. Nothing is synced, since what must survive is
the end of a process, not that of the host.
"""

import contextlib
import fcntl
import os
import re
from pathlib import Path

from llmgw.runtime.files import open_regular, private_directory
from llmgw.runtime.logs import Logger

log = Logger("router.spool")

_BATCH = re.compile(r"([0-9a-f]{16})-([0-9]{1,16})\.usage")
_LOCK = re.compile(r"([0-9a-f]{16})\.lock")
MAX_FILE = 64 * 1024 * 1024


class Spool:
    """The batches of one process, which holds ``lock`` while it lives."""

    def __init__(self, directory: Path, boot: str, lock: int) -> None:
        self.boot = boot
        self._directory = directory
        self._lock = lock

    def _file(self, sequence: int) -> Path:
        return self._directory / f"{self.boot}-{sequence}.usage"

    def append(self, sequence: int, lines: bytes) -> None:
        """Add whole lines to a batch: all, or none. Raises ``OSError``."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._file(sequence), flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            rest = memoryview(lines)
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def read(self, sequence: int) -> bytes:
        """What a batch holds. Raises ``OSError``."""
        with open_regular(self._file(sequence)) as stream:
            return stream.read(MAX_FILE)

    def remove(self, sequence: int) -> None:
        """Forget a batch. Raises ``OSError``."""
        with contextlib.suppress(FileNotFoundError):
            self._file(sequence).unlink()

    def sequences(self) -> list[int]:
        """The batches that there are, oldest first. Raises ``OSError``."""
        found = (_BATCH.fullmatch(file.name) for file in self._directory.iterdir())
        return sorted(int(match[2]) for match in found if match and match[1] == self.boot)

    def close(self) -> None:
        """Let go; the lock's file goes as well unless it guards something."""
        try:
            if not self.sequences():
                with contextlib.suppress(FileNotFoundError):
                    (self._directory / f"{self.boot}.lock").unlink()
        except OSError as error:
            log.warning("usage records cannot be tidied up", directory=self._directory, why=error.strerror)
        finally:
            os.close(self._lock)


def open_spool(directory: Path, boot: str) -> Spool:
    """A spool of this process. ``boot`` is 16 hexadecimal digits. Raises ``OSError``."""
    private_directory(directory)
    lock = _take_lock(directory, boot)
    if lock is None:
        raise FileExistsError(0, "another process uses the same name", str(directory / f"{boot}.lock"))
    return Spool(directory, boot, lock)


def abandoned(directory: Path) -> list[Spool]:
    """The spools of processes that are no more, now ours. Raises ``OSError``."""
    names = [file.name for file in directory.iterdir()]
    locks = {match[1] for name in names if (match := _LOCK.fullmatch(name))}
    # A batch whose lock's file was lost is nobody's.
    boots = locks | {match[1] for name in names if (match := _BATCH.fullmatch(name))}
    found = []
    for boot in sorted(boots):
        lock = _take_lock(directory, boot)
        if lock is None:
            continue
        spool = Spool(directory, boot, lock)
        if spool.sequences():
            found.append(spool)
        else:
            spool.close()
    return found


def _take_lock(directory: Path, boot: str) -> int | None:
    """The lock, or ``None`` if its process lives (or this one has it already)."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(directory / f"{boot}.lock", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)  # its owner has just tidied up
    return None
