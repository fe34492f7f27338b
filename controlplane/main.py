"""The control plane's process: ``python -m controlplane.main --config FILE``.

The composition root: builds stores, drivers and listeners; ``controlplane.assembly`` puts
the services on top of them.
"""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import secrets  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from controlplane.api.app import MAX_BODY, create_app  # noqa: E402
from controlplane.assembly import Parts, assemble  # noqa: E402
from controlplane.background import Background  # noqa: E402
from controlplane.catalog.load import Files  # noqa: E402
from controlplane.clustersettings import FILE_SECTION, FileValue, allowable, file_values  # noqa: E402
from controlplane.driver import Driver  # noqa: E402
from controlplane.events import (  # noqa: E402
    CloseSession,
    Commit,
    Committed,
    Decision,
    EnrolmentChanged,
    EpochRaised,
    Note,
    PublishRoutes,
    Send,
    ServingSet,
)
from controlplane.inbox import Inbox  # noqa: E402
from controlplane.journal import JOURNAL, Journal  # noqa: E402
from controlplane.listeners.agents import AgentListener  # noqa: E402
from controlplane.listeners.http import HttpListener  # noqa: E402
from controlplane.listeners.routers import RouterApplication  # noqa: E402
from controlplane.listeners.tls import ServerTls  # noqa: E402
from controlplane.listeners.tokens import FleetTokens, load_tokens  # noqa: E402
from controlplane.loop import Loop  # noqa: E402
from controlplane.offhub import off_hub  # noqa: E402
from controlplane.planning.work import Measured  # noqa: E402
from controlplane.publish.providers import ProviderKeys, read_all  # noqa: E402
from controlplane.publish.routes import key_files  # noqa: E402
from controlplane.publish.table import Publisher  # noqa: E402
from controlplane.services.auth import load_local_token  # noqa: E402
from controlplane.services.catalog import CatalogService  # noqa: E402
from controlplane.services.changes import Changes  # noqa: E402
from controlplane.services.cluster_settings import ClusterSettings  # noqa: E402
from controlplane.services.errors import Refused  # noqa: E402
from controlplane.services.events import EventService  # noqa: E402
from controlplane.services.keys import Keys  # noqa: E402
from controlplane.services.recovery import once_answered  # noqa: E402
from controlplane.services.status import Identity  # noqa: E402
from controlplane.settings import load, secret_files  # noqa: E402
from controlplane.startup import (  # noqa: E402
    OpenStore,
    load_all,
    loop_settings,
    make_state_dir,
    open_store,
    whole_catalog,
)
from controlplane.store.port import StoreError, StoreUnavailable  # noqa: E402
from llmgw import __version__  # noqa: E402
from llmgw.runtime.clock import SystemClock  # noqa: E402
from llmgw.runtime.daemon import Stopper, allow_many_files, reload_when, run  # noqa: E402
from llmgw.runtime.garbage import Garbage  # noqa: E402
from llmgw.runtime.logs import Logger, configure, set_level  # noqa: E402
from llmgw.runtime.settings import Fault, Loaded, SettingsError  # noqa: E402
from llmgw.runtime.stall import StallDetector  # noqa: E402
from llmgw.wire.routing import MAX_REPORT  # noqa: E402

log = Logger("llmgw.server")
decisions = Logger("llmgw.decision")

DEFAULT_CONFIG = Path("/etc/llmgw/controlplane.yaml")


class ControlPlane:
    """Everything of one control plane, wired. ``start`` binds the listeners."""

    def __init__(
        self,
        settings: Loaded,
        files: Files,
        tokens: FleetTokens,
        reread: Callable[[], Loaded],
        store: OpenStore,
    ) -> None:
        self._settings = settings
        self._reread = reread
        self._tokens = tokens
        self._clock = SystemClock()
        state_dir = make_state_dir(settings["state_dir"])
        self._opened = store
        self._store = store.threads
        kept = store.kept
        changes = Changes(self._store, self._clock)
        self._cluster = ClusterSettings(
            self._store, changes, self._clock, file=file_values(settings), stored=kept.settings
        )
        self._cluster.on_change("log.level", set_level)
        set_level(self._cluster.value("log.level"))
        allowed = self._cluster.value("engines.allow")
        catalog = whole_catalog(files, kept.models, allowed)
        self._local_token = load_local_token(state_dir)
        boot = secrets.token_hex(4)
        self._inbox = Inbox()
        self._publisher = Publisher(boot)
        self._providers = ProviderKeys(
            self._publisher, self._inbox.force, partial(read_all, ours=secret_files(settings))
        )
        self._journal = Journal(
            state_dir / JOURNAL,
            self._clock,
            lambda batch: self._inbox.force(Committed(batch)),
            kept.epoch,
            settings["journal.max_bytes"],
        )
        try:
            self._journal.start()
        except OSError as error:
            message = f"the decision journal {state_dir / 'decisions.jsonl'} cannot be used: {error.strerror}"
            raise SettingsError("llmgw server", [Fault("state_dir", message)]) from error
        self._loop = Loop(
            loop_settings(settings),
            catalog,
            enrolled=frozenset(tokens.nodes),
            intent=kept.intent(stopped=self._cluster.value("serving.stopped")),
            rng=random.SystemRandom(),
            epoch=kept.epoch,
            boot=boot,
            version=__version__,
            engine_secret=kept.engine_secret,
            now=self._clock.monotonic(),
            work=lambda: Measured(self._clock.monotonic),
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
                PublishRoutes: self._publish,
            },
        )
        keys = Keys(
            self._store,
            changes,
            publisher=self._publisher,
            clock=self._clock,
            catalog=lambda: self._catalog.current,
            keys=kept.keys,
        )
        self._background = Background(
            state_dir,
            self._store,
            self._journal,
            self._clock,
            setting=self._cluster.value,
            scopes=lambda: {key.id: key.scope for key in keys.all()},
            knows_model=lambda name: name in self._catalog.current.models,
            spool_bytes=settings["usage.spool_bytes"],
        )
        router_application = RouterApplication(
            self._publisher, self._inbox, lambda: self._tokens, self._clock, self._background.take_usage
        )
        self._routers = HttpListener(
            settings["routers.listen"], router_application, Logger("llmgw.routers"), max_body=MAX_REPORT
        )
        self._events = EventService(self._journal, self._store, self._clock)
        self._catalog = CatalogService(
            settings["catalog"],
            files,
            kept.models,
            allowed=allowed,
            catalog=catalog,
            inbox=self._inbox,
            clock=self._clock,
        )
        self._cluster.guard("engines.allow", self._catalog.allowing)
        self._cluster.on_change("engines.allow", self._catalog.allow)
        self._cluster.on_change("serving.stopped", self._serve)
        self._stall = StallDetector()
        parts = Parts(
            identity=Identity(__version__, boot, self._clock.monotonic(), lambda: self._loop.epoch),
            settings=settings,
            clock=self._clock,
            store=self._store,
            changes=changes,
            cluster=self._cluster,
            catalog=self._catalog,
            inbox=self._inbox,
            publisher=self._publisher,
            journal=self._journal,
            background=self._background,
            events=self._events,
            driver=self._driver,
            agents=self._agents,
            stall=self._stall,
            view=lambda: self._loop.view,
            routers=router_application.current,
            local_token=lambda: self._local_token,
            keys=keys,
        )
        services = assemble(parts, kept)
        self._tls: ServerTls | None = None
        if settings["admin.certificate"] is not None:
            self._tls = ServerTls(settings["admin.certificate"], settings["admin.key"], "admin")
        self._admin = HttpListener(
            settings["admin.listen"],
            create_app(services, __version__, loopback=settings["admin.listen"].loopback),
            Logger("llmgw.api"),
            max_body=MAX_BODY,
            tls=self._tls,
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
        self._providers.start(key_files(self._loop.view.catalog).values())
        self._driver.start()
        try:
            self._background.start()
        except OSError as error:
            message = f"the spool of usage in {self._settings['state_dir']} cannot be used: {error.strerror}"
            raise SettingsError("llmgw server", [Fault("state_dir", message)]) from error
        for name, listener in self._listeners():
            sys.stdout.write(f"llmgw server: {name} {listener.address}\n")
        sys.stdout.flush()

    def reload(self) -> None:
        """SIGHUP: tokens, catalog and log level; what is faulty stays as it was."""
        file = self._reread_cluster()
        self._reload_admin()
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
        if file is not None:
            # Once more: what the old catalog forbade the new one may allow.
            for fault in self._cluster.reread(file):
                log.error("a cluster setting of the file was refused, the value before stays", why=fault)

    def _reread_cluster(self) -> Mapping[str, FileValue] | None:
        """Take over the cluster settings of the file, so far as the catalog allows."""
        try:
            file = file_values(off_hub(self._reread))
        except SettingsError as error:
            log.error("the settings file was refused, the cluster settings stay", faults=error)
            return None
        self._cluster.reread(file)
        set_level(self._cluster.value("log.level"))  # also after a level that was for a while only
        return file

    def _serve(self, stopped: bool) -> None:
        by = self._cluster.one("serving.stopped").get("store") or {}
        self._inbox.force(ServingSet(stopped, by.get("updated_by", "")))

    def _reload_admin(self) -> None:
        try:
            self._local_token = off_hub(load_local_token, self._settings["state_dir"])
        except SettingsError as error:
            log.error("the file of the admin API's own token was refused, the token in use stays", faults=error)
        if self._tls is None:
            return
        try:
            self._tls.use(off_hub(self._tls.load))
        except SettingsError as error:
            log.error("the certificate of the admin API was refused, the one in use stays", faults=error)
        else:
            log.info("certificate of the admin API loaded")

    def stop(self) -> None:
        """Say goodbye to agents, let go of everything, within two seconds."""
        self._publisher.close()
        self._events.close()
        self._agents.stop(timeout=0.4)
        self._driver.stop()
        self._providers.stop()
        self._routers.stop(timeout=0.1)
        self._admin.stop(timeout=0.2)
        self._journal.stop(timeout=0.4)
        self._stall.stop()
        self._background.stop(timeout=0.3)
        self._opened.close(timeout=0.4)

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

    def _publish(self, effect: PublishRoutes) -> None:
        self._providers.need(effect.key_files.values())
        self._publisher.set_routes(effect.models, effect.settling, effect.aliases, effect.key_files)

    def _raise_epoch(self, effect: EpochRaised) -> None:
        log.warning("an agent had seen a higher epoch: commands carry a new one", epoch=effect.epoch)
        self._journal.epoch = effect.epoch
        once_answered(self._store, lambda tx: tx.leadership.raise_epoch(effect.epoch), lambda _: None)

    def _note(self, effect: Note) -> None:
        _tell(effect.decision)
        self._journal.note(effect.decision)


def _tell(decision: Decision) -> None:
    named = {"model": decision.model, "replica": decision.replica, "node": decision.node}
    decisions.info(decision.kind, why=decision.reason, **{name: value for name, value in named.items() if value})


def _plural(words: str, number: int) -> str:
    noun, _, rest = words.partition(" ")
    return words if number == 1 else f"{noun}s {rest}".rstrip()


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
    # The store may allow flags, and is not open yet: then the catalog is looked at once more.
    allowed = settings[f"{FILE_SECTION}.engines.allow"] if options.check else allowable()
    files, catalog, tokens = load_all(settings, allowed)
    if options.check:
        counted = {"model in files": len(catalog.models), "node": len(tokens.nodes), "router": len(tokens.routers)}
        figures = ", ".join(f"{number} {_plural(word, number)}" for word, number in counted.items())
        sys.stdout.write(f"llmgw server: settings, tokens and catalog are valid ({figures})\n")
        return 0
    configure(settings["log.level"], settings["log.format"])
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return _serve(settings, files, tokens, read)


def _serve(settings: Loaded, files: Files, tokens: FleetTokens, reread: Callable[[], Loaded]) -> int:
    asked = Event()
    stopper = Stopper(asked.set)  # first of all: a SIGHUP while we start must not end us
    allow_many_files()
    try:
        store = open_store(settings, stopper.stopping)
        if store is None:
            return 0
        control_plane = ControlPlane(settings, files, tokens, reread, store)
    except (StoreError, StoreUnavailable) as error:
        place = "store.url" if settings["store.url"] else "state_dir"
        raise SettingsError("llmgw server", [Fault(place, str(error))]) from error
    garbage = Garbage(SystemClock()).start()  # before agents connect: to look through all there is takes a while
    control_plane.start()
    gevent.spawn(reload_when, asked, control_plane.reload)
    stopper.wait()
    garbage.stop()
    control_plane.stop()
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
