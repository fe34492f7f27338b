"""The catalog in force, and its replacement as a whole (CAT-06)."""

from datetime import datetime
from pathlib import Path

from gevent.lock import RLock

from controlplane.catalog.load import load_catalog
from controlplane.catalog.model import Catalog
from controlplane.events import CatalogChanged
from controlplane.inbox import Inbox
from controlplane.offhub import off_hub
from controlplane.services.errors import Refused, busy
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import SettingsError

log = Logger("llmgw.catalog")


class CatalogService:
    """Reloads the catalog; one that has faults is refused and the old one stays.

    ``refusal`` is what was wrong with the last one refused, until one is taken.
    """

    def __init__(self, path: Path, catalog: Catalog, inbox: Inbox, clock: Clock) -> None:
        self._path = path
        self._inbox = inbox
        self._clock = clock
        self._lock = RLock()
        self.current = catalog
        self.loaded_at: datetime = clock.now()
        self.refusal: SettingsError | None = None

    def reload(self, actor: str) -> Catalog:
        """Read and validate everything, then make it current. Raises ``Refused`` with
        all faults.

        Reading happens off the hub: a large file takes its parser seconds, which
        heartbeats must not wait for.
        """
        with self._lock:
            try:
                catalog = off_hub(load_catalog, self._path)
            except SettingsError as error:
                self.refusal = error
                log.error("the catalog was refused, the one in use stays", actor=actor, faults=error)
                raise Refused(
                    "catalog_invalid",
                    f"{error.source} has faults: nothing was changed",
                    status=422,
                    faults=error.faults,
                ) from error
            if not self._inbox.offer(CatalogChanged(catalog)):
                raise busy()
            self.current = catalog
            self.loaded_at = self._clock.now()
            self.refusal = None
            log.info("catalog loaded", actor=actor, models=len(catalog.models), source=catalog.source)
            return catalog
