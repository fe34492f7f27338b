"""The agent's directory on disk: one agent at a time, every file atomic (AGT-07).

::

    lock                  held (flock) while an agent runs
    agent.json            ``AgentState``
    shards/STEM.json      one ``ShardRecord`` each, with the engine key: mode 0600
    logs/STEM.log         output, see ``agent.supervise.output``

All calls block: run them in a native thread once the agent is up.
"""

import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from agent.events import RemoveRecord
from agent.records import AgentState, ShardRecord, file_stem
from llmgw.runtime.files import note_holder, open_regular, private_directory, sync_directory, write_atomic
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Fault, SettingsError

log = Logger("agent.statedir")

MAX_RECORD = 1024 * 1024

T = TypeVar("T")


class StateDir:
    """See the module. Opening it takes the lock; it is released when the process ends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shards = directory / "shards"
        try:
            for each in (directory, self.shards, directory / "logs"):
                private_directory(each)
            # Engines must not inherit the descriptor (it would keep the lock): close-on-exec is Python's default.
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            message = f"cannot be used: {error.strerror} ({error.filename})"
            raise SettingsError(str(directory), [Fault("state_dir", message)]) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            message = f"another agent (pid {holder or 'unknown'}) uses it: give each agent a directory of its own"
            raise SettingsError(str(directory), [Fault("state_dir", message)]) from error
        note_holder(self._lock)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def load(self) -> tuple[AgentState, list[ShardRecord]]:
        """What earlier agents left. A file whose content is not ours is set aside as ``.bad``
        and logged: its engine then is unidentified, and is ended. Raises ``SettingsError``
        where the disk does not give or take a file: that says nothing about an engine."""
        try:
            for leftover in [*self.directory.glob(".*.json.*"), *self.shards.glob(".*.json.*")]:
                leftover.unlink(missing_ok=True)
            state = self._read(self.directory / "agent.json", AgentState)
            records = [self._read_record(file) for file in sorted(self.shards.glob("*.json"))]
        except OSError as error:
            message = (
                f"{error.filename} cannot be used: {error.strerror}. Engines are left running: repair or remove it, "
                "then start the agent again"
            )
            raise SettingsError(str(self.directory), [Fault("state_dir", message)]) from error
        return state or AgentState(), [record for record in records if record is not None]

    def save(self, item: AgentState | ShardRecord | RemoveRecord) -> None:
        """Make one item durable. Raises ``OSError``."""
        match item:
            case AgentState():
                write_atomic(self.directory / "agent.json", msgspec.json.encode(item))
            case ShardRecord():
                write_atomic(self.shards / f"{file_stem(item.spec.key)}.json", msgspec.json.encode(item))
            case RemoveRecord(key):
                (self.shards / f"{file_stem(key)}.json").unlink(missing_ok=True)
                sync_directory(self.shards)

    def _read_record(self, file: Path) -> ShardRecord | None:
        record = self._read(file, ShardRecord)
        if record is None or file.stem == file_stem(record.spec.key):
            return record
        self._set_aside(file, f"it is the record of {record.spec.key}")
        return None

    def _read(self, file: Path, kind: type[T]) -> T | None:
        try:
            with open_regular(file) as stream:
                data = stream.read(MAX_RECORD + 1)
            if len(data) > MAX_RECORD:
                raise ValueError(f"larger than {MAX_RECORD} bytes")
            return msgspec.json.decode(data, type=kind)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._set_aside(file, str(error))
            return None

    @staticmethod
    def _set_aside(file: Path, why: str) -> None:
        log.error("a file cannot be read and was set aside", file=str(file), error=why)
        file.replace(file.with_suffix(".bad"))
