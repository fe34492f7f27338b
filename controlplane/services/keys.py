"""API keys: made by us, shown once, kept as a digest, cached in memory (SEC-03)."""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from controlplane.catalog.model import Catalog
from controlplane.publish.table import Publisher
from controlplane.services.errors import invalid, not_found, store_unavailable
from controlplane.services.recovery import once_answered
from controlplane.store.port import ApiKey, Store, StoreUnavailable
from controlplane.store.writer import StoreWriter
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import did_you_mean, parse_duration
from llmgw.wire.routing import RoutedKey

log = Logger("llmgw.keys")

T = TypeVar("T")

PREFIX = "sk-llmgw-"
RANDOM_BYTES = 24
SHOWN = len(PREFIX) + 4


def digest(key: str) -> str:
    """What is stored and published of a key: its SHA-256 in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """The keys, read from memory; changes go through the store first."""

    def __init__(
        self,
        store: StoreWriter,
        publisher: Publisher,
        clock: Clock,
        catalog: Callable[[], Catalog],
        keys: Sequence[ApiKey],
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._catalog = catalog
        self._keys = {key.id: key for key in keys}
        self._publish()

    def all(self) -> tuple[ApiKey, ...]:
        """Every key, revoked ones too, oldest first."""
        return tuple(self._keys.values())

    def create(self, name: str, models: Sequence[str] | None, expires: str | None, actor: str) -> tuple[ApiKey, str]:
        """Make a key; the second value is the key itself, which is kept nowhere.

        ``expires`` is a duration from now or an ISO 8601 moment with its zone. Raises
        ``Refused``.
        """
        now = self._clock.now()
        allowed = None if models is None else self._canonical(models)
        until = None if expires is None else _moment(expires, now)
        text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        key = ApiKey(
            id=f"key-{secrets.token_hex(6)}",
            name=name,
            shown=text[:SHOWN],
            digest=digest(text),
            created_at=now.timestamp(),
            created_by=actor,
            models=allowed,
            expires_at=until,
        )
        self._change(lambda store: store.add_key(key))
        self._keys[key.id] = key
        self._publish()
        log.info("key created", key=key.id, name=name, actor=actor)
        return key, text

    def revoke(self, key_id: str, actor: str) -> ApiKey:
        """Revoke a key; routers refuse it within one poll. Raises ``Refused``."""
        if key_id not in self._keys:
            raise not_found("key", key_id)
        now = self._clock.now().timestamp()
        revoked = self._change(lambda store: store.revoke_key(key_id, now, actor))
        if revoked is None:
            raise not_found("key", key_id)
        self._keys[key_id] = revoked
        self._publish()
        log.info("key revoked", key=key_id, actor=actor)
        return revoked

    def _change(self, work: Callable[[Store], T]) -> T:
        try:
            return self._store.call(work)
        except StoreUnavailable as error:
            if error.uncertain:
                once_answered(self._store, lambda store: store.api_keys(), self._learn)
            raise store_unavailable(error) from error

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


def _moment(text: str, now: datetime) -> float:
    try:
        return now.timestamp() + _positive(parse_duration(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid("expires", "must be a duration such as 30d, or a moment such as 2030-01-31T00:00:00Z") from None
    if moment.tzinfo is None:
        raise invalid("expires", "must name its time zone, such as 2030-01-31T00:00:00Z")
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise invalid("expires", "must be between the years 1 and 9999") from None
    if moment <= now:
        raise invalid("expires", "must be in the future")
    return moment.timestamp()


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise invalid("expires", "must be in the future")
    return seconds
