"""What happens before there is a control plane: getting hold of the store, however long
that takes, and reading what people wrote."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gevent.event import Event

from controlplane.catalog.load import STORE, Files, merge, read_files
from controlplane.catalog.model import Catalog
from controlplane.identities import Credentials
from controlplane.leadership.single import DatabaseLock, StateLock
from controlplane.loop import LoopSettings
from controlplane.remembered import Remembered, remember
from controlplane.services.secrets import fresh
from controlplane.settings import identity_folder
from controlplane.store.access import StoreThreads
from controlplane.store.backup import back_up
from controlplane.store.database import Backend, Database
from controlplane.store.errors import NotLeading, StoreError, StoreUnavailable
from controlplane.store.opening import backend_of, threads
from controlplane.store.port import Transaction
from controlplane.store.sqlite import Sqlite
from controlplane.store.values import StoredModel
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
    """The store as the lease needs it, over all terms, and what keeps others out meanwhile."""

    lease: StoreThreads
    release: Callable[[], None]

    def close(self, timeout: float) -> None:
        """Finish what waits, then let another control plane in."""
        self.lease.close(timeout)
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
    """The store, opened for the lease, its schema brought up to this program's. While its
    server does not answer, is a standby, or has no room: wait and try again, until
    ``stopping`` (then ``None``). Raises ``StoreError`` if waiting would not help."""
    state_dir = make_state_dir(settings["state_dir"])
    shared = settings["ha.enabled"]
    backend: Any = _backend(
        settings,
        lock="shared" if shared else "exclusive",
        back_up=lambda revision: _back_up(backend, state_dir, revision),
    )
    with ExitStack() as locks:
        if isinstance(backend, Sqlite):
            locks.callback(DatabaseLock(backend.file, shared=shared).release)
        locks.callback(StateLock(state_dir).release)
        while not stopping.is_set():
            try:
                opened = StoreThreads(lambda: Database(backend), None, settings["store.timeout"]).start()
                return OpenStore(opened, locks.pop_all().close)
            except StoreUnavailable as error:
                if error.lasting:
                    raise
                log.warning("the store cannot be opened yet: waiting for it", why=error, seconds=PAUSE)
            stopping.wait(PAUSE)
    return None


def open_for_term(
    settings: Loaded, guard: Callable[[Transaction], None], over: Callable[[float], bool]
) -> tuple[StoreThreads, Remembered] | None:
    """The store for one term, whose ``guard`` each writing transaction must pass, and what it
    holds. While it does not answer: wait and try again, until ``over(seconds)``, which
    waits so long at most, says that the term is over (then ``None``). Raises ``StoreError``."""
    candidate = fresh(1, SystemClock().now().timestamp())
    while True:
        try:
            opened = threads(_backend(settings), settings["store.timeout"], guard).start()
            try:
                return opened, opened.write(lambda tx: remember(tx, candidate), timeout=OPENING)
            except BaseException:
                opened.close(timeout=1.0)
                raise
        except NotLeading as error:
            log.warning("the lease was lost before anything began", why=error)
        except StoreUnavailable as error:
            if error.lasting:
                raise
            log.warning("the store cannot be read yet: waiting for it", why=error, seconds=PAUSE)
        if over(PAUSE):
            return None


def open_for_leftovers(settings: Loaded) -> StoreThreads:
    """The store for who stands by and hands over what it has (``controlplane.leftovers``); to
    be started. No guard: that needs no lead. Yet nobody may have the store for himself, as a
    restore does, which would undo what we add."""
    return threads(_backend(settings, lock="shared"), settings["store.timeout"])


def _backend(settings: Loaded, **more: Any) -> Backend:
    password_file = settings["store.password_file"]
    file = Path(password_file).expanduser() if password_file else None
    return backend_of(settings["store.url"], file, settings["state_dir"], **more)


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


def load_all(settings: Loaded, allowed: Iterable[str]) -> tuple[Files, Catalog, Credentials]:
    """What people wrote besides the settings; all faults of all files at once. ``allowed``
    are flags of engines, see ``engines.allow``."""
    faults: list[Fault] = []

    def attempt(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except SettingsError as error:
            faults.extend(
                Fault(f"{error.source}: {fault.path}" if fault.path else error.source, fault.message)
                for fault in error.faults
            )
            return None

    files = read_files(settings["catalog"])
    catalog = attempt(lambda: merge(files, None, allowed))
    credentials = attempt(lambda: Credentials(identity_folder(settings), SystemClock()).load())
    if faults:
        raise SettingsError("llmgw server", faults)
    return files, catalog, credentials


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
