"""What happens before there is a control plane: getting hold of the store, however long
that takes, and reading what people wrote."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gevent.event import Event

from controlplane.catalog.load import STORE, Files, merge, read_files, without_clashes
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
from controlplane.store.opening import FILE, backend_of, threads, used
from controlplane.store.port import Transaction
from controlplane.store.sqlite import Sqlite
from controlplane.store.values import StoredModel
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.files import private_directory
from llmgw.runtime.logs import Logger
from llmgw.runtime.repeated import Repeated
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
        raise unusable(str(state_dir), error) from error
    return state_dir


def unusable(what: str, error: OSError) -> SettingsError:
    """The fault of a state directory."""
    return SettingsError("llmgw server", [Fault("state_dir", f"{what} cannot be used: {error.strerror}")])


def open_store(settings: Loaded, stopping: Event) -> OpenStore | None:
    """The store, opened for the lease, its schema brought up to this program's unless another
    holds the lease: that may be an older one, so it is done by ``open_for_term``. While its
    server does not answer, is a standby, or has no room: wait and try again, until
    ``stopping`` (then ``None``). Raises ``StoreError`` if waiting would not help, ``SettingsError``
    as ``forget_nothing`` does."""
    state_dir = make_state_dir(settings["state_dir"])
    shared = settings["ha.enabled"]
    backend = _backend(settings, lock="shared" if shared else "exclusive")
    with ExitStack() as locks:
        if isinstance(backend, Sqlite):
            named_by = "store.url" if settings["store.url"] else "state_dir"
            locks.callback(DatabaseLock(backend.file, shared=shared, named_by=named_by).release)
        locks.callback(StateLock(state_dir).release)
        waiting = Repeated(log.warning, "the store cannot be opened yet: waiting for it")

        def database() -> Database:
            return Database(backend, upgrade=_free, behind=True) if shared else Database(backend)

        while not stopping.is_set():
            try:
                opened = StoreThreads(database, None, settings["store.timeout"]).start()
                try:
                    forget_nothing(settings)
                except BaseException:
                    opened.close(timeout=1.0)
                    raise
                return OpenStore(opened, locks.pop_all().close)
            except StoreUnavailable as error:
                if error.lasting:
                    raise
                waiting.happened(time.monotonic(), error, seconds=PAUSE)
            stopping.wait(PAUSE)
    return None


def open_for_term(
    settings: Loaded, guard: Callable[[Transaction], None], over: Callable[[float], bool]
) -> tuple[StoreThreads, Remembered] | None:
    """The store for one term, whose ``guard`` each writing transaction must pass, its schema
    brought up to this program's, and what it holds. While it does not answer: wait and try
    again, until ``over(seconds)``, which waits so long at most, says that the term is over
    (then ``None``). Raises ``StoreError``."""
    candidate = fresh(1, SystemClock().now().timestamp())
    waiting = Repeated(log.warning, "the store cannot be read yet: waiting for it")
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
            waiting.happened(time.monotonic(), error, seconds=PAUSE)
        if over(PAUSE):
            return None


def open_to_look(settings: Loaded) -> StoreThreads:
    """The store for who only reads it; to be started, which raises ``StoreError`` if a newer release
    has it."""
    return StoreThreads(lambda: Database(_backend(settings), write=False), None, settings["store.timeout"])


def open_for_leftovers(settings: Loaded) -> StoreThreads:
    """The store for who stands by and hands over what it has (``controlplane.leftovers``); to
    be started. No guard: that needs no lead. Yet nobody may have the store for himself, as a
    restore does, which would undo what we add."""
    return threads(_backend(settings, lock="shared"), settings["store.timeout"], upgrade=False)


def forget_nothing(settings: Loaded) -> None:
    """Raise ``SettingsError`` if ``store.url`` names a store in which nobody made anything, beside
    one in the state directory where somebody did: keys, models and revocations would be gone,
    and all that runs would be stopped. Blocks. Raises ``StoreUnavailable`` or ``StoreError`` if
    that cannot be told."""
    file: Path = settings["state_dir"] / FILE
    if not settings["store.url"] or not file.exists():
        return
    named = _backend(settings)
    if (isinstance(named, Sqlite) and named.file.exists() and named.file.samefile(file)) or used(named):
        return
    if used(Sqlite(file)):
        words = (
            f"names an empty store ({named.name}), and what was used before is in {file}: keys, models, users and "
            "enrolled nodes would be gone. To take them along, leave store.url out, run llmgw store move, then set it; "
            f"to begin with nothing, move {file} away"
        )
        raise SettingsError("llmgw server", [Fault("store.url", words)])


def _free(tx: Transaction) -> bool:
    """Whether nobody leads: one that ended without a word does until somebody takes its lease."""
    row = tx.leadership.read()
    return row is None or not row.owner


def _backend(settings: Loaded, **more: Any) -> Backend:
    password_file = settings["store.password_file"]
    file = Path(password_file).expanduser() if password_file else None
    state_dir = settings["state_dir"]

    def aside(revision: str) -> None:
        _back_up(backend, state_dir, revision)

    backend = backend_of(settings["store.url"], file, state_dir, back_up=aside, **more)
    return backend


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


@dataclass(frozen=True)
class Whole:
    """A ``catalog`` of ``files`` and store. ``left_out`` names what of the files is not in it, for the
    faults in ``refusal``."""

    files: Files
    catalog: Catalog
    refusal: SettingsError | None = None
    left_out: tuple[str, ...] = ()


def whole_catalog(files: Files, stored: Mapping[str, StoredModel], allowed: Iterable[str]) -> Whole:
    """The catalog of files and store at the start. A name of both is the store's, since that is what
    served: the file's is left out until somebody mends it. Raises ``SettingsError`` with all other
    faults; of one in the store, which no API can mend now, it tells who can."""
    definitions = {name: row.definition for name, row in stored.items()}
    try:
        return Whole(files, merge(files, definitions, allowed))
    except SettingsError as error:
        refusal = error
    fewer, left_out = without_clashes(files, definitions)
    try:
        whole = Whole(fewer, merge(fewer, definitions, allowed), refusal, left_out)
    except SettingsError as error:
        if not any(fault.path.startswith(f"{STORE}: ") for fault in error.faults):
            raise refusal from error
        way = "the models of the store were added live: to take one out while the control plane is stopped, run"
        faults = [*refusal.faults, Fault("", f"{way} llmgw store remove-model NAME")]
        raise SettingsError(refusal.source, faults) from error
    log.error(
        "what models of the store are called is left out of the catalog's files", left_out=left_out, faults=refusal
    )
    return whole
