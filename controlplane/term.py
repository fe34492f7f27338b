"""One term of a control plane: from the moment it leads until it does no more.

The composition root: builds stores, drivers and listeners; ``controlplane.assembly`` puts
the services on top of them. A process has a term for each time it wins the lease (HA-01);
nothing of one outlives it.
"""

import random
import secrets
from collections.abc import Callable
from functools import partial

from controlplane.api.app import create_app
from controlplane.assembly import Parts, assemble
from controlplane.background import Background
from controlplane.carriers import Carriers
from controlplane.catalog.load import Files
from controlplane.clustersettings import file_values
from controlplane.driver import Driver
from controlplane.events import Committed, Decision, EpochGranted, LeaseExtended, ServingSet
from controlplane.identities import Credentials
from controlplane.inbox import Inbox
from controlplane.journal import JOURNAL, Journal
from controlplane.leadership.driver import Leadership, ignore
from controlplane.leadership.teller import Teller
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.join import JoinApplication
from controlplane.listeners.leading import Listeners
from controlplane.listeners.routers import RouterApplication
from controlplane.listeners.sockets import Sockets
from controlplane.listeners.tls import ServerTls
from controlplane.loop import Loop
from controlplane.planning.work import Measured
from controlplane.publish.providers import ProviderKeys, read_all
from controlplane.publish.routes import key_files
from controlplane.publish.table import Publisher
from controlplane.reloading import Reloading
from controlplane.remembered import Remembered
from controlplane.services.catalog import CatalogService
from controlplane.services.changes import Changes
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.services.events import EventService
from controlplane.services.identities import Identities
from controlplane.services.joining import Joining
from controlplane.services.keys import Keys
from controlplane.services.secrets import engine_keys
from controlplane.services.status import Identity
from controlplane.settings import open_doors, secret_files, sent_nowhere, short_settling
from controlplane.startup import loop_settings, make_state_dir, unusable, whole_catalog
from controlplane.store.access import StoreThreads
from llmgw import __version__
from llmgw.identity.names import Identity as PeerIdentity
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.logs import Logger, set_level
from llmgw.runtime.settings import Loaded
from llmgw.runtime.stall import StallDetector

log = Logger("llmgw.server")


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
        self._clock = SystemClock()
        state_dir = make_state_dir(settings["state_dir"])
        self._store = store
        self._leadership = leadership
        self._epoch = leadership.epoch
        self._begun = False
        self._inbox = Inbox()
        changes = Changes(self._store, self._clock)
        self._cluster = ClusterSettings(
            self._store, changes, self._clock, file=file_values(settings), stored=kept.settings
        )
        self._cluster.on_change("log.level", set_level)
        set_level(self._cluster.value("log.level"))
        allowed = self._cluster.value("engines.allow")
        whole = whole_catalog(files, kept.models, allowed)
        self._catalog = CatalogService(
            settings["catalog"],
            whole.files,
            kept.models,
            allowed=allowed,
            catalog=whole.catalog,
            inbox=self._inbox,
            clock=self._clock,
            sure=lambda: leadership.sure,
            refusal=whole.refusal,
            left_out=whole.left_out,
        )
        self._cluster.guard("engines.allow", self._catalog.allowing)
        self._cluster.on_change("engines.allow", self._catalog.allow)
        self._cluster.on_change("serving.stopped", self._serve)
        self._reloading = Reloading(
            settings, reread, leadership=leadership, cluster=self._cluster, catalog=self._catalog
        )
        boot = secrets.token_hex(4)
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
            raise unusable(f"the decision journal {state_dir / JOURNAL}", error) from error
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
            whole.catalog,
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
            Carriers(
                agents=self._agents,
                journal=self._journal,
                publisher=self._publisher,
                providers=self._providers,
                leadership=leadership,
                drop_keys=lambda effect: self._secrets.drop(effect.generations),
            ).by_effect,
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
        routers = RouterApplication(
            self._publisher,
            self._inbox,
            credentials=credentials,
            identities=self._identities,
            clock=self._clock,
            leads=lambda: (self._loop.epoch, leadership.owner),
            superseded=leadership.superseded,
            take_usage=self._background.take_usage,
        )
        self._events = EventService(self._journal, self._store, self._clock)
        self._stall = StallDetector()
        self._teller = Teller(leadership, credentials.folder, random.SystemRandom())
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
            routers=routers.current,
            local_token=lambda: self._reloading.local_token,
            keys=keys,
        )
        services = assemble(parts, kept)
        self._secrets = services.secrets
        self._listeners = Listeners(
            sockets,
            credentials,
            self._clock,
            agents=self._agents,
            routers=routers,
            join=JoinApplication(credentials, joining, self._clock),
            admin=create_app(services, __version__, loopback=settings["admin.listen"].loopback),
            admin_tls=admin_tls,
        )

    def start(self) -> None:
        """Begin. Raises ``SettingsError`` if the state directory cannot be used."""
        try:
            self._background.start()  # before anybody connects: nobody is disturbed for a term that cannot begin
        except OSError as error:
            raise unusable(f"the spool of usage in {self._settings['state_dir']}", error) from error
        self._leadership.on_extended = self._extended
        self._note_lead(f"leads with epoch {self._epoch}: {self._leadership.why_won}")
        self._begun = True
        self._extended(self._leadership.until, self._leadership.epoch)  # it may have been renewed since
        self._listeners.start()
        for name, words in open_doors(self._settings).items():
            log.warning("a listener answers whoever asks", setting=name, why=words)
        for name, words in short_settling(self._settings).items():
            log.warning("a setting is too short", setting=name, why=words)
        for name, words in sent_nowhere(self._settings).items():
            log.warning("an address is of no use to other machines", setting=name, why=words)
        self._stall.start()
        self._providers.start(key_files(self._loop.view.catalog).values())
        self._driver.start()
        self._teller.start()

    def reload(self) -> None:
        """SIGHUP: see ``controlplane.reloading``."""
        self._reloading.reload()

    @property
    def files(self) -> Files:
        """The files of the catalog, as they were last valid."""
        return self._catalog.files

    def stop(self, why: str, release: Callable[[], None]) -> None:
        """Act no more, say goodbye to agents and let go of everything, within two seconds.
        ``release`` is called as soon as another may lead; what the store is to be told must
        be told before (HA-02)."""
        self._leadership.on_extended = ignore
        self._teller.stop()
        self._driver.stop()
        if self._begun:
            self._note_lead(f"leads no more: {self._leadership.why_lost or why}")
        self._publisher.close()
        self._events.close()
        self._listeners.stop(why)
        self._identities.stop()
        self._inbox.close()
        self._journal.stop(timeout=0.4)
        self._background.stop(timeout=0.3)
        release()
        self._providers.stop()
        self._stall.stop()
        self._store.close(timeout=0.4)

    def _note_lead(self, words: str) -> None:
        """HA-01: who led when, for people."""
        ours, before = self._leadership.holder, self._leadership.before
        figures = {"name": ours.name, "epoch": self._epoch, "before": before.name if before else None}
        self._journal.note(Decision("leader", f"{ours.name} {words}", figures=figures))

    def _serve(self, stopped: bool) -> None:
        by = self._cluster.one("serving.stopped").get("store") or {}
        self._inbox.force(ServingSet(stopped, by.get("updated_by", "")))

    def _end_sessions(self, identity: PeerIdentity, code: str, message: str) -> None:
        self._agents.end(identity, code, message)

    def _extended(self, until: float, epoch: int) -> None:
        """We still lead (HA-01); with a higher epoch, if one was wanted (AGT-04)."""
        self._inbox.force(LeaseExtended(until))
        self._reloading.extended()
        if epoch > self._epoch:
            log.warning("a peer had seen a higher epoch: commands carry a new one", epoch=epoch)
            self._epoch = self._journal.epoch = epoch
            self._inbox.force(EpochGranted(epoch))
