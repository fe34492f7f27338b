"""Whether this control plane could lead, found out while it stands by (HA-01).

One that could not does not claim the lease: it would raise the epoch and disturb agents for
nothing, while another may be well. What can only be found by leading is found that way: then
it leaves the lease to others for a while.
"""

from collections.abc import Callable
from pathlib import Path

import gevent
from gevent.event import Event

from controlplane.catalog.load import Files
from controlplane.clustersettings import file_values
from controlplane.journal import JOURNAL, try_to_open
from controlplane.offhub import off_hub
from controlplane.services.auth import load_local_token
from controlplane.services.changes import Changes
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.startup import make_state_dir, open_to_look, unusable, whole_catalog
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.usage.intake import SPOOL
from llmgw.runtime.clock import Clock
from llmgw.runtime.files import private_directory
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Loaded, SettingsError

log = Logger("llmgw.standby")

EVERY = 30.0
"""Seconds between two looks while nothing is wrong."""

AGAIN = 5.0
"""The same while something is."""

FIRST, LONGEST = 5.0, 60.0
"""Seconds for which the lease is left to others after a term that could not begin: the first
time, and at most."""

PARTING = 0.5
"""Seconds for which a look that goes on is waited for at most."""

TOLD = 3
"""So many faults are told at once; the log has them all."""


class Fitness:
    """``rehearse`` tries what a term begins with, so far as that can be told without the lease. It
    raises ``SettingsError`` or ``StoreError`` for what would end it; ``StoreUnavailable``
    tells nothing.

    ``looked`` is set after each look.
    """

    def __init__(self, rehearse: Callable[[], None], clock: Clock) -> None:
        self._rehearse = rehearse
        self._clock = clock
        self._found = ""
        self._failed = ""
        self._hold_off = 0.0
        self._wait = FIRST
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._poke = Event()
        self._over = Event()
        self.looked = Event()

    @property
    def fault(self) -> str:
        """What keeps us from leading, in words; empty if nothing is known."""
        return self._found or self._failed

    def start(self) -> None:
        """Look at once, and every few seconds from then on."""
        self._over = Event()
        self.looked.clear()
        self._greenlet = gevent.spawn(self._run, self._over)

    def stop(self) -> None:
        """Look no more. A look that goes on is waited for, but not for long: it changes nothing."""
        self._over.set()
        self._poke.set()
        if self._greenlet is not None:
            self._greenlet.join(timeout=PARTING)

    def look_now(self) -> None:
        """People changed something: the lease is left to others no longer for what failed."""
        self._failed = ""
        self._poke.set()

    def began(self) -> None:
        """A term did begin."""
        self._wait = FIRST

    def failed(self, error: Exception) -> None:
        """A term could not begin."""
        log.error("this control plane cannot lead: it leaves the lease to others", seconds=self._wait, why=error)
        self._failed = words(error)
        self._hold_off = self._clock.monotonic() + self._wait
        self._wait = min(self._wait * 2, LONGEST)

    def _run(self, over: Event) -> None:
        while not over.is_set():
            self._poke.clear()
            found = self._look()
            if over.is_set():
                return
            self._found = found
            left = self._hold_off - self._clock.monotonic()
            if left <= 0:
                self._failed = ""
            self.looked.set()
            pause = AGAIN if self.fault else EVERY
            self._poke.wait(min(pause, left) if self._failed else pause)

    def _look(self) -> str:
        try:
            self._rehearse()
        except (SettingsError, StoreError) as error:
            found = words(error)
            if found != self._found:
                log.error("this control plane cannot lead as it is: it does not ask for the lease", why=error)
            return found
        except StoreUnavailable:
            return self._found
        except Exception:
            log.exception("whether this control plane could lead cannot be told")
            return self._found
        if self._found:
            log.info("nothing keeps this control plane from leading any more")
        return ""


class Rehearsal:
    """Tries what a term begins with, so far as that can be told without the lease."""

    def __init__(self, settings: Loaded, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._good: object = None

    def run(self, files: Files) -> None:
        """With these files of the catalog. Raises ``SettingsError``, ``StoreError``, and
        ``StoreUnavailable`` if the store does not tell."""
        off_hub(_try_state_dir, self._settings["state_dir"])
        store = open_to_look(self._settings).start()
        try:
            rows, models = store.read(lambda tx: (tx.settings.all(), {row.name: row for row in tx.models.all()}))
            cluster = ClusterSettings(
                store, Changes(store, self._clock), self._clock, file=file_values(self._settings), stored=rows
            )
        finally:
            store.close()
        made_of = (files, models, cluster.value("engines.allow"))
        if made_of != self._good:
            off_hub(whole_catalog, *made_of)
            self._good = made_of


def _try_state_dir(state_dir: Path) -> None:
    load_local_token(make_state_dir(state_dir))
    for name, attempt in ((JOURNAL, try_to_open), (SPOOL, private_directory)):
        try:
            attempt(state_dir / name)
        except OSError as error:
            raise unusable(str(state_dir / name), error) from error


def words(error: Exception) -> str:
    """What is wrong and where, in one line."""
    if not isinstance(error, SettingsError):
        return " ".join(str(error).split())
    more = len(error.faults) - TOLD
    told = "; ".join(map(str, error.faults[:TOLD])) + (f"; and {more} more" if more > 0 else "")
    return f"{error.source}: {told}"
