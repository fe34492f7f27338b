"""Services over a store in a file, whose answers can get lost or not come at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import gevent
from gevent.event import Event

from controlplane.catalog.load import Files, merge
from controlplane.catalog.source import SourceReport
from controlplane.clustersettings import FileValue
from controlplane.inbox import Inbox
from controlplane.services.catalog import CatalogService
from controlplane.services.changes import Asked, Changes, Principal
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.services.models import Models
from controlplane.services.scopes import Scopes
from controlplane.store.errors import StoreUnavailable
from controlplane.store.opening import backend_of, threads
from controlplane.store.port import Transaction
from controlplane.store.values import Grant
from llmgw.runtime.clock import ManualClock

T = TypeVar("T")

ADMIN = Principal("ada", "tok", (Grant("admin"),))
SIM: dict[str, Any] = {
    "scaling": {"min": 1, "max": 1},
    "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 1}],
}


def ask(operation: str = "test", principal: Principal = ADMIN, **headers: Any) -> Asked:
    return Asked(principal, operation, **headers)


class Store:
    """``StoreAccess`` that can be ``away``, or ``lose`` the answer of the next commit. What the
    greenlets ``held`` write waits until they ``go_on``."""

    def __init__(self, directory: Path) -> None:
        self.threads = threads(backend_of("", None, directory), 5.0).start()
        self.away = False
        self.lose = False
        self.held: list[Any] = []
        self.go_on = Event()
        self.failing = ""
        self.failing_for: float | None = None

    def write(self, work: Callable[[Transaction], T], timeout: float | None = None) -> T:
        if gevent.getcurrent() in self.held:
            self.go_on.wait()
        if self.away:
            raise StoreUnavailable("away")
        result = self.threads.write(work, timeout)
        if self.lose:
            self.lose = False
            raise StoreUnavailable("lost", uncertain=True)
        return result

    def read(self, work: Callable[[Transaction], T], timeout: float | None = None) -> T:
        if self.away:
            raise StoreUnavailable("away")
        return self.threads.read(work, timeout)


class World:
    """Cluster settings, scopes, catalog and models, wired as in a control plane."""

    def __init__(self, directory: Path, tree: dict[str, Any] | None = None, **file: FileValue) -> None:
        self.store = Store(directory)
        self.clock = ManualClock()
        self.inbox = Inbox()
        self.changes = Changes(self.store, self.clock)
        self.looked: list[str] = []
        self.report: Callable[[str], SourceReport] = lambda source: SourceReport(source, "exists", "is there", 7)
        self.path = directory / "catalog.yaml"
        files = Files(str(self.path), {"catalog.yaml": tree or {"models": {}}})
        stored = self.store.read(lambda tx: tx.models.all())
        settings = self.store.read(lambda tx: tx.settings.all())
        self.settings = ClusterSettings(self.store, self.changes, self.clock, file=file, stored=settings)
        allowed = self.settings.value("engines.allow")
        catalog = merge(files, {row.name: row.definition for row in stored}, allowed)
        self.catalog = CatalogService(
            self.path,
            files,
            {row.name: row for row in stored},
            allowed=allowed,
            catalog=catalog,
            inbox=self.inbox,
            clock=self.clock,
        )
        self.settings.guard("engines.allow", self.catalog.allowing)
        self.settings.on_change("engines.allow", self.catalog.allow)
        self.scopes = Scopes(
            self.store,
            self.changes,
            self.clock,
            models=lambda: self.catalog.current.models,
            scopes=self.store.read(lambda tx: tx.scopes.all()),
        )
        self.models = Models(
            self.catalog,
            changes=self.changes,
            store=self.store,
            settings=self.settings,
            scopes=self.scopes,
            look=self.look,
            keys=tuple,
            state=lambda _: None,
            clock=self.clock,
        )

    def look(self, source: str) -> SourceReport:
        self.looked.append(source)
        return self.report(source)

    def close(self) -> None:
        self.store.threads.close()

    def events(self) -> list[Any]:
        """What the loop was told since the last look."""
        told = []
        while (event := self.inbox.take()) is not None:
            told.append(event)
        return told


def until(condition: Callable[[], bool]) -> None:
    """Let other greenlets work until it is true."""
    with gevent.Timeout(30, AssertionError("it did not come true")):
        while not condition():
            gevent.sleep(0.005)
