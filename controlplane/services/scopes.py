"""Scopes: org, org/team, org/team/project, to which models and keys belong (TEN-01)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gevent.lock import RLock

from controlplane.catalog.model import Model
from controlplane.services.changes import Asked, Changed, Changes, Principal
from controlplane.services.errors import Refused, conflict, invalid, not_found
from controlplane.services.moments import shown as moment_shown
from controlplane.services.names import path_fault
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import Scope
from llmgw.runtime.clock import Clock
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.logs import Logger

log = Logger("llmgw.scopes")

Plain = dict[str, Any]

TOLD = 5
"""How many users of a scope are named when it cannot be removed."""


class Scopes:
    """The scope tree, read from memory; a change goes through the store first."""

    def __init__(
        self,
        store: StoreAccess,
        changes: Changes,
        clock: Clock,
        models: Callable[[], Mapping[str, Model]],
        scopes: Iterable[Scope],
    ) -> None:
        self._store = store
        self._changes = changes
        self._clock = clock
        self._models = models
        self._scopes = {scope.path: scope for scope in scopes}
        self._lock = RLock()

    def known(self, path: str) -> bool:
        """Whether there is such a scope."""
        return path in self._scopes

    def unknown(self, path: str) -> str | None:
        """Why a thing cannot belong to this scope: there is none. ``None`` if there is."""
        if path in self._scopes:
            return None
        hint = did_you_mean(path, self._scopes) or ": an administrator makes it with POST /api/v1/scopes"
        return f"there is no scope {path!r}{hint}"

    def all(self, principal: Principal) -> list[Scope]:
        """The scopes that the principal may see, by path."""
        return [self._scopes[path] for path in sorted(self._scopes) if principal.sees(path)]

    def one(self, principal: Principal, path: str) -> Scope:
        """One scope. Raises ``Refused``."""
        scope = self._scopes.get(path)
        if scope is None or not principal.sees(path):
            raise not_found("scope", path, did_you_mean(path, [row.path for row in self.all(principal)]))
        return scope

    def create(self, asked: Asked, path: str, title: str) -> Scope:
        """Add a scope; its parent must exist. Raises ``Refused``."""
        fault = path_fault(path)
        if fault is not None:
            raise invalid("path", fault)
        parent = path.rpartition("/")[0]
        scope = Scope(path, title, self._clock.now().timestamp(), asked.actor)

        def work(tx: Transaction) -> Changed[Scope | None]:
            known = {row.path: row for row in tx.scopes.all()}
            before = known.get(path)
            if before is not None:
                asked.expect(before.version)
                raise conflict(f"the scope {path!r} exists already: change its title with PUT")
            asked.expect(None)
            if parent and parent not in known:
                hint = did_you_mean(parent, known) or f": make it first ({parent}, then {path})"
                raise invalid("path", f"its parent {parent!r} does not exist{hint}")
            tx.scopes.put(scope)
            return Changed(scope, "scope", path, None, _audited(scope))

        return self._change(asked, path, work) or scope

    def rename(self, asked: Asked, path: str, title: str) -> Scope:
        """Change a scope's title. Raises ``Refused``."""

        def work(tx: Transaction) -> Changed[Scope | None]:
            before = self._stored(tx, path)
            asked.expect(before.version)
            after = Scope(path, title, before.created_at, before.created_by, before.version + 1)
            tx.scopes.put(after)
            return Changed(after, "scope", path, _audited(before), _audited(after))

        return self._change(asked, path, work) or self._scopes[path]

    def remove(self, asked: Asked, path: str) -> None:
        """Remove a scope that nothing uses. Raises ``Refused`` naming what does."""

        def work(tx: Transaction) -> Changed[Scope | None]:
            before = self._stored(tx, path)
            asked.expect(before.version)
            users = self._users(tx, path)
            if users:
                raise conflict(f"the scope {path!r} is in use: {'; '.join(users)}. Move or remove those first")
            tx.scopes.remove(path)
            return Changed(None, "scope", path, _audited(before))

        self._change(asked, path, work)

    def _users(self, tx: Transaction, path: str) -> list[str]:
        now = self._clock.now().timestamp()
        children = [row.path for row in tx.scopes.all() if row.path.startswith(f"{path}/")]
        keys = [
            f"{key.name} ({key.id})"
            for key in tx.keys.all()
            if key.scope == path and key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
        ]
        models = {name for name, model in self._models().items() if model.owner == path}
        models |= {row.name for row in tx.models.all() if row.definition.get("owner") == path}
        owners = [user.name for user in tx.people.users() if any(grant.scope == path for grant in user.grants)]
        found = (("scopes", children), ("keys", keys), ("models", sorted(models)), ("grants of users", owners))
        return [f"{kind} {_listing(names)}" for kind, names in found if names]

    def _stored(self, tx: Transaction, path: str) -> Scope:
        scope = next((row for row in tx.scopes.all() if row.path == path), None)
        if scope is None:
            raise not_found("scope", path, did_you_mean(path, self._scopes))
        return scope

    def _change(self, asked: Asked, path: str, work: Callable[[Transaction], Changed[Scope | None]]) -> Scope | None:
        with self._lock:
            try:
                changed = self._changes.make(asked, work)
            except Refused as error:
                learn_if_uncertain(error, self._store, lambda tx: tx.scopes.all(), self._learn)
                raise
            if changed is None:
                self._scopes.pop(path, None)
            else:
                self._scopes[path] = changed
            log.info("scope changed", path=path, operation=asked.operation, actor=asked.actor)
            return changed

    def _learn(self, scopes: Iterable[Scope]) -> None:
        """What a commit of unknown outcome did."""
        self._scopes = {scope.path: scope for scope in scopes}


def shown(scope: Scope) -> Plain:
    """A scope as it is shown."""
    return {
        "path": scope.path,
        "title": scope.title,
        "parent": scope.path.rpartition("/")[0] or None,
        "kind": ("org", "team", "project")[scope.path.count("/")],
        "created_at": moment_shown(scope.created_at),
        "created_by": scope.created_by,
        "version": scope.version,
    }


def _audited(scope: Scope) -> Plain:
    return {"path": scope.path, "title": scope.title}


def _listing(names: list[str]) -> str:
    more = len(names) - TOLD
    return ", ".join(names[:TOLD]) + (f" and {more} more" if more > 0 else "")
