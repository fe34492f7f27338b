"""A bounded log on disk for what the store shall get later: a record is durable when
``append`` returns, and stays until it is dropped (STO-03).

One record a line, ``CRC32 RECORD``, in numbered segments of one directory. A line that a
crash cut short was never acknowledged and is cut off; a line that the disk damaged is
left out, counted and kept aside. Blocking: call it in the threadpool. Appending and
reading may go on in two threads at once.
"""

import contextlib
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gevent import monkey

from llmgw.runtime.files import private_directory, sync_directory

_allocate_lock = monkey.get_original("_thread", "allocate_lock")

SEGMENT_BYTES = 8 * 1024 * 1024
"""Size at which a segment is full."""

MAX_RECORD = 32 * 1024 * 1024
"""Largest record in bytes; the bound on what a damaged file can make us hold."""

DAMAGED = "damaged"
"""File beside the segments with the lines that could not be read."""

_MAX_DAMAGED = 16 * 1024 * 1024
_POSITION = "position"
_NAME = re.compile(r"([0-9]{10})\.spool")
_FRAME = 10  # eight digits of the checksum, a space, a line feed


class SpoolFull(Exception):
    """There is no room: nothing was kept."""


class Position(NamedTuple):
    """A place between two records."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The oldest records, and where the next begins."""

    records: tuple[bytes, ...]
    end: Position


class Spool:
    """The log in ``directory``, of at most ``max_bytes``. One at a time uses it, from ``open``
    to ``close``.

    ``damaged`` counts lines that were left out since the start.
    """

    def __init__(self, directory: Path, max_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._lock = _allocate_lock()
        self._sizes: dict[int, int] = {}  # of each segment, durable bytes; the last one is written to
        self._head = Position(1, 0)
        self._aside = Position(0, 0)
        self._descriptor: int | None = None
        self._position: int | None = None
        self.damaged = 0

    @property
    def bytes_waiting(self) -> int:
        """Bytes of records that were not dropped yet."""
        return sum(self._sizes.copy().values()) - self._head.offset

    def open(self) -> "Spool":
        """Take up what an earlier process left. Raises ``OSError``."""
        private_directory(self._directory)
        self._sizes = {number: file.stat().st_size for number, file in _segments(self._directory)}
        if self._sizes:
            last = max(self._sizes)
            self._sizes[last] = _cut(self._file(last), self._sizes[last])
        self._position = os.open(self._directory / _POSITION, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._head = _read_position(os.pread(self._position, 64, 0), self._sizes)
        if self._head.offset and not self._follows_a_line(self._head):
            self._head = Position(self._head.segment, 0)
        self._forget(self._head.segment)
        return self

    def close(self) -> None:
        """Let go of the files, once what goes on is done: whoever comes late, such as a thread
        whose greenlet ended long ago, changes nothing from then on."""
        with self._lock:
            self._close_segment()
            if self._position is not None:
                os.close(self._position)
                self._position = None

    def append(self, records: Sequence[bytes]) -> None:
        """Make ``records`` durable, all or none. None may hold a line feed.

        Raises ``SpoolFull``, or ``OSError`` if the disk refuses.
        """
        data = b"".join(map(_line, records))
        with self._lock:
            if self._position is None:
                raise SpoolFull(f"{self._directory} was closed")
            if self.bytes_waiting + len(data) > self._max_bytes:
                raise SpoolFull(f"{self.bytes_waiting} of {self._max_bytes} bytes wait in {self._directory} already")
            number, descriptor = self._open_segment()
            size = self._sizes[number]
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fdatasync(descriptor)
            except OSError:
                self._abandon(number)
                raise
            self._sizes[number] = size + len(data)

    def read(self, max_records: int, max_bytes: int) -> Chunk | None:
        """The oldest records that were not dropped, one at least; ``None`` if there are
        none. Raises ``OSError``."""
        with self._lock:
            head, sizes = self._head, self._sizes.copy()
        records: list[bytes] = []
        taken = 0
        end = head
        for number in sorted(sizes):
            if number < head.segment:
                continue
            offset = head.offset if number == head.segment else 0
            for line in _lines(self._file(number), offset, sizes[number]):
                if records and (len(records) == max_records or taken + len(line) > max_bytes):
                    return Chunk(tuple(records), end)
                offset += len(line)
                end = Position(number, offset)
                record = _record(line)
                if record is None:
                    if end > self._aside:  # not again when it is read again
                        self._set_aside(line)
                        self._aside = end
                else:
                    records.append(record)
                    taken += len(line)
            end = Position(number, sizes[number])
        return Chunk(tuple(records), end) if end != head else None

    def drop(self, end: Position) -> None:
        """Forget the records before ``end``: the store has them. Raises ``OSError``."""
        with self._lock:
            if self._position is None:
                return  # whoever opens it next hands them over again, which the store notices
            self._head = end
            last = max(self._sizes, default=0)
            if end.segment == last and end.offset == self._sizes[last] >= self._segment_bytes:
                self._close_segment()
                self._sizes[last + 1] = 0
                self._head = Position(last + 1, 0)
            self._forget(self._head.segment)
            # Not synced: after a power cut records are handed over again, which whoever gets them notices.
            os.pwrite(self._position, position_text(self._head), 0)

    def set_aside(self, record: bytes) -> None:
        """Keep a record, which the store will never take, for people to look at."""
        with self._lock:
            self._set_aside(_line(record))

    # ------------------------------------------------------------ files

    def _file(self, number: int) -> Path:
        return self._directory / f"{number:010d}.spool"

    def _abandon(self, number: int) -> None:
        """Go on in another file: whether a page that could not be synced is on the disk
        cannot be known."""
        self._close_segment()
        size = self._sizes[number]
        with contextlib.suppress(OSError):  # then the half is cut off, or left out, by who reads it
            if size:
                os.truncate(self._file(number), size)
            else:
                self._file(number).unlink(missing_ok=True)
        if size:
            self._sizes[number + 1] = 0

    def _open_segment(self) -> tuple[int, int]:
        last = max(self._sizes, default=0)
        if last == 0 or self._sizes[last] >= self._segment_bytes:
            self._close_segment()
            last = max(last + 1, self._head.segment)
            self._sizes[last] = 0
        if self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0:
            self._close_segment()  # somebody removed it: what it held is gone, what comes goes to a new one
            self._sizes[last] = 0
            self._head = min(self._head, Position(last, 0))
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._file(last), flags, 0o600)
            # What is beyond what we know was never acknowledged.
            os.ftruncate(self._descriptor, self._sizes[last])
            sync_directory(self._directory)
        return last, self._descriptor

    def _close_segment(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _forget(self, before: int) -> None:
        for number in [number for number in self._sizes if number < before]:
            self._file(number).unlink(missing_ok=True)
            del self._sizes[number]

    def _follows_a_line(self, position: Position) -> bool:
        with self._file(position.segment).open("rb") as stream:
            stream.seek(position.offset - 1)
            return stream.read(1) == b"\n"

    def _set_aside(self, line: bytes) -> None:
        self.damaged += 1
        file = self._directory / DAMAGED
        with contextlib.suppress(OSError):  # a full disk: it is counted, and told, all the same
            if not file.exists() or file.stat().st_size + len(line) <= _MAX_DAMAGED:
                descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, line)
                finally:
                    os.close(descriptor)


def waiting(directory: Path) -> tuple[int, int]:
    """Records and bytes that wait in a directory, which is not changed; for a look from
    another process. Raises ``OSError``."""
    sizes = {number: file.stat().st_size for number, file in _segments(directory)}
    try:
        head = _read_position((directory / _POSITION).read_bytes()[:64], sizes)
    except FileNotFoundError:
        head = Position(min(sizes, default=1), 0)
    records = size = 0
    for number, length in sizes.items():
        if number >= head.segment:
            for line in _lines(directory / f"{number:010d}.spool", head.offset * (number == head.segment), length):
                if _record(line) is not None:
                    records += 1
                    size += len(line)
    return records, size


def _segments(directory: Path) -> Iterator[tuple[int, Path]]:
    for file in sorted(directory.iterdir()) if directory.is_dir() else ():
        match = _NAME.fullmatch(file.name)
        if match and file.is_file():
            yield int(match[1]), file


def _line(record: bytes) -> bytes:
    if b"\n" in record or len(record) > MAX_RECORD:
        raise ValueError(f"a record is one line of at most {MAX_RECORD} bytes")
    return b"%08x %b\n" % (zlib.crc32(record), record)


def _record(line: bytes) -> bytes | None:
    """The record of a line; ``None`` if the line is damaged."""
    record = line[9:-1]
    if len(line) < _FRAME or line[-1:] != b"\n" or line[:9] != b"%08x " % zlib.crc32(record):
        return None
    return record


def _lines(file: Path, offset: int, end: int) -> Iterator[bytes]:
    """The lines of a segment, up to ``end``. One of a segment that is gone: none."""
    try:
        stream = file.open("rb")
    except FileNotFoundError:
        return
    with stream:
        stream.seek(offset)
        while offset < end:
            line = stream.readline(min(end - offset, MAX_RECORD + _FRAME))
            if not line:
                return
            offset += len(line)
            yield line


def _cut(file: Path, size: int) -> int:
    """Cut off what a crash left of a line; the size from then on."""
    with file.open("r+b") as stream:
        place = size
        while place:
            begin = max(0, place - 65536)
            stream.seek(begin)
            found = stream.read(place - begin).rfind(b"\n")
            if found >= 0:
                place = begin + found + 1
                break
            place = begin
        if place != size:
            stream.truncate(place)
            os.fsync(stream.fileno())
    return place


def position_text(position: Position) -> bytes:
    """A position as it is kept in a file, which is overwritten in place."""
    text = b"%010d %020d" % position
    return b"%b %08x\n" % (text, zlib.crc32(text))


def parse_position(data: bytes) -> Position | None:
    """The position that a file holds; ``None`` if it holds none, or is damaged."""
    text, _, check = data.rstrip(b"\n").rpartition(b" ")
    if not text or check != b"%08x" % zlib.crc32(text):
        return None
    return Position(*map(int, text.split()))


def _read_position(data: bytes, sizes: dict[int, int]) -> Position:
    """Where to go on; the beginning if that is not known, or of another time."""
    first = Position(min(sizes, default=1), 0)
    position = parse_position(data)
    if position is None:
        return first
    if position.segment in sizes:
        return position if position.offset <= sizes[position.segment] else Position(position.segment, 0)
    return first if sizes else Position(position.segment, 0)
