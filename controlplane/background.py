"""What goes on between the disk and the store all the time: usage in, history in, old rows
out (STO-03). One object for the composition root."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gevent

from controlplane import history
from controlplane.journal import Journal
from controlplane.offhub import off_hub
from controlplane.services.usage import UsageService
from controlplane.store.access import StoreAccess
from controlplane.store.feed import Appender, Feeder
from controlplane.store.port import Transaction
from controlplane.store.retention import Retention
from controlplane.store.spool import DAMAGED, Spool
from controlplane.store.values import Counted
from controlplane.usage.intake import SPOOL, UsageIntake, put
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.wire.routing import UsageBatch

log = Logger("llmgw.spool")


class Background:
    """``setting`` gives a cluster setting's value, ``scopes`` the scope of every API key by
    id, ``knows_model`` whether the catalog has a name. ``spool_bytes`` bounds what waits
    on disk. ``usage`` reads what was used. ``given_up`` counts batches that routers skipped,
    and that will not be counted any more if they come.
    """

    def __init__(
        self,
        state_dir: Path,
        store: StoreAccess,
        journal: Journal,
        clock: Clock,
        *,
        setting: Callable[[str], Any],
        scopes: Callable[[], Mapping[str, str]],
        knows_model: Callable[[str], bool],
        spool_bytes: int,
    ) -> None:
        self._spool = Spool(state_dir / SPOOL, spool_bytes)
        self._store = store
        self._damaged = state_dir / SPOOL / DAMAGED

        def put_usage(tx: Transaction, records: Sequence[bytes]) -> Counted:
            return put(tx, records, log=setting("requests.log"))

        self.given_up = 0
        self._usage_feed = Feeder("usage", self._spool, store, put_usage, written=self._counted)
        self._appender = Appender(self._spool, self._usage_feed.wake)
        self._intake = UsageIntake(self._appender, clock, scopes, knows_model)
        source = history.JournalSource(journal.file, lambda: journal.durable)
        self._history_feed = Feeder("history", source, store, history.put, max_records=history.MAX_EVENTS)
        journal.on_durable = self._history_feed.wake
        self._retention = Retention(store, setting, clock)
        self.usage = UsageService(store, clock)

    def take_usage(self, router_id: str, batch: UsageBatch) -> None:
        """See ``UsageIntake.take``."""
        self._intake.take(router_id, batch)

    def start(self) -> "Background":
        """Begin with what an earlier process left. Raises ``OSError`` if the spool cannot
        be used."""
        off_hub(self._spool.open)
        self._appender.start()
        self._usage_feed.start()
        self._history_feed.start()
        self._retention.start()
        return self

    def stop(self, timeout: float = 0.4) -> None:
        """Hand over what waits, for at most ``timeout`` seconds; the rest stays on disk."""
        self._retention.stop()
        self._appender.stop()
        self._usage_feed.stop(timeout / 2)
        self._history_feed.stop(timeout / 2)
        gevent.spawn(off_hub, self._spool.close).join(timeout)  # a disk that hangs holds nobody up

    @property
    def waiting_bytes(self) -> int:
        """Bytes of usage that the store does not have yet."""
        return self._spool.bytes_waiting

    @property
    def set_aside(self) -> int:
        """Records that were damaged, or that the store will never take."""
        return self._spool.damaged + self._history_feed.refused

    def _counted(self, counted: Counted) -> None:
        if counted.given_up:
            self.given_up += counted.given_up
            log.warning("batches of usage that a router skipped are not counted if they come", count=counted.given_up)

    @property
    def forgotten(self) -> Mapping[str, int]:
        """Rows that were too old, by kind."""
        return self._retention.dropped

    @property
    def failing(self) -> Mapping[str, str]:
        """Each part, and why it does not get on now; empty if it does."""
        return {
            "spool": self._appender.failing,
            "usage": self._usage_feed.failing,
            "events": self._history_feed.failing,
            "retention": self._retention.failing or self._retention.holding,
        }

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """What keeps records out of the spool or the store now: each part and words."""
        waiting = self.waiting_bytes
        sizes = f" ({max(waiting / 1024**2, 0.1):.1f} MB on disk)" if waiting else ""
        words = {
            "spool": "usage cannot be kept on disk, so routers keep it",
            "usage": f"usage waits for the store{sizes}",
            "events": "events wait for the store",
            "retention": "old rows are not forgotten",
        }
        away = self._store.failing
        found = [
            (part, words[part] if why == away else f"{words[part]}: {why}")  # the store's own words come once
            for part, why in self.failing.items()
            if why
        ]
        if self.set_aside:
            told = f"{self.set_aside} were damaged, or refused by the store, since the start"
            found.append(("records", f"{told}: see the log and {self._damaged}"))
        if self.given_up:
            told = f"{self.given_up} batches that routers skipped are not counted if they come"
            found.append(("usage", f"{told}: a router process has more gaps than are remembered"))
        return tuple(found)
