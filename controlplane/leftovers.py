"""What a term left on disk: usage that routers handed over, and decisions, which the store did
not have yet when we led no more (STO-03, HA-01).

Nobody else has them, and our next term may never come: a control plane that stands by hands
them over. It need not lead for that. The store knows every batch and every event by its id,
so that none counts twice, whoever else was given it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gevent
from gevent.event import Event

from controlplane import history
from controlplane.clustersettings import FileValue
from controlplane.journal import JOURNAL
from controlplane.offhub import off_hub
from controlplane.services.changes import Changes
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.store.access import StoreThreads
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.feed import MAX_BYTES, Feeder
from controlplane.store.port import Transaction
from controlplane.store.spool import Spool
from controlplane.store.values import Counted
from controlplane.usage.intake import SPOOL, put
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.leftovers")

PAUSE = 5.0
"""Seconds between two tries to open the store."""

SLOWER = 0.2
"""Seconds between two transactions: the leader writes to the same rows, and its tries are not
to fail for ours."""

LOOK_AGAIN = 0.5
"""Seconds between two looks whether all of it is in the store."""


class Leftovers:
    """Hands over what is in ``state_dir``, once, from ``start`` on; until ``stop`` returns the
    spool is ours alone. ``open_store`` makes a store of its own, to be started, that asks
    nobody who leads: nothing else is written through it. ``cluster`` are the cluster
    settings of the settings file, ``spool_bytes`` bounds the spool.
    """

    def __init__(
        self,
        state_dir: Path,
        open_store: Callable[[], StoreThreads],
        *,
        cluster: Mapping[str, FileValue],
        spool_bytes: int,
        clock: Clock,
    ) -> None:
        self._open_store = open_store
        self._cluster = cluster
        self._clock = clock
        self._spool = Spool(state_dir / SPOOL, spool_bytes)
        journal = state_dir / JOURNAL
        self._journal = history.JournalSource(journal, lambda: journal.stat().st_size)
        self._over = Event()
        self._opened = self._opening = False
        self._greenlet: gevent.Greenlet[..., None] | None = None

    @property
    def waiting_bytes(self) -> int | None:
        """Bytes of usage that the store does not have yet; ``None`` before it was looked."""
        return self._spool.bytes_waiting if self._opened else None

    def start(self) -> "Leftovers":
        """Begin, if there is anything."""
        self._greenlet = gevent.spawn(self._run)
        return self

    def stop(self) -> None:
        """End; the rest stays on disk. A term may begin once this returns."""
        self._over.set()
        if self._greenlet is not None and not self._opening:
            self._greenlet.join()
        off_hub(self._spool.close)

    def _run(self) -> None:
        told = False
        while not self._over.is_set():
            try:
                if off_hub(self._look):
                    self._hand_over()
                return
            except (OSError, StoreUnavailable, StoreError) as error:
                if not told:
                    log.warning("what the last term left waits on disk", why=error)
                told = True
            self._over.wait(PAUSE)

    def _look(self) -> bool:
        """Whether there is anything. Blocks."""
        if not self._opened:
            self._spool.open()
            self._opened = True
        return bool(self._spool.bytes_waiting) or self._journal.read(1, MAX_BYTES) is not None

    def _hand_over(self) -> None:
        store = self._open_store()
        self._opening = True  # who stops us then does not wait: it may take the store's connection long
        try:
            store.start()
        finally:
            self._opening = False
        try:
            if not self._over.is_set():
                self._feed(store)
        finally:
            store.close(timeout=0.4)

    def _feed(self, store: StoreThreads) -> None:
        rows = store.read(lambda tx: tx.settings.all(), timeout=0.5)
        settings = ClusterSettings(store, Changes(store, self._clock), self._clock, file=self._cluster, stored=rows)

        def put_usage(tx: Transaction, records: Sequence[bytes]) -> Counted:
            return put(tx, records, log=settings.value("requests.log"))

        feeds = (
            Feeder("usage", self._spool, store, put_usage, linger=0.0, pause=SLOWER),
            Feeder(
                "history",
                self._journal,
                store,
                history.put,
                linger=0.0,
                pause=SLOWER,
                max_records=history.MAX_EVENTS,
            ),
        )
        for feed in feeds:
            feed.start()
        try:
            while not all(feed.drain(0.0) for feed in feeds):
                if self._over.wait(LOOK_AGAIN):
                    return
            log.info("what the last term left is in the store now")
        finally:
            for feed in feeds:
                feed.stop(0.0)
