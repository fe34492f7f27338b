"""Locks beside files, held by the kernel for the life of the process: a crash leaves nothing
behind.

The lock of a database keeps a second control plane out, unless both agree by the lease which
of them leads: then they share it (HA-01). It lies beside the database, not on it: closing
any descriptor of an SQLite file would drop SQLite's own locks.
"""

import fcntl
import os
from pathlib import Path

from controlplane.store.errors import StoreError
from llmgw.runtime.faults import Fault, SettingsError
from llmgw.runtime.files import note_holder


class _Lock:
    """A lock on a file. ``what`` and ``remedy`` are for the error while another holds it."""

    def __init__(self, file: Path, what: str, remedy: str, *, shared: bool = False) -> None:
        try:
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError as error:
            raise StoreError(f"{file.parent}: does not exist: make this folder first, or name another") from error
        except OSError as error:
            raise StoreError(f"{file}: cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise StoreError(
                f"{what}: another control plane uses it (process {holder or 'unknown'}): {remedy}"
            ) from error
        note_holder(self._descriptor)

    def release(self) -> None:
        """Let another control plane in."""
        os.close(self._descriptor)


class DatabaseLock(_Lock):
    """The lock on ``database``, which the setting ``named_by`` names. Raises ``StoreError`` while
    another process holds it in a way that excludes ours."""

    def __init__(self, database: Path, *, shared: bool = False, named_by: str = "store.url") -> None:
        super().__init__(
            database.with_name(f"{database.name}.lock"),
            str(database),
            f"stop that one, give this one a {named_by} of its own, or let both agree who leads (ha.enabled)",
            shared=shared,
        )


class StateLock(_Lock):
    """The lock on a state directory, whose journal and spool have one writer. Raises
    ``SettingsError`` while another process holds it."""

    def __init__(self, state_dir: Path) -> None:
        remedy = "stop that one, or give this one a state_dir of its own"
        try:
            super().__init__(state_dir / "controlplane.lock", str(state_dir), remedy)
        except StoreError as error:
            raise SettingsError("llmgw server", [Fault("state_dir", str(error))]) from error
