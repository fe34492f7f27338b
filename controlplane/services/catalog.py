"""The catalog in force: what the files say and what was added live, validated as one and
replaced as a whole (CAT-06)."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gevent.lock import BoundedSemaphore, RLock

from controlplane.catalog.arguments import flag_name
from controlplane.catalog.engines import ALLOWABLE, ENGINES
from controlplane.catalog.load import STORE, Files, merge, read_files
from controlplane.catalog.model import Catalog
from controlplane.events import CatalogChanged
from controlplane.inbox import Inbox
from controlplane.offhub import off_hub
from controlplane.planning.words import IN_DOUBT
from controlplane.services.errors import Refused, busy, invalid, store_unavailable
from controlplane.services.recovery import once_answered
from controlplane.store.access import StoreAccess
from controlplane.store.values import StoredModel
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Fault, SettingsError, did_you_mean

log = Logger("llmgw.catalog")

Definition = Mapping[str, Any]

BODY = "body"
"""The source of a catalog that came with a request."""


AT_ONCE = 2
"""Catalogs of requests that are validated at once: each takes a thread that others need."""


class CatalogService:
    """Replaces the catalog; one that has faults is refused and the old one stays.

    ``refusal`` is what was wrong with the last files that were refused, until some are
    taken; ``left_out`` names what they say that is not in force, if they are but for that.
    ``stored`` are the models of the store, by name, as the catalog has them. While ``sure``
    says that the lease is in doubt, no other files come into force (HA-01): whoever leads by
    now may have read them otherwise, and routers may still take our table.
    """

    def __init__(
        self,
        path: Path,
        files: Files,
        stored: Mapping[str, StoredModel],
        *,
        allowed: Collection[str],
        catalog: Catalog,
        inbox: Inbox,
        clock: Clock,
        sure: Callable[[], bool] = lambda: True,
        refusal: SettingsError | None = None,
        left_out: Sequence[str] = (),
    ) -> None:
        self._sure = sure
        self._path = path
        self._files = files
        self._allowed = tuple(allowed)
        self._inbox = inbox
        self._clock = clock
        self._validating = BoundedSemaphore(AT_ONCE)
        self.lock = RLock()
        """Held by whoever changes the catalog, from the look at it to its replacement."""
        self.stored: Mapping[str, StoredModel] = MappingProxyType(dict(stored))
        self.current = catalog
        self.loaded_at: datetime = clock.now()
        self.refusal = refusal
        self.left_out = left_out

    # ------------------------------------------------------------ reads

    @property
    def files(self) -> Files:
        """What the files hold, as it was last valid."""
        return self._files

    def definition(self, name: str) -> Definition | None:
        """What a person wrote under a model's name, in a file or live."""
        return self.current.definitions.get(name)

    def origin(self, name: str) -> str | None:
        """The file that holds a model, or ``store``."""
        model = self.current.models.get(name)
        return model.origin if model else None

    def export(self) -> dict[str, Any]:
        """The whole as one file would hold it: all files and what was added live."""
        whole: dict[str, Any] = {"models": {}}
        for tree in self._files.trees.values():
            for section, entries in tree.items():
                whole.setdefault(section, {}).update(entries)
        whole["models"].update({name: dict(row.definition) for name, row in self.stored.items()})
        return {section: dict(sorted(entries.items())) for section, entries in whole.items()}

    def faults(self, tree: Definition, *, with_store: bool) -> list[Fault]:
        """What would be wrong with a catalog file of this content; nothing is changed.
        ``with_store``: together with the models that were added live."""
        stored = {name: row.definition for name, row in self.stored.items()} if with_store else {}
        try:
            with self._validating:
                off_hub(merge, Files(BODY, {BODY: tree}), stored, self._allowed, self.current)
        except SettingsError as error:
            return [_placed(fault, BODY) for fault in error.faults]
        return []

    # ------------------------------------------------------------ changes

    def reload(self, actor: str) -> Catalog:
        """Read and validate the files again, with what was added live, then make the whole
        current. Raises ``Refused`` with all faults.

        Reading happens off the hub: a large file takes its parser seconds, which
        heartbeats must not wait for.
        """
        with self.lock:
            try:
                files = off_hub(read_files, self._path)
                catalog = self._build(files, self.stored, self._allowed)
            except SettingsError as error:
                self.refusal = error
                log.error("the catalog was refused, the one in use stays", actor=actor, faults=error)
                raise _refused(error, error.faults) from error
            if not self._sure():  # now, not before the files were read: the process may have slept
                raise store_unavailable(IN_DOUBT)
            if not self._inbox.offer(CatalogChanged(catalog)):
                raise busy()
            self._files = files
            self.current = catalog
            self.loaded_at = self._clock.now()
            self.refusal, self.left_out = None, ()
            log.info("catalog loaded", actor=actor, models=len(catalog.models), source=catalog.source)
            return catalog

    def candidate(self, name: str, definition: Definition | None, more: Sequence[Fault] = ()) -> Catalog:
        """The whole with one stored model added, replaced, or (``None``) without it. Not
        in force before ``take``. Raises ``Refused`` with all faults, and with ``more``,
        which others found."""
        stored = {key: row.definition for key, row in self.stored.items() if key != name}
        if definition is not None:
            stored[name] = definition
        faults: list[Fault] = []
        catalog = self.current
        try:
            catalog = off_hub(merge, self._files, stored, self._allowed, self.current)
        except SettingsError as error:
            faults += [_placed(fault, STORE) for fault in error.faults]
        faults += more
        if faults:
            told = f"{len(faults)} fault{'s' if len(faults) != 1 else ''}"
            raise Refused(
                "catalog_invalid", f"the catalog would have {told}: nothing was changed", status=422, faults=faults
            )
        return catalog

    def take(self, catalog: Catalog, stored: Mapping[str, StoredModel]) -> None:
        """Make a candidate current, now that the store has it. Called with the lock held."""
        self.stored = MappingProxyType(dict(sorted(stored.items())))
        self.current = catalog
        self._inbox.force(CatalogChanged(catalog))

    def learn(self, store: StoreAccess) -> None:
        """Find out, once the store answers, what a commit of unknown outcome did. What was read
        before a later change was made is of no use: then it is read anew."""
        known = self.stored

        def found(rows: Sequence[StoredModel]) -> None:
            with self.lock:
                if self.stored is known:
                    self._learn({row.name: row for row in rows})
                else:
                    self.learn(store)

        once_answered(store, lambda tx: tx.models.all(), found)

    def _learn(self, fresh: Mapping[str, StoredModel]) -> None:
        """What was validated before the commit is valid still, unless a file changed meanwhile:
        that is told."""
        if fresh == self.stored:
            return
        try:
            self.take(self._build(self._files, fresh, self._allowed), fresh)
        except SettingsError as error:
            self.refusal = error
            log.error("the catalog with the models of the store was refused, the one in use stays", faults=error)

    @contextmanager
    def allowing(self, allowed: Sequence[str]) -> Iterator[None]:
        """Around a change of ``engines.allow``: refused if the catalog would have faults
        with it, in force once the change is made."""
        for entry in allowed:
            fault = _allowance_fault(entry)
            if fault is not None and entry not in self._allowed:
                raise invalid("value", fault)
        with self.lock:
            try:
                catalog = self._build(self._files, self.stored, allowed)
            except SettingsError as error:
                raise _refused(error, error.faults) from error
            yield
            self._allowed = tuple(allowed)
            self.take(catalog, self.stored)

    def allow(self, allowed: Sequence[str]) -> None:
        """``engines.allow`` has this value now, whether or not the change went through
        ``allowing``."""
        with self.lock:
            if tuple(allowed) == self._allowed:
                return
            try:
                catalog = self._build(self._files, self.stored, allowed)
            except SettingsError as error:
                self.refusal = error
                log.error("the catalog has faults with engines.allow as it is now", faults=error)
                return
            self._allowed = tuple(allowed)
            self.take(catalog, self.stored)

    def _build(self, files: Files, stored: Mapping[str, StoredModel], allowed: Collection[str]) -> Catalog:
        return off_hub(merge, files, {name: row.definition for name, row in stored.items()}, allowed, self.current)


def _refused(error: SettingsError, faults: Sequence[Fault]) -> Refused:
    return Refused("catalog_invalid", f"{error.source} has faults: nothing was changed", status=422, faults=faults)


def _placed(fault: Fault, source: str) -> Fault:
    """A fault's place as who sent ``source`` knows it."""
    return Fault(fault.path.removeprefix(f"{source}: "), fault.message)


def _allowance_fault(entry: str) -> str | None:
    engine, _, flag = entry.partition(" ")
    rules = ENGINES[engine]
    reason = rules.denied.get(flag_name(flag))
    if reason is None:
        hint = did_you_mean(flag, [name for name, why in rules.denied.items() if why in ALLOWABLE])
        return f"{flag} of {engine} is not refused, so there is nothing to allow{hint}"
    return None if reason in ALLOWABLE else f"{flag} of {engine} cannot be allowed: {reason}"
