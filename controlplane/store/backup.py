"""Backups: one file that holds everything, made while the control plane runs, good for
either kind of database (STO-02).

A backup is a gzipped tar of ``manifest.json`` and ``store.db``, a SQLite database with
the content of every table. It holds secrets: mode 0600. The manifest has the schema, and
rows and checksum of each table, so that a backup that was damaged is noticed. Blocking.
"""

import contextlib
import gzip
import hashlib
import os
import shutil
import sqlite3
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
from alembic import command
from sqlalchemy import Connection

from controlplane.store import schema
from controlplane.store.database import Backend, Database
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.move import Progress, Sum, compare, copy, nothing, reading, sums, writing
from controlplane.store.scratch import scratch
from controlplane.store.sqlite import Sqlite
from llmgw import __version__
from llmgw.runtime.clock import Clock
from llmgw.runtime.files import open_regular, sync_directory

FORMAT = 1
MANIFEST = "manifest.json"
DATABASE = "store.db"

MAX_MANIFEST = 1024 * 1024
_BLOCK = 1024 * 1024
_COMPRESSION = 1  # a backup shall be over soon

DAMAGED = "it is damaged"


class BadArchive(StoreError):
    """A file that is no backup, or not a whole one."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup says about itself. ``tables`` maps names to rows and checksum."""

    format: int
    made_at: str
    llmgw: str
    store: str
    schema: str
    bytes: int
    sha256: str
    tables: dict[str, tuple[int, str]]

    def sums(self) -> dict[str, Sum]:
        """Its tables."""
        return {name: Sum(*figures) for name, figures in self.tables.items()}


@dataclass(frozen=True, slots=True)
class Made:
    """A backup that was made and read back."""

    file: Path
    size: int
    manifest: Manifest


class _Named(Protocol):
    name: str


def back_up(backend: Backend, to: Path, clock: Clock, progress: Progress = nothing) -> Made:
    """Write a backup of the store to the new file ``to`` and read it back. Raises
    ``StoreError``; then there is no such file."""
    if to.exists():
        raise StoreError(f"{to}: exists already: choose another name")
    with _told(to), scratch(to.parent) as folder:
        database = folder / DATABASE
        if isinstance(backend, Sqlite):
            _copy_file(backend.file, database)
        else:
            with reading(backend) as source:
                _copy_rows(source, database, progress)
        manifest = _manifest(database, backend, clock)
        half = folder / "backup"
        _pack(database, manifest, half)
        with unpacked(half, folder / "read-back", progress):
            half.replace(to)
        sync_directory(to.parent)
        return Made(to, to.stat().st_size, manifest)


@contextmanager
def unpacked(file: Path, folder: Path, progress: Progress = nothing) -> Iterator[tuple[Manifest, Sqlite]]:
    """The store in a backup, verified, in the new directory ``folder``, which is removed
    afterwards. Raises ``BadArchive``."""
    folder.mkdir(mode=0o700)
    try:
        manifest = _unpack(file, folder / DATABASE)
        store = Sqlite(folder / DATABASE)
        _verify(file, manifest, store, progress)
        yield manifest, store
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def upgraded(store: Sqlite) -> Sqlite:
    """Walk an unpacked store up to this program's schema. Raises ``StoreError`` for one
    that a newer program wrote."""
    try:
        Database(store).open().close()
    except StoreUnavailable as error:
        raise StoreError(str(error)) from error
    return store


# ---------------------------------------------------------------- making


@contextmanager
def _told(file: Path) -> Iterator[None]:
    try:
        yield
    except gzip.BadGzipFile:  # an OSError too, but of the file that is read
        raise
    except OSError as error:
        raise StoreError(f"{error.filename or file}: {error.strerror or error}") from error


def _private(file: Path) -> Path:
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return file


def _copy_file(file: Path, copy_to: Path) -> None:
    """SQLite's own copy, as of one moment, while others write."""
    if not file.exists():
        raise StoreError(f"{file}: there is no store yet (--config names the settings of one elsewhere)")
    with (
        contextlib.closing(sqlite3.connect(f"file:{_quoted(file)}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(_private(copy_to))) as target,
    ):
        try:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it
        except sqlite3.Error as error:
            raise StoreError(f"{file}: cannot be copied: {error}") from error


def _quoted(file: Path) -> str:
    return str(file.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _copy_rows(source: Connection, copy_to: Path, progress: Progress) -> None:
    """The rows of any database, of the schema it has, in a SQLite file."""
    revision = schema.current(source)
    if revision is None:
        raise StoreError("there is no store yet")
    _private(copy_to)
    with writing(Sqlite(copy_to)) as target:
        command.upgrade(schema.configuration(target), revision)
        copy(source, target, progress)
    with contextlib.closing(sqlite3.connect(copy_to)) as target_file:
        target_file.execute("PRAGMA journal_mode = DELETE")


def _manifest(database: Path, backend: _Named, clock: Clock) -> Manifest:
    with reading(Sqlite(database)) as connection:
        revision = schema.current(connection)
        if revision is None:
            raise StoreError(f"{backend.name}: there is no store yet")
        tables = sums(connection)
    return Manifest(
        format=FORMAT,
        made_at=clock.now().isoformat(timespec="seconds"),
        llmgw=__version__,
        store=backend.name,
        schema=revision,
        bytes=database.stat().st_size,
        sha256=_digest(database),
        tables={name: (found.rows, found.checksum) for name, found in tables.items()},
    )


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _pack(database: Path, manifest: Manifest, to: Path) -> None:
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    _private(to)
    with to.open("wb") as raw:
        with (
            gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_COMPRESSION, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            database.open("rb") as stream,
        ):
            archive.addfile(_member(MANIFEST, len(content)), BytesIO(content))
            archive.addfile(_member(DATABASE, manifest.bytes), stream)
        raw.flush()
        os.fsync(raw.fileno())


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o600
    return member


# ---------------------------------------------------------------- reading


def read_manifest(file: Path) -> Manifest:
    """What a backup says about itself; all of the file is read. Raises ``BadArchive``."""
    with _archive(file) as archive:
        return _first(file, archive)


@contextmanager
def _archive(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with open_regular(file) as raw, gzip.GzipFile(fileobj=raw) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as archive:
                yield archive
                while archive.next() is not None:
                    pass
            while packed.read(_BLOCK):  # to the end, where gzip's own checksum is
                pass
    except (tarfile.ReadError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadArchive(f"{file}: it is no backup made by llmgw store backup, or {DAMAGED} ({error})") from error
    except OSError as error:
        raise StoreError(f"{file}: cannot be read: {error.strerror or error}") from error


def _first(file: Path, archive: tarfile.TarFile) -> Manifest:
    member = archive.next()
    stream = archive.extractfile(member) if member is not None and member.isreg() else None
    if member is None or stream is None or member.name != MANIFEST or member.size > MAX_MANIFEST:
        raise BadArchive(f"{file}: it is no backup made by llmgw store backup: it does not begin with {MANIFEST}")
    try:
        manifest = msgspec.json.decode(stream.read(), type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadArchive(f"{file}: its {MANIFEST} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise BadArchive(
            f"{file}: it is of format {manifest.format}, this program reads format {FORMAT}: "
            f"restore it with llmgw {manifest.llmgw[:40]}"
        )
    return manifest


def _unpack(file: Path, to: Path) -> Manifest:
    with _archive(file) as archive:
        manifest = _first(file, archive)
        member = archive.next()
        stream = archive.extractfile(member) if member is not None and member.isreg() else None
        if member is None or stream is None or member.name != DATABASE or member.size != manifest.bytes:
            raise BadArchive(f"{file}: {DAMAGED}: {DATABASE} is missing or not as long as it should be")
        with _told(to.parent), _private(to).open("wb") as target:
            if _copy_stream(stream, target) != manifest.sha256:
                raise BadArchive(f"{file}: {DAMAGED}: the checksum of {DATABASE} is not that of its {MANIFEST}")
    return manifest


def _copy_stream(source: BinaryIO | object, target: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := source.read(_BLOCK):  # type: ignore[union-attr]
        digest.update(block)
        target.write(block)
    target.flush()
    return digest.hexdigest()


def _verify(file: Path, manifest: Manifest, store: Sqlite, progress: Progress) -> None:
    with reading(store) as connection:
        if schema.current(connection) != manifest.schema:
            raise BadArchive(f"{file}: {DAMAGED}: its {DATABASE} is not of the schema that its {MANIFEST} says")
        found = sums(connection, progress)
    compare(manifest.sums(), found, f"{file}: {DAMAGED}: what is in it")
