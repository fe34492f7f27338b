"""One change that somebody asked for: checked, made and recorded in one transaction
(API-04, API-05)."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from controlplane.services.errors import Refused, conflict, store_unavailable
from controlplane.services.reading import read
from controlplane.services.recovery import once_answered
from controlplane.store.access import StoreAccess
from controlplane.store.errors import Duplicate, StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.values import AuditEntry, Grant, IdempotencyRecord, Role
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.changes")

T = TypeVar("T")

MAX_WAITING = 1000
"""Entries of the audit that may wait for the store at once."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who was proven to ask. ``token`` is the id of the token presented."""

    user: str
    token: str
    grants: tuple[Grant, ...]

    def has(self, *roles: Role) -> bool:
        """Whether it has one of the roles, for everything or for a scope."""
        return any(grant.role in roles for grant in self.grants)

    @property
    def everywhere(self) -> bool:
        """Whether what it sees is not bound to scopes."""
        return self.has("admin", "operator", "auditor")

    def reaches(self, scope: str) -> bool:
        """Whether it may act on what belongs to ``scope`` (empty = to nobody): an owner
        does on its scopes and all beneath (API-08)."""
        if self.has("admin", "operator"):
            return True
        return self.owns(scope)

    def sees(self, scope: str) -> bool:
        """Whether it may read what belongs to ``scope``."""
        return self.everywhere or self.owns(scope)

    def owns(self, scope: str) -> bool:
        """Whether one of its ``owner`` grants takes ``scope`` in."""
        return any(
            grant.role == "owner" and (scope == grant.scope or scope.startswith(f"{grant.scope}/"))
            for grant in self.grants
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A change as it was asked for.

    ``said`` is what the client says about itself, such as ``cli:root (sudo by eve)``;
    sanitised, and no proof. ``if_match``, ``if_none_match`` and ``idempotency_key`` are the
    request's headers;
    ``digest`` is of its method, path and body.
    """

    principal: Principal
    operation: str
    said: str = ""
    request_id: str = ""
    if_match: str | None = None
    if_none_match: str | None = None
    idempotency_key: str | None = None
    digest: str = ""

    @property
    def actor(self) -> str:
        """Who, in words for people."""
        return f"{self.principal.user} ({self.said})" if self.said else self.principal.user

    def expect(self, version: int | None) -> None:
        """Raise ``Refused`` (412) unless If-Match and If-None-Match allow a change of
        ``version``; ``None``: the thing does not exist."""
        if self.if_none_match is not None and version is not None:
            kept = [tag.strip().removeprefix("W/") for tag in self.if_none_match.split(",")]
            if "*" in kept or etag(version) in kept:
                raise Refused(
                    "precondition_failed",
                    f"it exists already, at {etag(version)}, and If-None-Match asks that it does not: "
                    f"send If-Match: {etag(version)} to change it",
                    status=412,
                )
        if self.if_match is None:
            return
        wanted = [tag.strip().removeprefix("W/") for tag in self.if_match.split(",")]
        if version is not None and ("*" in wanted or etag(version) in wanted):
            return
        now = "it does not exist" if version is None else f"it is at {etag(version)} now"
        raise Refused(
            "precondition_failed",
            f"somebody changed it since you read it ({now}, you sent {self.if_match}): read it again, then repeat",
            status=412,
        )


def etag(version: int) -> str:
    """The entity tag of a version, as in ETag and If-Match (RFC 9110)."""
    return f'"{version}"'


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """What a change did: the result for the caller, and what the audit tells. ``target``
    is what a repeat of the request is answered with."""

    result: T
    kind: str
    target: str
    before: Any = None
    after: Any = None


class Replayed(Exception):
    """The request was carried out before, under the same Idempotency-Key. Answer it with
    ``target`` as it is now."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target


class Changes:
    """Makes changes in the store, each with its audit entry in the same transaction."""

    def __init__(self, store: StoreAccess, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting = 0

    def make(self, asked: Asked, work: Callable[[Transaction], Changed[T]]) -> T:
        """Run ``work`` and record it. Raises what ``work`` raises (``Refused`` rolls back),
        ``Replayed``, and ``Refused`` if the store does not answer (its ``__cause__`` is the
        ``StoreUnavailable``, which may be ``uncertain``)."""

        def whole(tx: Transaction) -> T:
            self._recall(tx, asked)
            changed = work(tx)
            self._record(tx, asked, changed, self._clock.now().timestamp())
            return changed.result

        try:
            return self._write(asked, whole)
        except StoreUnavailable as error:
            raise store_unavailable(error) from error

    def carry_out(self, asked: Asked, act: Callable[[], Changed[T]]) -> T:
        """Run ``act``, which changes something outside the store, and record it.

        The act comes first: what it does (another log level, a reload) must be possible
        while the store is away, and can be done twice without harm. If it then cannot be
        recorded the log says so, and it is recorded once the store answers again. Raises
        what ``act`` raises (nothing is recorded then) and ``Replayed``.
        """
        if asked.idempotency_key is not None:
            try:
                self._store.read(lambda tx: self._recall(tx, asked))
            except StoreUnavailable as error:
                log.warning("an Idempotency-Key could not be looked up", operation=asked.operation, why=error)
        changed = act()
        now = self._clock.now().timestamp()

        def record(tx: Transaction) -> None:
            self._recall(tx, asked)
            self._record(tx, asked, changed, now)

        try:
            self._write(asked, record)
        except StoreUnavailable as error:
            later = not error.uncertain and self._waiting < MAX_WAITING
            if later:
                self._record_later(asked, record)
            log.error(
                "a change is not in the audit yet" if later else "a change is not in the audit",
                operation=asked.operation,
                target=changed.target,
                actor=asked.actor,
                request_id=asked.request_id,
                why=error,
            )
        return changed.result

    def _record_later(self, asked: Asked, record: Callable[[Transaction], None]) -> None:
        """Once the store answers again; a process that ends before that has the log alone."""
        self._waiting += 1

        def attempt(tx: Transaction) -> None:
            with suppress(Replayed, Refused):  # the key was used for this by then
                record(tx)

        def done(_: None) -> None:
            self._waiting -= 1
            log.info("a change is in the audit now", operation=asked.operation, request_id=asked.request_id)

        once_answered(self._store, attempt, done)

    def _write(self, asked: Asked, whole: Callable[[Transaction], T]) -> T:
        try:
            return self._store.write(whole)
        except Duplicate as error:
            if asked.idempotency_key is None:
                raise conflict(str(error)) from error
        try:
            return self._store.write(whole)  # somebody used the key between our look and our commit
        except Duplicate as error:
            raise conflict(str(error)) from error

    def _record(self, tx: Transaction, asked: Asked, changed: Changed[Any], now: float) -> None:
        tx.audit.add(
            AuditEntry(
                at=now,
                actor=asked.actor,
                user=asked.principal.user,
                token=asked.principal.token,
                operation=asked.operation,
                kind=changed.kind,
                target=changed.target,
                before=changed.before,
                after=changed.after,
                request_id=asked.request_id,
            )
        )
        if asked.idempotency_key is not None:
            tx.idempotency.add(
                IdempotencyRecord(asked.idempotency_key, asked.principal.user, asked.digest, changed.target, now)
            )

    def recall(self, asked: Asked) -> None:
        """For what is checked before its transaction: raise ``Replayed`` if it was carried
        out before, so that what it changed is not taken for a reason to refuse it."""
        if asked.idempotency_key is None:
            return
        read(self._store, lambda tx: self._recall(tx, asked))

    @staticmethod
    def _recall(tx: Transaction, asked: Asked) -> None:
        if asked.idempotency_key is None:
            return
        known = tx.idempotency.find(asked.principal.user, asked.idempotency_key)
        if known is None:
            return
        if known.digest != asked.digest:
            raise Refused(
                "idempotency_conflict",
                "this Idempotency-Key was used for another request: use a new key for each change",
                status=422,
            )
        raise Replayed(known.target)


def request_digest(method: str, path: str, body: bytes) -> str:
    """What tells two requests under one Idempotency-Key apart."""
    return hashlib.sha256(b"\0".join((method.encode(), path.encode(), body))).hexdigest()
