"""One term of a control plane: from the moment it leads until it does no more.

The composition root: builds stores, drivers and listeners; ``controlplane.assembly`` puts
the services on top of them. A process has a term for each time it wins the lease (HA-01);
nothing of one outlives it.
"""

import random
import secrets
from collections.abc import Callable, Mapping
from functools import partial

import gevent

from controlplane.api.app import MAX_BODY, create_app
from controlplane.assembly import Parts, assemble
from controlplane.background import Background
from controlplane.catalog.load import Files
from controlplane.clustersettings import FileValue, file_values
from controlplane.driver import Driver
from controlplane.events import (
    CloseSession,
    Commit,
    Committed,
    Decision,
    DropEngineKeys,
    EpochGranted,
    EpochWanted,
    LeaseExtended,
    Note,
    PublishRoutes,
    Send,
    ServingSet,
)
from controlplane.identities import Credentials
from controlplane.inbox import Inbox
from controlplane.journal import JOURNAL, Journal
from controlplane.leadership.driver import Leadership, ignore
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.handshake import Handshakes
from controlplane.listeners.http import HttpListener
from controlplane.listeners.join import MAX_REQUEST, MOST, JoinApplication
from controlplane.listeners.routers import RouterApplication
from controlplane.listeners.sockets import Sockets
from controlplane.listeners.tls import ServerTls
from controlplane.loop import Loop
from controlplane.offhub import off_hub
from controlplane.planning.words import IN_DOUBT
from controlplane.planning.work import Measured
from controlplane.publish.providers import ProviderKeys, read_all
from controlplane.publish.routes import key_files
from controlplane.publish.table import Publisher
from controlplane.remembered import Remembered
from controlplane.services.auth import load_local_token
from controlplane.services.catalog import CatalogService
from controlplane.services.changes import Changes
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.services.errors import Refused
from controlplane.services.events import EventService
from controlplane.services.identities import Identities
from controlplane.services.joining import Joining
from controlplane.services.keys import Keys
from controlplane.services.secrets import engine_keys
from controlplane.services.status import Identity
from controlplane.settings import open_doors, secret_files, short_settling
from controlplane.startup import (
    loop_settings,
    make_state_dir,
    whole_catalog,
)
from controlplane.store.access import StoreThreads
from llmgw import __version__
from llmgw.identity.names import Identity as PeerIdentity
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.logs import Logger, set_level
from llmgw.runtime.settings import Fault, Loaded, SettingsError
from llmgw.runtime.stall import StallDetector
from llmgw.wire.routing import MAX_REPORT

log = Logger("llmgw.server")
decisions = Logger("llmgw.decision")


class ControlPlane:
    """Everything of one term, wired. ``start`` begins to serve."""

    def __init__(
        self,
        settings: Loaded,
        files: Files,
        reread: Callable[[], Loaded],
        *,
        store: StoreThreads,
        kept: Remembered,
        leadership: Leadership,
        sockets: Sockets,
        credentials: Credentials,
        admin_tls: ServerTls | None,
    ) -> None:
        self._settings = settings
        self._reread = reread
        self._credentials = credentials
        self._clock = SystemClock()
        state_dir = make_state_dir(settings["state_dir"])
        self._store = store
        self._leadership = leadership
        self._epoch = leadership.epoch
        self._reload_due = False
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
            self._epoch,
            settings["journal.max_bytes"],
        )
        try:
            self._journal.start()
        except OSError as error:
            message = f"the decision journal {state_dir / 'decisions.jsonl'} cannot be used: {error.strerror}"
            raise SettingsError("llmgw server", [Fault("state_dir", message)]) from error
        self._identities = Identities(
            self._store,
            changes,
            self._clock,
            inbox=self._inbox,
            end=self._end_sessions,
            enrolled=kept.identities,
        )
        joining = Joining(
            self._store,
            changes,
            self._clock,
            credentials=credentials,
            identities=self._identities,
            address=str(leadership.holder.addresses.get("join") or sockets.address("join.listen")),
        )
        self._loop = Loop(
            loop_settings(settings),
            catalog,
            enrolled=self._identities.nodes(),
            intent=kept.intent(stopped=self._cluster.value("serving.stopped")),
            rng=random.SystemRandom(),
            epoch=self._epoch,
            leader=leadership.owner,
            until=leadership.until,
            boot=boot,
            version=__version__,
            engine_keys=engine_keys(kept.secrets),
            now=self._clock.monotonic(),
            work=lambda: Measured(self._clock.monotonic),
        )
        self._agents = AgentListener(
            sockets["agents.listen"],
            self._inbox,
            credentials,
            self._identities,
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
                EpochWanted: lambda effect: leadership.want_epoch(effect.seen),
                PublishRoutes: self._publish,
                DropEngineKeys: lambda effect: self._secrets.drop(effect.generations),
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
            self._publisher,
            self._inbox,
            credentials=credentials,
            identities=self._identities,
            clock=self._clock,
            leads=lambda: (self._loop.epoch, leadership.owner),
            take_usage=self._background.take_usage,
        )
        self._routers = HttpListener(
            sockets["routers.listen"],
            router_application,
            Logger("llmgw.routers"),
            max_body=MAX_REPORT,
            tls=Handshakes(credentials.mutual),
            clock=self._clock,
            mutual=True,
        )
        self._join = HttpListener(
            sockets["join.listen"],
            JoinApplication(credentials, joining, self._clock),
            Logger("llmgw.join"),
            max_body=MAX_REQUEST,
            tls=Handshakes(credentials.plain),
            clock=self._clock,
            most=MOST,
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
            sure=lambda: leadership.sure,
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
            leadership=leadership,
            credentials=credentials,
            identities=self._identities,
            joining=joining,
            agents=self._agents,
            stall=self._stall,
            view=lambda: self._loop.view,
            routers=router_application.current,
            local_token=lambda: self._local_token,
            keys=keys,
        )
        services = assemble(parts, kept)
        self._secrets = services.secrets
        self._admin = HttpListener(
            sockets["admin.listen"],
            create_app(services, __version__, loopback=settings["admin.listen"].loopback),
            Logger("llmgw.api"),
            max_body=MAX_BODY,
            tls=None if admin_tls is None else Handshakes(admin_tls),
            clock=self._clock,
        )

    def start(self) -> None:
        """Begin. Raises ``SettingsError`` if the state directory cannot be used."""
        self._leadership.on_extended = self._extended
        self._extended(self._leadership.until, self._leadership.epoch)  # it may have been renewed since
        for listener in (self._agents, self._routers, self._join, self._admin):
            listener.start()
        for name, words in open_doors(self._settings).items():
            log.warning("a listener answers whoever asks", setting=name, why=words)
        for name, words in short_settling(self._settings).items():
            log.warning("a setting is too short", setting=name, why=words)
        self._stall.start()
        self._providers.start(key_files(self._loop.view.catalog).values())
        self._driver.start()
        try:
            self._background.start()
        except OSError as error:
            message = f"the spool of usage in {self._settings['state_dir']} cannot be used: {error.strerror}"
            raise SettingsError("llmgw server", [Fault("state_dir", message)]) from error

    def reload(self) -> None:
        """SIGHUP: catalog, local token and log level; what is faulty stays as it was. While the
        lease is in doubt what rules the fleet is not read: it is once there is no doubt."""
        self._reload_token()
        if not self._leadership.sure:
            self._reload_due = True
            log.warning("catalog and cluster settings are read later", why=IN_DOUBT)
            return
        file = self._reread_cluster()
        try:
            self._catalog.reload("SIGHUP")
        except Refused as error:
            self._reload_due = not self._leadership.sure
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

    def _reload_token(self) -> None:
        try:
            self._local_token = off_hub(load_local_token, self._settings["state_dir"])
        except SettingsError as error:
            log.error("the file of the admin API's own token was refused, the token in use stays", faults=error)

    @property
    def files(self) -> Files:
        """The files of the catalog, as they were last valid."""
        return self._catalog.files

    def stop(self, why: str, release: Callable[[], None]) -> None:
        """Act no more, say goodbye to agents and let go of everything, within two seconds.
        ``release`` is called as soon as another may lead; what the store is to be told must
        be told before (HA-02)."""
        self._leadership.on_extended = ignore
        self._driver.stop()
        self._publisher.close()
        self._events.close()
        partings = (
            gevent.spawn(self._agents.stop, 0.4, why),
            gevent.spawn(self._routers.stop, 0.2),
            gevent.spawn(self._join.stop, 0.2),
            gevent.spawn(self._admin.stop, 0.2),
        )
        gevent.joinall(partings)
        self._identities.stop()
        self._inbox.close()
        self._journal.stop(timeout=0.4)
        self._background.stop(timeout=0.3)
        release()
        self._providers.stop()
        self._stall.stop()
        self._store.close(timeout=0.4)

    def _end_sessions(self, identity: PeerIdentity, code: str, message: str) -> None:
        self._agents.end(identity, code, message)

    def _extended(self, until: float, epoch: int) -> None:
        """We still lead (HA-01); with a higher epoch, if one was wanted (AGT-04)."""
        self._inbox.force(LeaseExtended(until))
        if self._reload_due and self._leadership.sure:
            self._reload_due = False
            gevent.spawn(self.reload)
        if epoch > self._epoch:
            log.warning("a peer had seen a higher epoch: commands carry a new one", epoch=epoch)
            self._epoch = self._journal.epoch = epoch
            self._inbox.force(EpochGranted(epoch))

    def _commit(self, effect: Commit) -> None:
        for decision in effect.decisions:
            _tell(decision)
        self._journal.commit(effect.batch, effect.decisions)

    def _publish(self, effect: PublishRoutes) -> None:
        self._providers.need(effect.key_files.values())
        self._publisher.set_routes(
            effect.models,
            effect.settling,
            effect.aliases,
            effect.key_files,
            epoch=effect.epoch,
            leader=effect.leader,
        )

    def _note(self, effect: Note) -> None:
        _tell(effect.decision)
        self._journal.note(effect.decision)


def _tell(decision: Decision) -> None:
    named = {"model": decision.model, "replica": decision.replica, "node": decision.node}
    decisions.info(decision.kind, why=decision.reason, **{name: value for name, value in named.items() if value})
