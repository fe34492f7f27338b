"""An empty store for one test, on each kind of database."""

import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.leadership.lease import Holder, taking
from controlplane.store.access import StoreThreads
from controlplane.store.database import Database
from controlplane.store.opening import threads
from controlplane.store.port import Transaction
from controlplane.store.postgresql import Postgresql
from controlplane.store.sqlite import Sqlite
from controlplane.store.values import RequestEntry, UsageOf
from llmgw.runtime.stall import StallDetector
from tests.fakes.postgresql import Server

HELD = 0.5
"""Seconds: a hub that is held this long was held by a call on the store; shorter stalls are a busy machine's."""


def take_epoch(tx: Transaction, floor: int = 0) -> int:
    """Lead for the first time under another id, as each start of a control plane does; the epoch."""
    claim = replace(taking(tx.leadership.read()), floor=floor)
    return tx.leadership.claim(secrets.token_hex(8), claim, ttl=30.0, holder=Holder()).epoch


def count_batch(
    tx: Transaction, source: str, boot: str, sequence: int, entries: Sequence[RequestEntry], *, log: bool
) -> bool:
    """Count one batch of a router process; whether it was new."""
    return tx.usage.add((UsageOf(source, boot, sequence, entries),), log=log).new == 1


@contextmanager
def hub_is_free() -> Iterator[None]:
    """Fails if the event loop is held meanwhile. What is tested takes longer than ``HELD``."""
    detector = StallDetector(threshold=HELD).start()
    try:
        yield
    finally:
        detector.stop()
    assert detector.longest == 0.0


class Place:
    """Where a store is, and ways to open it; all are closed with the test."""

    def __init__(self, kind: str, make: Callable[..., Any], query: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self.kind = kind
        self.backend = make
        self.query = query
        self._open: list[Any] = []

    def open(self, *, write: bool = True) -> Database:
        """One connection."""
        database = Database(self.backend(), write=write).open()
        self._open.append(database)
        return database

    def threads(
        self, timeout: float = 5.0, *, guard: Callable[[Transaction], None] | None = None, **more: Any
    ) -> StoreThreads:
        """A writer and a reader in threads, as the control plane has them."""
        backend = self.backend(**more)
        started = threads(backend, timeout, guard).start()
        self._open.append(started)
        return started

    def close(self) -> None:
        """Close what was opened."""
        for one in self._open:
            one.close()


@contextmanager
def sqlite_place(folder: Path, template: Path | None = None) -> Iterator[Place]:
    """A SQLite file: a copy of ``template``, or none yet."""
    file = folder / "llmgw.db"
    if template is not None:
        shutil.copy(template, file)

    def query(statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(file, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    place = Place("sqlite", lambda **more: Sqlite(file, **({"busy_timeout": 0.3} | more)), query)
    try:
        yield place
    finally:
        place.close()


@contextmanager
def postgresql_place(server: Server, url: str) -> Iterator[Place]:
    """A database of the server."""
    name = url.partition("?")[0].rpartition("/")[2]
    place = Place("postgresql", lambda **more: Postgresql(url, **more), lambda text: server.execute(text, name))
    try:
        yield place
    finally:
        place.close()
