"""API keys: made by us, shown once, kept as a digest, cached in memory (SEC-03)."""

import hashlib
import secrets
from collections.abc import Callable, Sequence

from gevent.lock import RLock

from controlplane.catalog.model import Catalog
from controlplane.publish.table import Publisher
from controlplane.services.changes import Asked, Changed, Changes, Principal
from controlplane.services.errors import Refused, invalid, not_found
from controlplane.services.moments import moment
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import ApiKey
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import did_you_mean
from llmgw.wire.routing import RoutedKey

log = Logger("llmgw.keys")

PREFIX = "sk-llmgw-"
RANDOM_BYTES = 24
SHOWN = len(PREFIX) + 4


def digest(key: str) -> str:
    """What is stored and published of a key: its SHA-256 in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """The keys, read from memory; changes go through the store first.

    What a principal may not see does not exist for it.
    """

    def __init__(
        self,
        store: StoreAccess,
        changes: Changes,
        *,
        publisher: Publisher,
        clock: Clock,
        catalog: Callable[[], Catalog],
        keys: Sequence[ApiKey],
    ) -> None:
        self._store = store
        self._changes = changes
        self._publisher = publisher
        self._clock = clock
        self._catalog = catalog
        self._lock = RLock()
        self._keys = {key.id: key for key in keys}
        self._publish()

    def all(self) -> tuple[ApiKey, ...]:
        """Every key, revoked ones too, oldest first."""
        return tuple(self._keys.values())

    def seen(self, principal: Principal) -> list[ApiKey]:
        """The keys that the principal may see, oldest first."""
        return sorted(
            (key for key in self._keys.values() if principal.sees(key.scope)), key=lambda key: (key.created_at, key.id)
        )

    def one(self, principal: Principal, key_id: str) -> ApiKey:
        """One key. Raises ``Refused``."""
        key = self._keys.get(key_id)
        if key is None or not principal.sees(key.scope):
            raise not_found("key", key_id, did_you_mean(key_id, [row.id for row in self.seen(principal)]))
        return key

    def state(self, key: ApiKey) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if key.revoked_at is not None:
            return "revoked"
        expired = key.expires_at is not None and key.expires_at <= self._clock.now().timestamp()
        return "expired" if expired else "active"

    def create(
        self, asked: Asked, name: str, models: Sequence[str] | None = None, expires: str | None = None, scope: str = ""
    ) -> tuple[ApiKey, str]:
        """Make a key; the second value is the key itself, which is kept nowhere.

        ``expires`` is a duration from now or an ISO 8601 moment with its zone. Raises
        ``Refused``.
        """
        now = self._clock.now()
        _within(asked.principal, scope)
        text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        key = ApiKey(
            id=f"key-{secrets.token_hex(6)}",
            name=name,
            shown=text[:SHOWN],
            digest=digest(text),
            created_at=now.timestamp(),
            created_by=asked.actor,
            models=None if models is None else self._canonical(models),
            scope=scope,
            expires_at=None if expires is None else moment("expires", expires, now),
        )

        def work(tx: Transaction) -> Changed[ApiKey]:
            known = [row.path for row in tx.scopes.all()] if scope else []
            if scope and scope not in known:
                hint = did_you_mean(scope, known) or ": an administrator makes it with POST /api/v1/scopes"
                raise invalid("scope", f"there is no scope {scope!r}{hint}")
            tx.keys.add(key)
            return Changed(key, "key", key.id, None, plain(key))

        made = self._make(asked, work)
        log.info("key created", key=key.id, name=name, scope=scope or None, actor=asked.actor)
        return made, text

    def revoke(self, asked: Asked, key_id: str) -> ApiKey:
        """Revoke a key; routers refuse it within one poll. Raises ``Refused``."""
        self.one(asked.principal, key_id)
        now = self._clock.now().timestamp()

        def work(tx: Transaction) -> Changed[ApiKey]:
            before = next((row for row in tx.keys.all() if row.id == key_id), None)
            asked.expect(before.version if before else None)
            after = tx.keys.revoke(key_id, now, asked.actor)
            if before is None or after is None:
                raise not_found("key", key_id)
            return Changed(after, "key", key_id, plain(before), plain(after))

        revoked = self._make(asked, work)
        log.info("key revoked", key=key_id, actor=asked.actor)
        return revoked

    def _make(self, asked: Asked, work: Callable[[Transaction], Changed[ApiKey]]) -> ApiKey:
        with self._lock:  # memory changes in the order of the commits
            try:
                key = self._changes.make(asked, work)
            except Refused as error:
                learn_if_uncertain(error, self._store, lambda tx: tx.keys.all(), self._learn)
                raise
            self._keys[key.id] = key
            self._publish()
            return key

    def _learn(self, keys: Sequence[ApiKey]) -> None:
        """What a commit of unknown outcome did."""
        self._keys = {key.id: key for key in keys}
        self._publish()

    def _canonical(self, models: Sequence[str]) -> tuple[str, ...]:
        catalog = self._catalog()
        names = {alias: model.name for model in catalog.models.values() for alias in model.aliases}
        names |= {name: name for name in catalog.models}
        if not models:
            raise invalid("models", "must name at least one model; leave it out for all models")
        for index, model in enumerate(models):
            if model not in names:
                raise invalid(f"models[{index}]", f"the catalog has no model {model!r}{did_you_mean(model, names)}")
        return tuple(dict.fromkeys(names[model] for model in models))

    def _publish(self) -> None:
        now = self._clock.now().timestamp()
        self._publisher.set_keys(
            RoutedKey(id=key.id, digest=key.digest, models=key.models, expires=key.expires_at)
            for key in self._keys.values()
            if key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
        )


def plain(key: ApiKey) -> dict[str, object]:
    """A key for the audit: neither the key nor its digest."""
    return {
        "name": key.name,
        "scope": key.scope,
        "models": None if key.models is None else list(key.models),
        "expires_at": key.expires_at,
        "revoked": key.revoked_at is not None,
    }


def _within(principal: Principal, scope: str) -> None:
    if principal.reaches(scope):
        return
    own = sorted(grant.scope for grant in principal.grants if grant.role == "owner")
    raise invalid("scope", f"must be one that {principal.user} owns, or beneath it: {', '.join(own)}")
