"""Who may speak to the control plane: nodes and routers, by their certificates (SEC-01,
SEC-02, REC-13).

Read from memory: whether a peer may speak is asked for every session and request, and
must be known while the store is away. What people change goes through the store first;
what certificates tell (a node that the authority signed and that comes for the first
time, a newer certificate) counts at once and is written soon after.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import gevent
from gevent.event import Event
from gevent.lock import RLock

from controlplane.events import EnrolmentChanged, NodesEnrolled
from controlplane.inbox import Inbox
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import Refused, not_found
from controlplane.services.moments import shown
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.errors import StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.values import AuditEntry, Enrolled
from llmgw.identity.names import Identity, Presented
from llmgw.runtime.clock import Clock
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.logs import Logger

log = Logger("llmgw.identities")

T = TypeVar("T")
Key = tuple[str, str]
"""Kind and name."""

KINDS = ("node", "router")
"""What can be enrolled. Control planes are trusted by their kind alone."""

GATHER = 0.05
"""Seconds for which new nodes are gathered, so that the writer hears of a thousand at once."""

WRITE_AFTER, RETRY = GATHER, 5.0
"""Seconds until what certificates told is written, and between two tries while the store is
away. No longer than the writer of the fleet waits for it: a node that got work must be known
to the next leader, which would not wait for it else (REC-24)."""

AT_ONCE = 500
"""Identities written in one transaction."""

BY_CERTIFICATE = "certificate"
"""The actor of an enrolment that nobody asked for: the authority's certificate did."""


class NotAdmitted(Exception):
    """A peer may not speak. ``code`` is one of ``errors.SESSION``; the message is for both
    sides."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Told:
    """What a certificate told that is not in the store yet."""

    presented: Presented
    first: bool


class Identities:
    """The identities in memory, and their changes. ``end(identity, code, message)`` ends the
    sessions of one that may no longer speak."""

    def __init__(
        self,
        store: StoreAccess,
        changes: Changes,
        clock: Clock,
        *,
        inbox: Inbox,
        end: Callable[[Identity, str, str], None],
        enrolled: Iterable[Enrolled],
    ) -> None:
        self._store = store
        self._changes = changes
        self._clock = clock
        self._inbox = inbox
        self._end = end
        self._lock = RLock()
        self._known: dict[Key, Enrolled] = {(row.kind, row.name): row for row in enrolled}
        self._told: dict[Key, _Told] = {}
        self._leaving: set[Key] = set()
        self._gathering: Event | None = None
        self._gathered: set[str] = set()
        self._writer: gevent.Greenlet[..., None] | None = None

    # ------------------------------------------------------------ reads

    def all(self) -> tuple[Enrolled, ...]:
        """Everyone, removed ones too, by kind and name."""
        return tuple(self._known[key] for key in sorted(self._known))

    def one(self, identity: Identity) -> Enrolled:
        """One of them. Raises ``Refused``."""
        kind, name = identity.kind, identity.name
        found = self._known.get((kind, name))
        if found is None:
            raise not_found(kind, name, did_you_mean(name, [known for of, known in self._known if of == kind]))
        return found

    def nodes(self) -> frozenset[str]:
        """The nodes of the fleet, in session or not."""
        return frozenset(row.name for row in self._known.values() if row.kind == "node" and row.removed_at is None)

    def is_enrolled(self, kind: str, name: str) -> bool:
        """Whether it belongs to the fleet."""
        known = self._known.get((kind, name))
        return known is not None and known.removed_at is None

    @property
    def unwritten(self) -> int:
        """How many have something that the store does not know yet."""
        return len(self._told)

    def newest(self, presented: Presented) -> bool:
        """Whether its holder has no newer certificate that we know of."""
        known = self._known.get((presented.identity.kind, presented.identity.name))
        return known is None or known.serial in ("", presented.serial)

    def revoked_until(self, identity: Identity) -> float:
        """Certificates issued at or before this moment are refused; 0 if none is."""
        known = self._known.get((identity.kind, identity.name))
        return 0.0 if known is None or known.revoked_at is None else known.revoked_at

    # ------------------------------------------------------------ peers

    def admit(self, presented: Presented, kind: str, name: str) -> None:
        """Let a peer in that says it is ``name``. Raises ``NotAdmitted``. May wait a little:
        a node that is new is made known to the writer before its session is.

        Whoever the authority signed belongs to the fleet, from its first contact on.
        """
        identity = presented.identity
        if (identity.kind, identity.name) != (kind, name):
            raise NotAdmitted(
                "unauthorised",
                f"the certificate is that of {identity}, not of {kind} {name}: "
                f"give it its own with llmgw join {kind}, or correct the name in its settings",
            )
        if (kind, name) in self._leaving:
            # What it is given from here on would be newer than the revocation, and good for ever.
            raise NotAdmitted("revoked", f"the certificates of {kind} {name} are being revoked at this moment")
        known = self._known.get((kind, name))
        if known is not None and known.revoked_at is not None and presented.issued_at <= known.revoked_at:
            gone = f"{kind} {name} was removed from the fleet" if known.removed_at is not None else ""
            raise NotAdmitted(
                "revoked",
                f"{gone or f'the certificates of {kind} {name} were revoked'} at {shown(known.revoked_at)}"
                f"{f' ({known.reason})' if known.reason else ''}: join it anew with a token of "
                f"llmgw ctl {kind}s add {name}",
            )
        if known is None or known.removed_at is not None:
            self._enrol(presented)
        elif presented.serial != known.serial and presented.issued_at >= (known.issued_at or 0.0):
            self.renewed(presented)
        if kind == "node" and self._gathering is not None:
            self._gathering.wait()

    def renewed(self, presented: Presented) -> None:
        """An enrolled peer has a newer certificate."""
        key = (presented.identity.kind, presented.identity.name)
        known = self._known.get(key)
        if known is not None:
            self._known[key] = replace(known, **_shows(presented))
            first = key in self._told and self._told[key].first
            self._tell(key, _Told(presented, first))

    def _enrol(self, presented: Presented) -> None:
        identity = presented.identity
        key = (identity.kind, identity.name)
        before = self._known.get(key)
        self._known[key] = _enrolled(before, presented, self._clock.now().timestamp(), BY_CERTIFICATE)
        log.info("enrolled by its certificate", kind=identity.kind, name=identity.name, serial=presented.serial)
        self._tell(key, _Told(presented, first=True))
        if identity.kind == "node":
            self._gather(identity.name)

    def _gather(self, node: str) -> None:
        self._gathered.add(node)
        if self._gathering is None:
            self._gathering = Event()
            gevent.spawn_later(GATHER, self._announce)

    def _announce(self) -> None:
        waiting, self._gathering = self._gathering, None
        gathered, self._gathered = self._gathered, set()
        self._inbox.force(NodesEnrolled(frozenset(node for node in gathered if self.is_enrolled("node", node))))
        if waiting is not None:
            waiting.set()

    # ------------------------------------------------------------ what certificates told

    def _tell(self, key: Key, told: _Told) -> None:
        self._told[key] = told
        if self._writer is None:
            self._writer = gevent.spawn_later(WRITE_AFTER, self._write)

    def _write(self) -> None:
        while self._told:
            batch = dict(list(self._told.items())[:AT_ONCE])
            try:
                with self._lock:
                    self._store.write(lambda tx: _keep(tx, batch, self._clock.now().timestamp()))  # noqa: B023
            except StoreUnavailable as error:
                log.warning("identities wait for the store", count=len(self._told), why=error)
                gevent.sleep(RETRY)
                continue
            except Exception:
                log.exception("identities could not be written")
                gevent.sleep(RETRY)
                continue
            for key, told in batch.items():
                if self._told.get(key) is told:
                    del self._told[key]
        self._writer = None

    def stop(self) -> None:
        """Write no more. What is not in the store is told again when its peer comes back."""
        if self._writer is not None:
            self._writer.kill(block=False)

    # ------------------------------------------------------------ what people change

    def revoke(self, asked: Asked, identity: Identity, reason: str, *, unseen: bool = False) -> Enrolled:
        """Refuse every certificate of an identity that was issued until now, and end its
        sessions at once; it stays in the fleet and may join anew. ``unseen``: also one that
        never came. Raises ``Refused``."""
        return self._revoke(asked, identity, reason, removed=False, unseen=unseen)

    def remove(self, asked: Asked, identity: Identity, reason: str) -> Enrolled:
        """The same, and take it out of the fleet: what runs there is placed elsewhere
        (REC-13). Raises ``Refused``."""
        return self._revoke(asked, identity, reason, removed=True, unseen=False)

    def _revoke(self, asked: Asked, identity: Identity, reason: str, *, removed: bool, unseen: bool) -> Enrolled:
        key = (identity.kind, identity.name)
        if not unseen:
            self.one(identity)
        with self._lock:
            self._leaving.add(key)
            try:
                revoked = self._make(asked, self._revocation(asked, key, reason, removed=removed))
            finally:
                self._leaving.discard(key)
        log.info("certificates revoked", kind=key[0], name=key[1], removed=removed, actor=asked.actor)
        why = "was removed from the fleet" if removed else "had its certificates revoked"
        self._end(
            identity, "revoked", f"{identity} {why}: join it anew with a token of llmgw ctl {key[0]}s add {key[1]}"
        )
        return revoked

    def _revocation(
        self, asked: Asked, key: Key, reason: str, *, removed: bool
    ) -> Callable[[Transaction], Changed[Enrolled]]:
        """As of now, or of the newest certificate: the clock that dated it may be ahead of ours."""
        known = self._known.get(key)
        now = max(self._clock.now().timestamp(), (known and known.issued_at) or 0.0)

        def work(tx: Transaction) -> Changed[Enrolled]:
            before = tx.identities.one(*key) or known  # it may wait for the store
            asked.expect(None if before is None else before.version)
            gone = now if removed or before is None else before.removed_at
            after = replace(
                before or Enrolled(*key, enrolled_at=now, enrolled_by=asked.actor, version=0),
                revoked_at=now,
                revoked_by=asked.actor,
                reason=reason,
                removed_at=gone,
            )
            after = replace(after, version=after.version + 1)
            tx.identities.put(after)
            return Changed(after, "identity", "/".join(key), before and plain(before), plain(after))

        return work

    def joined(self, tx: Transaction, presented: Presented, token: str, actor: str) -> Enrolled:
        """Within a transaction: an identity got its first certificate with a token. Call
        ``keep`` with the result once it is committed."""
        identity = presented.identity
        now = self._clock.now().timestamp()
        before = tx.identities.one(identity.kind, identity.name)
        after = _enrolled(before, presented, now, actor)
        tx.identities.put(after)
        tx.audit.add(_entry(now, "identities.join", (actor, token), before, after))
        return after

    def keep(self, row: Enrolled) -> None:
        """Take over what was committed."""
        key = (row.kind, row.name)
        before = self._known.get(key)
        self._known[key] = row
        if row.kind == "node" and (before is None or before.removed_at != row.removed_at):
            self._inbox.force(EnrolmentChanged(self.nodes()))

    @property
    def lock(self) -> RLock:
        """Held from before a commit until ``keep``: memory changes in the order of the commits."""
        return self._lock

    def _make(self, asked: Asked, work: Callable[[Transaction], Changed[Enrolled]]) -> Enrolled:
        with self._lock:
            try:
                row = self._changes.make(asked, work)
            except Refused as error:
                learn_if_uncertain(error, self._store, lambda tx: tx.identities.all(), self.learn)
                raise
            self._told.pop((row.kind, row.name), None)
            self.keep(row)
            return row

    def learn(self, rows: Iterable[Enrolled]) -> None:
        """What the store has, as after a commit of unknown outcome. Ends the sessions of
        who turns out to be revoked."""
        fresh = {(row.kind, row.name): row for row in rows}
        revoked = [
            row for key, row in fresh.items() if row.revoked_at != getattr(self._known.get(key), "revoked_at", None)
        ]
        waiting = {key: self._known[key] for key in self._told if key not in fresh and key in self._known}
        self._known = {**waiting, **fresh}
        self._inbox.force(EnrolmentChanged(self.nodes()))
        for row in revoked:
            self._end(Identity(row.kind, row.name), "revoked", f"{row.kind} {row.name} was revoked")  # type: ignore[arg-type]


def _enrolled(before: Enrolled | None, presented: Presented, now: float, by: str) -> Enrolled:
    if before is None:
        identity = presented.identity
        fresh = Enrolled(identity.kind, identity.name, now, by)
    elif before.removed_at is not None:
        fresh = replace(before, removed_at=None, enrolled_at=now, enrolled_by=by, version=before.version + 1)
    else:
        fresh = before
    return replace(fresh, **_shows(presented))


def _shows(presented: Presented) -> dict[str, Any]:
    return {"serial": presented.serial, "issued_at": presented.issued_at, "expires_at": presented.expires_at}


def _keep(tx: Transaction, batch: dict[Key, _Told], now: float) -> None:
    """In few statements: thousands may come at once."""
    rows = [row for kind in KINDS for row in tx.identities.named(kind, [name for of, name in batch if of == kind])]
    known = {(row.kind, row.name): row for row in rows}
    changed: list[Enrolled] = []
    audited: list[AuditEntry] = []
    for key, told in batch.items():
        before = known.get(key)
        if before is not None and before.revoked_at is not None and told.presented.issued_at <= before.revoked_at:
            continue  # it was revoked after it was let in
        if before is None and not told.first:
            continue
        after = _enrolled(before, told.presented, now, BY_CERTIFICATE)
        if after == before:
            continue
        changed.append(after)
        if before is None or before.removed_at is not None:
            by = (BY_CERTIFICATE, told.presented.serial)
            audited.append(_entry(now, "identities.enrol", by, before, after))
    tx.identities.put(*changed)
    tx.audit.add(*audited)


def _entry(now: float, operation: str, by: tuple[str, str], before: Enrolled | None, after: Enrolled) -> AuditEntry:
    """``by``: the actor in words, and the id of the token or certificate that proved it."""
    return AuditEntry(
        at=now,
        actor=by[0],
        user=BY_CERTIFICATE,
        token=by[1],
        operation=operation,
        kind="identity",
        target=f"{after.kind}/{after.name}",
        before=None if before is None else plain(before),
        after=plain(after),
    )


def plain(row: Enrolled) -> dict[str, object]:
    """An identity for the audit."""
    return {
        "serial": row.serial,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
        "reason": row.reason,
        "removed": row.removed_at is not None,
    }
