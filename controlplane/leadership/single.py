"""A lock beside the database that keeps a second control plane out.

Held by the kernel for the life of the process, so a crash leaves nothing behind. It
lies beside the database, not on it: closing any descriptor of an SQLite file would
drop SQLite's own locks.
"""

import fcntl
import os
from pathlib import Path

from controlplane.store.port import StoreError
from llmgw.runtime.files import note_holder


class DatabaseLock:
    """The lock on ``database``. Raises ``StoreError`` while another process holds it."""

    def __init__(self, database: Path) -> None:
        file = database.with_name(f"{database.name}.lock")
        try:
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{file}: cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise StoreError(
                f"{database}: another control plane uses it (process {holder or 'unknown'}): stop that one, or give "
                "this one a state_dir of its own"
            ) from error
        note_holder(self._descriptor)

    def release(self) -> None:
        """Let another control plane in."""
        os.close(self._descriptor)
