"""What happens before there is a control plane: getting hold of the store, however long
that takes, and reading what people wrote."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gevent.event import Event

from controlplane.catalog.load import STORE, Files, merge, read_files
from controlplane.catalog.model import Catalog
from controlplane.leadership.single import DatabaseLock
from controlplane.listeners.tokens import FleetTokens, load_tokens
from controlplane.loop import LoopSettings
from controlplane.remembered import Remembered, remember
from controlplane.store.access import StoreThreads
from controlplane.store.backup import back_up
from controlplane.store.database import Backend
from controlplane.store.opening import backend_of, threads
from controlplane.store.port import StoredModel, StoreError, StoreUnavailable
from controlplane.store.sqlite import Sqlite
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.files import private_directory
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Fault, Loaded, SettingsError

log = Logger("llmgw.store")

OPENING = 30.0
"""Seconds the store has at the start."""

PAUSE = 2.0
"""Seconds between two tries."""


@dataclass(frozen=True)
class OpenStore:
    """The store in use, what it held, and what keeps a second control plane out of it."""

    threads: StoreThreads
    kept: Remembered
    release: Callable[[], None]

    def close(self, timeout: float) -> None:
        """Finish what waits, then let another control plane in."""
        self.threads.close(timeout)
        self.release()


def make_state_dir(state_dir: Path) -> Path:
    """Make the state directory. Raises ``SettingsError``."""
    try:
        private_directory(state_dir)
    except OSError as error:
        raise SettingsError(
            "llmgw server", [Fault("state_dir", f"{state_dir} cannot be used: {error.strerror}")]
        ) from error
    return state_dir


def open_store(settings: Loaded, stopping: Event) -> OpenStore | None:
    """The store, opened and read. While its server does not answer, is a standby, or has no
    room: wait and try again, until ``stopping`` (then ``None``). Raises ``StoreError`` if
    waiting would not help."""
    state_dir = make_state_dir(settings["state_dir"])
    password_file = settings["store.password_file"]
    backend: Any = backend_of(
        settings["store.url"],
        Path(password_file).expanduser() if password_file else None,
        state_dir,
        exclusive=True,
        back_up=lambda revision: _back_up(backend, state_dir, revision),
    )
    lock = DatabaseLock(backend.file) if isinstance(backend, Sqlite) else None
    release = lock.release if lock else lambda: None
    while not stopping.is_set():
        try:
            opened = threads(backend, settings["store.timeout"]).start()
            try:
                return OpenStore(opened, _read(opened), release)
            except BaseException:
                opened.close(timeout=1.0)
                raise
        except StoreUnavailable as error:
            if error.lasting:
                release()
                raise
            log.warning("the store cannot be opened yet: waiting for it", why=error, seconds=PAUSE)
        except BaseException:
            release()
            raise
        stopping.wait(PAUSE)
    release()
    return None


def _read(opened: StoreThreads) -> Remembered:
    candidate = secrets.token_bytes(32)
    now = SystemClock().now().timestamp()
    return opened.write(lambda tx: remember(tx, candidate, now), timeout=OPENING)


def _back_up(backend: Backend, state_dir: Path, revision: str) -> None:
    """Before an upgrade of the schema from ``revision``."""
    clock = SystemClock()
    folder = state_dir / "backups"
    try:
        private_directory(folder)
    except OSError as error:
        raise StoreError(
            f"{backend.name}: its schema is to be upgraded, but {folder}, where it is to be backed up first, cannot be "
            f"used: {error.strerror}"
        ) from error
    file = folder / f"before-upgrade-from-{revision}-{clock.now():%Y%m%dT%H%M%SZ}.backup"
    log.info("the store's schema is upgraded: backing it up first", file=file)
    back_up(backend, file, clock)


def loop_settings(settings: Loaded) -> LoopSettings:
    """The settings that the loop knows."""
    return LoopSettings(
        interval=settings["loop.interval"],
        heartbeat=settings["agents.heartbeat"],
        silence=settings["agents.silence"],
        unreachable_after=settings["nodes.unreachable_after"],
        lost_after=settings["nodes.lost_after"],
        settling_steady=settings["settling.steady"],
        settling_limit=settings["settling.limit"],
        drain_grace=settings["drain.grace"],
        stop_grace=settings["stop.grace"],
        backoff_first=settings["backoff.first"],
        backoff_limit=settings["backoff.limit"],
        parking_failures=settings["parking.failures"],
    )


def load_all(settings: Loaded, allowed: Iterable[str]) -> tuple[Files, Catalog, FleetTokens]:
    """What people wrote besides the settings; all faults of all files at once. ``allowed``
    are flags of engines, see ``engines.allow``."""
    faults: list[Fault] = []

    def attempt(read: Callable[[Path], Any], name: str) -> Any:
        try:
            return read(settings[name])
        except SettingsError as error:
            faults.extend(
                Fault(f"{error.source}: {fault.path}" if fault.path else error.source, fault.message)
                for fault in error.faults
            )
            return None

    files = read_files(settings["catalog"])
    catalog, tokens = attempt(lambda _: merge(files, None, allowed), "catalog"), attempt(load_tokens, "fleet_tokens")
    if faults:
        raise SettingsError("llmgw server", faults)
    return files, catalog, tokens


def whole_catalog(files: Files, stored: Mapping[str, StoredModel], allowed: Iterable[str]) -> Catalog:
    """The catalog of files and store at the start. Raises ``SettingsError`` with all
    faults; of one in the store, which no API can mend now, it tells who can."""
    try:
        return merge(files, {name: row.definition for name, row in stored.items()}, allowed)
    except SettingsError as error:
        if not any(fault.path.startswith(f"{STORE}: ") for fault in error.faults):
            raise
        way = "the models of the store were added live: to take one out while the control plane is stopped, run"
        raise SettingsError(error.source, [*error.faults, Fault("", f"{way} llmgw store remove-model NAME")]) from error
