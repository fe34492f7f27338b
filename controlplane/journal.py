"""Decisions on disk: one JSON object a line, synced before what they decide happens.

Committing is an event: the loop hands a batch over and goes on; when the batch is
durable ``on_committed`` is called with its number. While the disk refuses, batches
wait and are tried again, so what they decided does not happen either.
"""

import hashlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent import monkey
from gevent.event import Event

from controlplane.events import Decision
from controlplane.offhub import off_hub
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.journal")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")

JOURNAL = "decisions.jsonl"
"""The current file, in the state directory."""

KEPT = 4
"""Older files that are kept beside the current one."""

RECENT = 1000
"""Entries held in memory for the API: of this term alone. What is older is the store's to show,
which tells those of another installation apart."""

MAX_NOTES = 10_000
"""Notes that may wait for a slow disk; more are left out of the file and counted."""

_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision or note as it is written and shown. ``at`` is ISO 8601 in UTC, ``id``
    unique for ever (empty in files of older releases)."""

    at: str
    kind: str
    reason: str
    epoch: int = 0
    batch: int | None = None
    model: str | None = None
    replica: str | None = None
    node: str | None = None
    figures: dict[str, Any] = {}
    id: str = ""


_encoder = msgspec.json.Encoder(enc_hook=str)
_decoder = msgspec.json.Decoder(Entry)


class Journal:
    """Appends to ``file`` in the threadpool, from one greenlet.

    ``failing`` says why the last write failed (empty once one succeeds), ``failures``
    counts failed writes, ``left_out`` notes that were never written. ``durable`` is how
    many bytes of the current file are synced; ``on_durable`` is called when it grew,
    ``on_entries`` with what is handed over, before it is written.
    """

    def __init__(
        self,
        file: Path,
        clock: Clock,
        on_committed: Callable[[int], None],
        epoch: int = 0,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._file = file
        self._clock = clock
        self._committed = on_committed
        self.epoch = epoch
        self._max_bytes = max_bytes
        self._pending: deque[tuple[int | None, tuple[Entry, ...]]] = deque()
        self._notes = 0
        self._wake = Event()
        self._idle = Event()
        self._idle.set()
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._descriptor: int | None = None
        self._lock = _allocate_lock()
        self._closed = False
        self._size = 0
        self._run_id = secrets.token_hex(6)
        self._count = 0
        self.recent: deque[Entry] = deque(maxlen=RECENT)
        self.durable = 0
        self.on_durable: Callable[[], None] | None = None
        self.on_entries: Callable[[tuple[Entry, ...]], None] | None = None
        self.failing = ""
        self.failures = 0
        self.left_out = 0

    @property
    def file(self) -> Path:
        """The current file."""
        return self._file

    def start(self) -> "Journal":
        """Open the file (mode 0600) and mend a line that a crash cut short. Raises ``OSError``."""
        try:
            off_hub(self._open_and_mend)
        except OSError:
            off_hub(self._close)
            raise
        self._greenlet = gevent.spawn(self._run)
        return self

    def commit(self, batch: int, decisions: Sequence[Decision]) -> None:
        """Make these durable, then report ``batch``."""
        self._add(batch, decisions)

    def note(self, decision: Decision) -> None:
        """Write this down when it suits; nothing waits for it."""
        if self._notes >= MAX_NOTES:
            self.left_out += 1
            return
        self._notes += 1
        self._add(None, (decision,))

    def stop(self, timeout: float = 0.5) -> None:
        """Write what waits, for at most ``timeout`` seconds."""
        self._idle.wait(timeout)
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
        if self._pending:
            log.warning("decisions were not written before the end", batches=len(self._pending))
        gevent.spawn(off_hub, self._close).join(timeout)  # a disk that hangs holds nobody up

    def _add(self, batch: int | None, decisions: Sequence[Decision]) -> None:
        at = self._clock.now().isoformat(timespec="milliseconds")
        entries = tuple(
            Entry(
                at=at,
                kind=decision.kind,
                reason=decision.reason,
                epoch=self.epoch,
                batch=batch,
                model=decision.model,
                replica=decision.replica,
                node=decision.node,
                figures=decision.figures,
                id=f"{self._run_id}-{self._count + number:08d}",
            )
            for number, decision in enumerate(decisions)
        )
        self._count += len(entries)
        self.recent.extend(entries)
        if self.on_entries is not None:
            self.on_entries(entries)
        self._pending.append((batch, entries))
        self._idle.clear()
        self._wake.set()

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._pending:
                taken = list(self._pending)
                data = b"".join(_encoder.encode(entry) + b"\n" for _, entries in taken for entry in entries)
                try:
                    off_hub(self._append, data)
                except OSError as error:
                    self.failures += 1
                    self.failing = str(error)
                    log.error("the decision journal cannot be written: actions wait", file=self._file, error=error)
                    gevent.sleep(wait)
                    wait = min(wait * 2, _LONGEST_WAIT)
                    continue
                wait = _FIRST_WAIT
                self.failing = ""
                if self.on_durable is not None:
                    self.on_durable()
                for batch, _ in taken:
                    self._pending.popleft()
                    if batch is None:
                        self._notes -= 1
                    else:
                        self._committed(batch)
            self._idle.set()

    # The rest runs in the threadpool, one call at a time: a write whose greenlet has ended
    # may go on, and a descriptor that is closed under its hands might be another's by then.

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _open_and_mend(self) -> None:
        descriptor = self._open()
        if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
            self._size += os.write(descriptor, b"\n")
        self.durable = self._size

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = _open(self._file)
            self._size = os.fstat(self._descriptor).st_size
        return self._descriptor

    def _append(self, data: bytes) -> None:
        with self._lock:
            if self._closed:
                raise OSError(f"{self._file} was closed")
            self._append_locked(data)

    def _append_locked(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        self._notice_removal()
        descriptor = self._open()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fdatasync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self._size)  # no half lines: the whole is tried again
            raise
        self._size += len(data)
        self.durable = self._size

    def _notice_removal(self) -> None:
        """A file that somebody removed would take what is written with it: begin a new one."""
        if self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0:
            os.close(self._descriptor)
            self._descriptor = None

    def _rotate(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self.durable = 0
        older = files(self._file)
        for number in range(KEPT, 0, -1):
            if older[number - 1].exists():
                older[number - 1].replace(older[number])


def files(file: Path) -> list[Path]:
    """The journal's files, newest first, whether there or not."""
    return [file, *(file.with_name(f"{file.name}.{number}") for number in range(1, KEPT + 1))]


def try_to_open(file: Path) -> None:
    """Whether a journal could be begun or gone on with there. Blocking. Raises ``OSError``."""
    os.close(_open(file))


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def parse_line(line: bytes) -> Entry | None:
    """The entry of a line, with an id; ``None`` if the line is no entry."""
    entry = _parse(line)
    if entry is None or entry.id:
        return entry
    return msgspec.structs.replace(entry, id=hashlib.sha256(line.strip()).hexdigest()[:32])


def _parse(line: bytes) -> Entry | None:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
