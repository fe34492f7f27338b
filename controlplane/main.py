"""The control plane's process: ``python -m controlplane.main --config FILE``.

The only composition root: the one place that builds stores, drivers and listeners.
"""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import secrets  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from controlplane.api.app import MAX_BODY, create_app  # noqa: E402
from controlplane.catalog.load import load_catalog  # noqa: E402
from controlplane.catalog.model import Catalog  # noqa: E402
from controlplane.driver import Driver  # noqa: E402
from controlplane.events import (  # noqa: E402
    CloseSession,
    Commit,
    Committed,
    Cordon,
    Decision,
    EnrolmentChanged,
    EpochRaised,
    Note,
    PublishRoutes,
    Send,
)
from controlplane.inbox import Inbox  # noqa: E402
from controlplane.journal import Journal  # noqa: E402
from controlplane.leadership.single import DatabaseLock  # noqa: E402
from controlplane.listeners.agents import AgentListener  # noqa: E402
from controlplane.listeners.http import HttpListener  # noqa: E402
from controlplane.listeners.routers import RouterApplication, RouterSeen  # noqa: E402
from controlplane.listeners.tokens import FleetTokens, load_tokens  # noqa: E402
from controlplane.loop import Loop, LoopSettings  # noqa: E402
from controlplane.metrics import Metrics, Sources  # noqa: E402
from controlplane.offhub import off_hub  # noqa: E402
from controlplane.publish.table import Publisher  # noqa: E402
from controlplane.services.catalog import CatalogService  # noqa: E402
from controlplane.services.context import Services  # noqa: E402
from controlplane.services.errors import Refused  # noqa: E402
from controlplane.services.fleet import Fleet  # noqa: E402
from controlplane.services.keys import Keys  # noqa: E402
from controlplane.services.recovery import once_answered  # noqa: E402
from controlplane.services.status import Identity, Status  # noqa: E402
from controlplane.settings import load  # noqa: E402
from controlplane.store.port import ApiKey, Store, StoreError, StoreUnavailable  # noqa: E402
from controlplane.store.sqlite import SqliteStore  # noqa: E402
from controlplane.store.writer import StoreWriter  # noqa: E402
from llmgw import __version__  # noqa: E402
from llmgw.runtime.clock import SystemClock  # noqa: E402
from llmgw.runtime.daemon import Stopper, allow_many_files, reload_when, run  # noqa: E402
from llmgw.runtime.files import private_directory  # noqa: E402
from llmgw.runtime.logs import Logger, configure, set_level  # noqa: E402
from llmgw.runtime.settings import Fault, Loaded, SettingsError  # noqa: E402
from llmgw.runtime.stall import StallDetector  # noqa: E402
from llmgw.wire.routing import MAX_REPORT  # noqa: E402

log = Logger("llmgw.server")
decisions = Logger("llmgw.decision")

DEFAULT_CONFIG = Path("/etc/llmgw/controlplane.yaml")
OPENING = 30.0
"""Seconds the store has at the start."""


class ControlPlane:
    """Everything of one control plane, wired. ``start`` binds the listeners."""

    def __init__(self, settings: Loaded, catalog: Catalog, tokens: FleetTokens, reread: Callable[[], Loaded]) -> None:
        self._settings = settings
        self._reread = reread
        self._tokens = tokens
        self._clock = SystemClock()
        state_dir = _make_state_dir(settings["state_dir"])
        database = state_dir / "llmgw.db"
        self._lock = DatabaseLock(database)
        self._store = StoreWriter(lambda: SqliteStore(database), settings["store.timeout"]).start()
        now = self._clock.now().timestamp()
        candidate = secrets.token_bytes(32)

        def open_with(store: Store) -> tuple[int, bytes, tuple[ApiKey, ...], dict[str, Cordon]]:
            return store.take_epoch(), store.secret("engine", candidate, now), store.api_keys(), store.cordons()

        epoch, secret, keys, cordons = self._store.call(open_with, timeout=OPENING)
        boot = secrets.token_hex(4)
        identity = Identity(__version__, boot, self._clock.monotonic(), lambda: self._loop.epoch)
        self._inbox = Inbox()
        self._publisher = Publisher(boot)
        self._journal = Journal(
            state_dir / "decisions.jsonl",
            self._clock,
            lambda batch: self._inbox.force(Committed(batch)),
            epoch,
            settings["journal.max_bytes"],
        )
        try:
            self._journal.start()
        except OSError as error:
            message = f"the decision journal {state_dir / 'decisions.jsonl'} cannot be used: {error.strerror}"
            raise SettingsError("llmgw server", [Fault("state_dir", message)]) from error
        self._loop = Loop(
            _loop_settings(settings),
            catalog,
            enrolled=frozenset(tokens.nodes),
            cordons=cordons,
            rng=random.SystemRandom(),
            epoch=epoch,
            boot=boot,
            version=__version__,
            engine_secret=secret,
            now=self._clock.monotonic(),
        )
        self._agents = AgentListener(
            settings["agents.listen"],
            self._inbox,
            lambda: self._tokens,
            self._clock,
            silence=settings["agents.silence"],
            hello=settings["agents.hello"],
            max_pending=settings["agents.max_pending"],
        )
        self._driver = Driver(
            self._loop,
            self._inbox,
            self._clock,
            {
                Send: lambda effect: self._agents.send(effect.session, effect.message),
                CloseSession: lambda effect: self._agents.close(effect.session, effect.refuse),
                Commit: self._commit,
                Note: self._note,
                EpochRaised: self._raise_epoch,
                PublishRoutes: lambda effect: self._publisher.set_routes(effect.models, effect.settling),
            },
        )
        router_application = RouterApplication(self._publisher, self._inbox, lambda: self._tokens, self._clock)
        self._routers = HttpListener(
            settings["routers.listen"], router_application, Logger("llmgw.routers"), max_body=MAX_REPORT
        )
        self._catalog = CatalogService(settings["catalog"], catalog, self._inbox, self._clock)
        fleet = Fleet(lambda: self._loop.view, self._publisher, self._inbox, self._store, self._clock)
        self._stall = StallDetector()

        def seen() -> Iterable[RouterSeen]:
            return router_application.current()

        metrics = Metrics(
            Sources(
                identity=identity,
                fleet=fleet,
                driver=self._driver,
                inbox=self._inbox,
                agents=self._agents,
                journal=self._journal,
                store=self._store,
                stall=self._stall,
                clock=self._clock,
                routers=seen,
            )
        )
        services = Services(
            fleet=fleet,
            status=Status(
                identity,
                fleet=fleet,
                catalog=self._catalog,
                store=self._store,
                clock=self._clock,
                routers=seen,
                refusals=lambda: self._agents.refusals,
                journal=self._journal,
            ),
            keys=Keys(self._store, self._publisher, self._clock, lambda: self._catalog.current, keys),
            catalog=self._catalog,
            journal=self._journal,
            settings=settings,
            metrics=metrics.render,
        )
        self._admin = HttpListener(
            settings["admin.listen"], create_app(services, __version__), Logger("llmgw.api"), max_body=MAX_BODY
        )

    def start(self) -> None:
        """Bind every listener and begin. Raises ``SettingsError`` naming the setting
        whose address cannot be had."""
        faults: list[Fault] = []
        for name, listener in self._listeners():
            try:
                listener.start()
            except OSError as error:
                faults.append(Fault(name, f"cannot listen on {self._settings[name]}: {error.strerror or error}"))
        if faults:
            raise SettingsError("llmgw server", faults)
        self._stall.start()
        self._driver.start()
        for name, listener in self._listeners():
            sys.stdout.write(f"llmgw server: {name} {listener.address}\n")
        sys.stdout.flush()

    def reload(self) -> None:
        """SIGHUP: tokens, catalog and log level; what is faulty stays as it was."""
        try:
            set_level(off_hub(self._reread)["log.level"])
        except SettingsError as error:
            log.error("the settings file was refused, the log level stays", faults=error)
        try:
            self._tokens = off_hub(load_tokens, self._settings["fleet_tokens"])
        except SettingsError as error:
            log.error("the fleet tokens were refused, those in use stay", faults=error)
        else:
            self._inbox.force(EnrolmentChanged(frozenset(self._tokens.nodes)))
            self._agents.drop_unenrolled()
            log.info("fleet tokens loaded", nodes=len(self._tokens.nodes), routers=len(self._tokens.routers))
        try:
            self._catalog.reload("SIGHUP")
        except Refused as error:
            log.error("the catalog was not reloaded", why=error)

    def stop(self) -> None:
        """Say goodbye to agents, let go of everything, within two seconds."""
        self._publisher.close()
        self._agents.stop(timeout=0.4)
        self._driver.stop()
        self._routers.stop(timeout=0.1)
        self._admin.stop(timeout=0.2)
        self._journal.stop(timeout=0.4)
        self._store.close(timeout=0.4)
        self._stall.stop()
        self._lock.release()

    def _listeners(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("agents.listen", self._agents),
            ("routers.listen", self._routers),
            ("admin.listen", self._admin),
        )

    def _commit(self, effect: Commit) -> None:
        for decision in effect.decisions:
            _tell(decision)
        self._journal.commit(effect.batch, effect.decisions)

    def _raise_epoch(self, effect: EpochRaised) -> None:
        log.warning("an agent had seen a higher epoch: commands carry a new one", epoch=effect.epoch)
        self._journal.epoch = effect.epoch
        once_answered(self._store, lambda store: store.raise_epoch(effect.epoch), lambda _: None)

    def _note(self, effect: Note) -> None:
        _tell(effect.decision)
        self._journal.note(effect.decision)


def _tell(decision: Decision) -> None:
    named = {"model": decision.model, "replica": decision.replica, "node": decision.node}
    decisions.info(decision.kind, why=decision.reason, **{name: value for name, value in named.items() if value})


def _make_state_dir(state_dir: Path) -> Path:
    try:
        private_directory(state_dir)
    except OSError as error:
        raise SettingsError(
            "llmgw server", [Fault("state_dir", f"{state_dir} cannot be used: {error.strerror}")]
        ) from error
    return state_dir


def _loop_settings(settings: Loaded) -> LoopSettings:
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


def _load_all(settings: Loaded) -> tuple[Catalog, FleetTokens]:
    """What people wrote besides the settings; all faults of all files at once."""
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

    catalog, tokens = attempt(load_catalog, "catalog"), attempt(load_tokens, "fleet_tokens")
    if faults:
        raise SettingsError("llmgw server", faults)
    return catalog, tokens


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, load what people wrote, serve until told to stop."""
    parser = argparse.ArgumentParser(prog="llmgw server", description="The llmgw control plane.")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"settings file (default {DEFAULT_CONFIG}, if there)"
    )
    parser.add_argument("--check", action="store_true", help="check settings, tokens and catalog; exit with 0 or 2")
    parser.add_argument("--log-level", metavar="LEVEL", help="instead of the setting log.level")
    parser.add_argument("--version", action="version", version=f"llmgw {__version__}")
    options = parser.parse_args(arguments)
    config: Path | None = options.config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)

    def read() -> Loaded:
        return load(config, os.environ, {"log.level": options.log_level})

    settings = read()
    catalog, tokens = _load_all(settings)
    if options.check:
        figures = f"{len(catalog.models)} models, {len(tokens.nodes)} nodes, {len(tokens.routers)} routers"
        sys.stdout.write(f"llmgw server: settings, tokens and catalog are valid ({figures})\n")
        return 0
    configure(settings["log.level"], settings["log.format"])
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return _serve(settings, catalog, tokens, read)


def _serve(settings: Loaded, catalog: Catalog, tokens: FleetTokens, reread: Callable[[], Loaded]) -> int:
    asked = Event()
    stopper = Stopper(asked.set)  # first of all: a SIGHUP while we start must not end us
    allow_many_files()
    try:
        control_plane = ControlPlane(settings, catalog, tokens, reread)
    except (StoreError, StoreUnavailable) as error:
        raise SettingsError("llmgw server", [Fault("state_dir", str(error))]) from error
    control_plane.start()
    gevent.spawn(reload_when, asked, control_plane.reload)
    stopper.wait()
    control_plane.stop()
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
