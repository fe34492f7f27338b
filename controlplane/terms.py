"""The life of a control plane's process: it stands by, leads for a term, stands by again
(HA-01). Without a standby the first term begins at once and lasts as long as the process.
"""

import socket
import sys
from collections.abc import Callable

import gevent
from gevent.event import Event

from controlplane.catalog.load import Files, merge, read_files
from controlplane.clustersettings import allowable, file_values
from controlplane.fitness import Fitness, Rehearsal
from controlplane.identities import Credentials
from controlplane.leadership.alone import Alone
from controlplane.leadership.driver import Leadership
from controlplane.leadership.lease import Candidate, Holder, Lease
from controlplane.leftovers import Leftovers
from controlplane.listeners.sockets import Sockets
from controlplane.listeners.tls import ServerTls
from controlplane.offhub import off_hub
from controlplane.settings import LISTENERS, MARGIN, SENT
from controlplane.standby import Standby
from controlplane.startup import OpenStore, make_state_dir, open_for_leftovers, open_for_term
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.term import ControlPlane
from llmgw.runtime.clock import Clock
from llmgw.runtime.garbage import Garbage
from llmgw.runtime.logs import Logger
from llmgw.runtime.mdns import Advertiser
from llmgw.runtime.settings import Loaded, SettingsError

log = Logger("llmgw.server")

AT_ONCE = 0.5
"""Seconds in which a lease that is free is won, before anybody is told that we stand by."""

ALONE_AT_ONCE = 5.0
"""The same where nobody else can hold it."""

QUESTION = 5.0
"""Seconds that one question about the lease may take at most."""


class Terms:
    """Runs one term after another, with a standby in between. ``files`` are the catalog's as
    they were last valid. ``reread`` reads the settings file anew."""

    def __init__(
        self,
        settings: Loaded,
        files: Files,
        reread: Callable[[], Loaded],
        *,
        store: OpenStore,
        credentials: Credentials,
        stopping: Event,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._files = files
        self._reread = reread
        self._credentials = credentials
        self._stopping = stopping
        self._clock = clock
        self._admin_tls: ServerTls | None = None
        if settings["admin.certificate"] is not None:
            self._admin_tls = ServerTls(settings["admin.certificate"], settings["admin.key"], "admin")
        self._sockets = Sockets(settings, LISTENERS)
        self._ha = bool(settings["ha.enabled"])
        self.leadership = Leadership(
            self._candidate,
            store.lease,
            clock,
            holder=self._holder(),
            limit=min(QUESTION, settings["ha.ttl"] / MARGIN) if self._ha else QUESTION,
        )
        self._rehearsal = Rehearsal(settings, clock)
        self._fitness = Fitness(self._rehearse, clock)
        self._read = files
        self._told = False
        self._stood_by = False
        self._advertiser: Advertiser | None = None
        self.current: ControlPlane | None = None
        self.led = 0
        """Terms that have begun."""

    def run(self) -> None:
        """Until told to stop. Without a standby what keeps a term from beginning is raised:
        ``SettingsError``, ``StoreError``, ``StoreUnavailable``."""
        garbage: Garbage | None = None
        try:
            while not self._stopping.is_set():
                if not self._stand_by():
                    break
                if garbage is None:  # before agents connect: to look through all there is takes a while
                    garbage = Garbage(self._clock).start()
                self._try_to_lead()
                if not self._stopping.is_set():
                    garbage.whole()  # what a fleet took up is not to wait for a day
        finally:
            if garbage is not None:
                garbage.stop()
            if self._advertiser is not None:
                self._advertiser.stop(timeout=0.5)
            self.leadership.stop()
            self._sockets.close()

    def reload(self) -> None:
        """SIGHUP: what people wrote, certificates, the log level; what is faulty stays."""
        self._credentials.refresh()
        if self._admin_tls is not None:
            try:
                self._admin_tls.use(off_hub(self._admin_tls.load))
            except SettingsError as error:
                log.error("the certificate of the admin API was refused, the one in use stays", faults=error)
            else:
                log.info("certificate of the admin API loaded")
        if self.current is not None:
            self.current.reload()
        else:
            self._read_files()
            self._fitness.look_now()

    # ------------------------------------------------------------ turns

    def _stand_by(self) -> bool:
        """Until we lead; false if we are to stop."""
        if not self._ha:
            self.leadership.stand_by()
            return self._answer_unless_won(ALONE_AT_ONCE)
        self._fitness.start()
        try:
            gevent.wait([self._fitness.looked, self._stopping], timeout=AT_ONCE, count=1)
            unable = self._fitness.fault
            self.leadership.stand_by(unable)
            return self._answer_unless_won(0.0 if unable else AT_ONCE)
        finally:
            self._fitness.stop()

    def _answer_unless_won(self, at_once: float) -> bool:
        """The same; what takes no longer than ``at_once`` seconds nobody is told of."""
        won, looked = self.leadership.won, self._fitness.looked
        if gevent.wait([won, self._stopping], timeout=at_once, count=1):
            return not self._stopping.is_set()
        leftovers = self._leftovers()
        standby = Standby(
            self._settings,
            self._sockets,
            self.leadership,
            self._clock,
            credentials=self._credentials,
            admin_tls=self._admin_tls,
            waiting_bytes=lambda: leftovers.waiting_bytes,
        ).start()
        log.info("standing by", name=self.leadership.holder.name, why=standby.words)
        self._stood_by = True
        if self._ha:
            self._tell()
            leftovers.start()
        try:
            while not won.is_set() and not self._stopping.is_set():
                if self._fitness.fault != self.leadership.unable:
                    self.leadership.stop()
                    self.leadership.stand_by(self._fitness.fault)
                looked.clear()
                gevent.wait([won, self._stopping, looked], count=1)
        finally:
            leftovers.stop()
            standby.stop()
        return not self._stopping.is_set()

    def _rehearse(self) -> None:
        """Raises what would keep a term from beginning. People may have mended the files meanwhile."""
        if self._fitness.fault:
            self._read_files(again=False)
        self._rehearsal.run(self._files)

    def _try_to_lead(self) -> None:
        """A term. Where others may lead, what keeps it from beginning does not end the process: it
        stands by, and tells what to mend."""
        led = self.led
        try:
            self._lead()
        except (SettingsError, StoreError, StoreUnavailable) as error:
            if not self._ha:
                raise
            self.leadership.stop()
            self._fitness.failed(error)
        if self.led > led:
            self._fitness.began()

    def _lead(self) -> None:
        """A term, from beginning to end."""
        lost = self.leadership.lost

        def over(seconds: float) -> bool:
            gevent.wait([lost, self._stopping], timeout=seconds, count=1)
            return bool(lost.is_set() or self._stopping.is_set())

        if self._stood_by or self.led:
            self._read_files()
        opened = open_for_term(self._settings, self.leadership.guard(), over)
        if opened is None:
            return
        store, kept = opened
        try:
            term = ControlPlane(
                self._settings,
                self._files,
                self._reread,
                store=store,
                kept=kept,
                leadership=self.leadership,
                sockets=self._sockets,
                credentials=self._credentials,
                admin_tls=self._admin_tls,
            )
        except BaseException:
            store.close(timeout=0.4)
            raise
        try:
            term.start()
            self.current = term
            self.led += 1
            self._tell()
            gevent.wait([lost, self._stopping], count=1)
        finally:
            self.current = None
            why = "the control plane is stopping" if self._stopping.is_set() else "the term could not begin"
            if lost.is_set():
                why = "another control plane leads"
            term.stop(why, self.leadership.stop)
        self._files = term.files

    def _read_files(self, *, again: bool = True) -> None:
        """People may have edited them since the last term. Unless ``again``, files that are as they
        were when last read are not looked at, nor told of, once more."""
        try:
            read = off_hub(read_files, self._settings["catalog"])
            if read == self._read and not again:
                return
            self._read = read
            catalog = off_hub(merge, read, None, allowable())
            self._files = read
        except SettingsError as error:
            log.error("the catalog was refused, the one before stays", faults=error)
        else:
            log.info("catalog read", models=len(catalog.models))

    # ------------------------------------------------------------ who we are

    def _leftovers(self) -> Leftovers:
        return Leftovers(
            make_state_dir(self._settings["state_dir"]),
            lambda: open_for_leftovers(self._settings),
            cluster=file_values(self._settings),
            spool_bytes=self._settings["usage.spool_bytes"],
            clock=self._clock,
        )

    def _candidate(self, owner: str, now: float) -> Candidate:
        if not self._ha:
            return Alone(owner, now)
        ttl = self._settings["ha.ttl"]
        return Lease(owner, now, ttl=ttl, renew=self._settings["ha.renew"], margin=ttl / MARGIN)

    def _holder(self) -> Holder:
        settings = self._settings
        addresses = {
            name: str(settings[f"ha.advertise.{name}"] or self._sockets.address(f"{name}.listen")) for name in SENT
        }
        return Holder(settings["ha.name"] or socket.gethostname(), addresses)

    def _tell(self) -> None:
        """Once: where we listen."""
        if self._told:
            return
        self._told = True
        for name in LISTENERS:
            sys.stdout.write(f"llmgw server: {name} {self._sockets.address(name)}\n")
        sys.stdout.flush()
        if self._settings["mdns.advertise"]:  # also while we stand by: we say who leads
            agents = self._settings["ha.advertise.agents"] or self._sockets.address("agents.listen")
            self._advertiser = Advertiser(self.leadership.holder.name, agents).start()
