"""Output files of shards: written by the engine itself, bounded by us (AGT-06).

The engine appends to its file directly, so that output survives the agent. When a
file passes the bound its content is moved to ``.1`` and it is cut to nothing; lines
written in that instant may be lost, which a person can live with. Its end is kept, not
all of it: an engine that floods may have written gigabytes, and still writes.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from agent.records import file_stem
from agent.supervise.base import TAIL_BYTES, TAIL_LINE, TAIL_LINES
from llmgw.runtime.logs import Logger, mask
from llmgw.wire.messages import ShardKey

log = Logger("agent.output")

MAX_OUTPUT = 16 * 1024 * 1024
"""Bytes of one shard's current output file; as much again may lie beside it."""

MAX_OLD = 64
"""Output files kept of shards that are gone."""

_READ_BYTES = 256 * 1024


class OutputFiles:
    """The output files in one directory (mode 0700; files 0600)."""

    def __init__(self, directory: Path, max_bytes: int = MAX_OUTPUT, max_old: int = MAX_OLD) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_old = max_old

    def path(self, key: ShardKey) -> Path:
        """The file a shard writes to."""
        return self._directory / f"{file_stem(key)}.log"

    def open(self, key: ShardKey) -> int:
        """A descriptor that appends to a shard's file."""
        return os.open(self.path(key), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def tail(self, key: ShardKey) -> tuple[str, ...]:
        """The last lines, without our secrets; none if there is no file."""
        file = self.path(key)
        data = _last_bytes(file.with_suffix(".log.1")) if _size(file) < _READ_BYTES else b""
        data = (data + _last_bytes(file))[-_READ_BYTES:]
        lines = [_printable(line) for line in data.decode("utf-8", "replace").splitlines()[-TAIL_LINES:]]
        room = TAIL_BYTES
        kept: list[str] = []
        for line in reversed(lines):
            room -= len(line.encode()) + 1
            if room < 0:
                break
            kept.append(line)
        return tuple(reversed(kept))

    def trim(self, live: Iterable[ShardKey]) -> None:
        """Bound the files of live shards, and the number of others' files."""
        mine = {self.path(key) for key in live}
        for file in mine:
            if _size(file) > self._max_bytes:
                self._keep_end(file)
                os.truncate(file, 0)
        old = [file for file in self._directory.glob("*.log") if file not in mine]
        old.sort(key=lambda file: file.stat().st_mtime)
        for file in old[: max(0, len(old) - self._max_old)]:
            file.with_suffix(".log.1").unlink(missing_ok=True)
            file.unlink(missing_ok=True)

    def _keep_end(self, file: Path) -> None:
        """The last ``max_bytes`` of a file beside it. On a full disk they are given up: room
        matters more."""
        old = file.with_suffix(".log.1")
        try:
            with os.fdopen(os.open(old, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as stream:
                data = _last_bytes(file, self._max_bytes)
                stream.write(data[data.find(b"\n") + 1 :])  # from the start of a line on
        except OSError as error:
            log.warning("old output was given up", file=str(file), error=error.strerror or str(error))
            old.unlink(missing_ok=True)


def _printable(line: str) -> str:
    """Without secrets of ours, control characters and excess."""
    return mask("".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line[:TAIL_LINE]))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _last_bytes(file: Path, size: int = _READ_BYTES) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            return stream.read(size)
    except FileNotFoundError:
        return b""
