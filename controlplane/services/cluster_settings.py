"""Cluster settings in force: the store's value rules, then the file's, then the default
(API-06). Read from memory; a change goes through the store, with its audit, and is told
to those who asked to be told."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from gevent.lock import RLock

from controlplane.clustersettings import INDEX, OPERATORS, FileValue, plain
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import Refused, invalid, not_found
from controlplane.services.moments import shown
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import StoredSetting
from llmgw.runtime.clock import Clock
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Setting

log = Logger("llmgw.settings")

Plain = dict[str, Any]
Guard = Callable[[Any], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Ruling:
    """A value and where it is from: ``store``, ``default``, or what a file's is from."""

    value: Any
    origin: str


class ClusterSettings:
    """The cluster settings. ``faults`` are values in the store that this release cannot
    use: the file's value or the default holds instead."""

    def __init__(
        self,
        store: StoreAccess,
        changes: Changes,
        clock: Clock,
        *,
        file: Mapping[str, FileValue],
        stored: Iterable[StoredSetting],
    ) -> None:
        self._store = store
        self._changes = changes
        self._clock = clock
        self._file = dict(file)
        self._stored = {row.name: row for row in stored}
        self._guards: dict[str, Guard] = {}
        self._told: dict[str, list[Callable[[Any], None]]] = {}
        self._lock = RLock()
        self.faults: dict[str, str] = {}
        self._ruling: dict[str, _Ruling] = {name: self._rule(name) for name in INDEX}

    def value(self, name: str) -> Any:
        """The value in force; durations are seconds, lists tuples."""
        return self._ruling[name].value

    def on_change(self, name: str, told: Callable[[Any], None]) -> None:
        """Call ``told`` with each new value from now on, after it is durable."""
        self._told.setdefault(name, []).append(told)

    def guard(self, name: str, guard: Guard) -> None:
        """Make each change of a setting inside ``guard(value)``, which may raise
        ``Refused``: then nothing is changed."""
        self._guards[name] = guard

    def all(self) -> list[Plain]:
        """Every setting as it is shown."""
        return [self._shown(row) for row in INDEX.values()]

    def one(self, name: str) -> Plain:
        """One setting as it is shown. Raises ``Refused``."""
        return self._shown(self._known(name))

    def set(self, asked: Asked, name: str, value: Any) -> Plain:
        """Set a value in the store; it rules from now on. Raises ``Refused``."""
        row = self._known(name)
        _permitted(asked, name)
        try:
            parsed = row.parse(value)
        except ValueError as error:
            raise invalid("value", f"{name} {error}") from error
        now = self._clock.now().timestamp()

        def work(tx: Transaction) -> Changed[StoredSetting | None]:
            known = _find(tx, name)
            asked.expect(known.version if known else 0)
            fresh = StoredSetting(name, plain(parsed), now, asked.actor, known.version + 1 if known else 1)
            tx.settings.put(fresh)
            return Changed(fresh, "setting", name, known.value if known else None, fresh.value)

        return self._change(asked, row, parsed, work)

    def unset(self, asked: Asked, name: str) -> Plain:
        """Take the store's value away: the file's value or the default rules again.
        Raises ``Refused``."""
        row = self._known(name)
        _permitted(asked, name)

        def work(tx: Transaction) -> Changed[StoredSetting | None]:
            known = _find(tx, name)
            asked.expect(known.version if known else 0)
            tx.settings.remove(name)
            return Changed(None, "setting", name, known.value if known else None)

        return self._change(asked, row, self._without_store(name).value, work)

    def reread(self, file: Mapping[str, FileValue]) -> list[Refused]:
        """The files were read again. What a guard refuses stays as it was, and is told."""
        refused: list[Refused] = []
        with self._lock:
            for name in INDEX:
                old, fresh = self._file.get(name), file.get(name)
                if old == fresh:
                    continue
                self._put_file(name, fresh)
                try:
                    with self._guarded(name, self._rule(name).value):
                        pass
                except Refused as error:
                    self._put_file(name, old)
                    refused.append(error)
                self._settle(name)
        return refused

    def _put_file(self, name: str, value: FileValue | None) -> None:
        if value is None:
            self._file.pop(name, None)
        else:
            self._file[name] = value

    def _change(
        self, asked: Asked, row: Setting, value: Any, work: Callable[[Transaction], Changed[StoredSetting | None]]
    ) -> Plain:
        with self._lock:
            try:
                with self._guarded(row.name, value):
                    self._take(row.name, self._changes.make(asked, work))
            except Refused as error:
                learn_if_uncertain(error, self._store, lambda tx: _find(tx, row.name), self._learn_of(row.name))
                raise
            self._settle(row.name)
            log.info("cluster setting changed", name=row.name, value=plain(value), actor=asked.actor)
            return self._shown(row)

    def _learn_of(self, name: str) -> Callable[[StoredSetting | None], None]:
        before = self._stored.get(name)

        def learn(stored: StoredSetting | None) -> None:
            with self._lock:
                if self._stored.get(name) is before:  # else a later change was answered while we waited
                    self._take(name, stored)
                    self._settle(name)

        return learn

    def _guarded(self, name: str, value: Any) -> AbstractContextManager[Any]:
        guard = self._guards.get(name)
        return ExitStack() if guard is None or value == self.value(name) else guard(value)

    def _take(self, name: str, stored: StoredSetting | None) -> None:
        if stored is None:
            self._stored.pop(name, None)
        else:
            self._stored[name] = stored

    def _settle(self, name: str) -> None:
        before = self._ruling[name].value
        self._ruling[name] = self._rule(name)
        if self.value(name) != before:
            for told in self._told.get(name, ()):
                told(self.value(name))

    def _rule(self, name: str) -> _Ruling:
        stored = self._stored.get(name)
        self.faults.pop(name, None)
        if stored is not None:
            try:
                return _Ruling(INDEX[name].parse(stored.value), "store")
            except ValueError as error:
                self.faults[name] = str(error)
        return self._without_store(name)

    def _without_store(self, name: str) -> _Ruling:
        given = self._file.get(name)
        if given is not None:
            return _Ruling(given.value, given.origin)
        row = INDEX[name]
        return _Ruling(row.parse(row.default), "default")

    def _known(self, name: str) -> Setting:
        if name not in INDEX:
            raise not_found("cluster setting", name, did_you_mean(name, INDEX))
        return INDEX[name]

    def _shown(self, row: Setting) -> Plain:
        stored, given, ruling = self._stored.get(row.name), self._file.get(row.name), self._ruling[row.name]
        return {
            "name": row.name,
            "value": plain(ruling.value),
            "rules": ruling.origin,
            "default": plain(row.parse(row.default)),
            "kind": row.kind.name,
            "unit": "seconds" if row.kind.name == "duration" else row.unit or None,
            "help": row.help,
            "version": stored.version if stored else 0,
            "file": given and {"value": plain(given.value), "origin": given.origin},
            "store": stored
            and {
                "value": stored.value,
                "updated_at": shown(stored.updated_at),
                "updated_by": stored.updated_by,
                "fault": self.faults.get(row.name),
            },
        }


def _permitted(asked: Asked, name: str) -> None:
    if name not in OPERATORS and not asked.principal.has("admin"):
        theirs = " and ".join(sorted(OPERATORS))
        raise Refused(
            "forbidden",
            f"{name} is for administrators to change; an operator changes {theirs}: ask an administrator",
            status=403,
        )


def _find(tx: Transaction, name: str) -> StoredSetting | None:
    return next((row for row in tx.settings.all() if row.name == name), None)
