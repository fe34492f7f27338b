"""The decision journal as a source for the store's events: what was decided while the
store was away is in the files, and gets there when it returns.

How far the store is stands in a file of its own. If that is lost, everything is handed
over again, which the ids make harmless.
"""

import os
import zlib
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from controlplane.journal import Entry, files, parse_line
from controlplane.store.port import Transaction
from controlplane.store.spool import Chunk, Position, parse_position, position_text
from controlplane.store.values import EventEntry

MAX_EVENTS = 500
"""Events in one transaction."""

_SIGN = 256
"""Bytes of a file's first line that tell it from others."""


def position_of(journal: Path) -> Path:
    """The file beside a journal that says how far the store is."""
    return journal.with_name(f"{journal.name}.stored")


class JournalSource:
    """Reads the journal ``file`` and its older ones. ``durable`` tells how many bytes of
    the current one are synced. Implements ``store.feed.Source``.

    A position's segment is a checksum of the beginning of the file it is in: names change
    when files rotate, inodes are used again.
    """

    def __init__(self, file: Path, durable: Callable[[], int]) -> None:
        self._file = file
        self._durable = durable
        self._kept = position_of(file)
        self._position: Position | None = None

    def read(self, max_records: int, max_bytes: int) -> Chunk | None:
        """See ``Source``."""
        if self._position is None:
            self._position = self._load()
        present = self._present()
        place = next((i for i, (sign, _, _) in enumerate(present) if sign == self._position.segment), None)
        records: list[bytes] = []
        end = self._position
        for index in range(place or 0, len(present)):
            sign, file, limit = present[index]
            offset = self._position.offset if index == place else 0
            lines = _lines(file, sign, min(offset, limit), min(max_bytes, limit - offset))
            lines = lines[: max_records - len(records)]
            if lines:
                size = sum(map(len, lines))
                records += lines
                max_bytes -= size
                end = Position(sign, min(offset, limit) + size)
            if len(records) == max_records or max_bytes <= 0 or end != Position(sign, limit):
                break
        return Chunk(tuple(records), end) if records else None

    def drop(self, end: Position) -> None:
        """See ``Source``."""
        descriptor = os.open(self._kept, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, position_text(end), 0)
        finally:
            os.close(descriptor)
        self._position = end

    def set_aside(self, record: bytes) -> None:
        """The line stays where it is, in the journal."""

    def _load(self) -> Position:
        try:
            return parse_position(self._kept.read_bytes()[:64]) or Position(0, 0)
        except FileNotFoundError:
            return Position(0, 0)

    def _present(self) -> list[tuple[int, Path, int]]:
        """Sign, path and readable bytes of each file that is there, oldest first."""
        present = []
        for file in reversed(files(self._file)):
            try:
                with file.open("rb") as stream:
                    sign, size = _sign(stream), os.fstat(stream.fileno()).st_size
            except FileNotFoundError:
                continue
            if file == self._file:
                size = min(size, self._durable())
            if size:
                present.append((sign, file, size))
        return present


def _sign(stream: BinaryIO) -> int:
    return zlib.crc32(stream.read(_SIGN).partition(b"\n")[0])


def _lines(file: Path, sign: int, offset: int, size: int) -> list[bytes]:
    """Whole lines of the file that has that sign; none if another has its name by now."""
    try:
        with file.open("rb") as stream:
            if size <= 0 or _sign(stream) != sign:
                return []
            stream.seek(offset)
            data = stream.read(size)
    except FileNotFoundError:
        return []
    if b"\n" not in data:
        return [data] if data else []  # no entry is as long as that: it will be skipped
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def put(tx: Transaction, records: Sequence[bytes]) -> None:
    """Keep lines of the journal as events; what is no entry is left out."""
    entries = [parse_line(line) for line in records]
    tx.events.add([event for entry in entries if entry is not None and (event := _event(entry)) is not None])


def _event(entry: Entry) -> EventEntry | None:
    try:
        at = datetime.fromisoformat(entry.at).timestamp()
    except (ValueError, OverflowError):
        return None
    return EventEntry(
        id=entry.id,
        at=at,
        kind=entry.kind,
        reason=entry.reason,
        epoch=entry.epoch,
        model=entry.model,
        replica=entry.replica,
        node=entry.node,
        figures=entry.figures,
    )
