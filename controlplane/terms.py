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
from controlplane.identities import Credentials
from controlplane.leadership.alone import Alone
from controlplane.leadership.driver import Leadership, Machine
from controlplane.leadership.lease import Holder, Lease
from controlplane.leftovers import Leftovers
from controlplane.listeners.sockets import Sockets
from controlplane.listeners.tls import ServerTls
from controlplane.offhub import off_hub
from controlplane.settings import LISTENERS, MARGIN, SENT
from controlplane.standby import Standby
from controlplane.startup import OpenStore, make_state_dir, open_for_leftovers, open_for_term
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
            self._machine,
            store.lease,
            clock,
            holder=self._holder(),
            limit=min(QUESTION, settings["ha.ttl"] / MARGIN) if self._ha else QUESTION,
        )
        self._told = False
        self._stood_by = False
        self._advertiser: Advertiser | None = None
        self.current: ControlPlane | None = None
        self.led = 0
        """Terms that have begun."""

    def run(self) -> None:
        """Until told to stop. Raises ``SettingsError``, ``StoreError``."""
        garbage: Garbage | None = None
        try:
            while not self._stopping.is_set():
                self.leadership.stand_by()
                if not self._stand_by():
                    break
                if garbage is None:  # before agents connect: to look through all there is takes a while
                    garbage = Garbage(self._clock).start()
                self._lead()
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

    # ------------------------------------------------------------ turns

    def _stand_by(self) -> bool:
        """Until we lead; false if we are to stop."""
        won = self.leadership.won
        if gevent.wait([won, self._stopping], timeout=AT_ONCE if self._ha else ALONE_AT_ONCE, count=1):
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
            gevent.wait([won, self._stopping], count=1)
        finally:
            leftovers.stop()
            standby.stop()
        return not self._stopping.is_set()

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
            why = "another control plane leads" if lost.is_set() else "the control plane is stopping"
            term.stop(why, self.leadership.stop)
        self._files = term.files

    def _read_files(self) -> None:
        """People may have edited them since the last term."""
        try:
            files = off_hub(read_files, self._settings["catalog"])
            catalog = off_hub(merge, files, None, allowable())
            self._files = files
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

    def _machine(self, owner: str, now: float) -> Machine:
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
