"""Who may speak to the control plane: nodes and routers, by their certificates (SEC-01,
SEC-02, REC-13).

Read from memory: whether a peer may speak is asked for every session and request, and
must be known while the store is away. What people change goes through the store first;
what certificates tell (a node that the authority signed and that comes for the first
time, a newer certificate) counts at once and is written soon after.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import gevent
from gevent.event import Event
from gevent.lock import RLock

from controlplane.events import EnrolmentChanged, NodesEnrolled
from controlplane.inbox import Inbox
from controlplane.services import enrolment
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.enrolment import BY_CERTIFICATE, Key, Told
from controlplane.services.errors import Refused, not_found
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.errors import StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.values import Enrolled
from llmgw.identity.names import Identity, Presented
from llmgw.runtime.clock import Clock, utc
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.logs import Logger

log = Logger("llmgw.identities")

Revoked = tuple[Enrolled, tuple[str, ...]]
"""Whose certificates were revoked, and the ids of the join tokens that were taken back with them."""

GATHER = 0.05
"""Seconds for which new nodes are gathered, so that the writer hears of a thousand at once."""

WRITE_AFTER, RETRY = GATHER, 5.0
"""Seconds until what certificates told is written, and between two tries while the store is
away. No longer than the writer of the fleet waits for it: a node that got work must be known
to the next leader, which would not wait for it else (REC-24)."""

AT_ONCE = 500
"""Identities written in one transaction."""

MAX_REFUSED = 1000
"""Names in which peers were refused that are remembered, those of late."""


class NotAdmitted(Exception):
    """A peer may not speak. ``code`` is one of ``errors.SESSION``; the message is for both
    sides."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


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
        self._told: dict[Key, Told] = {}
        self._leaving: set[Key] = set()
        self._refused: dict[Key, tuple[float, str]] = {}
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

    @property
    def unwritten(self) -> int:
        """How many have something that the store does not know yet."""
        return len(self._told)

    @property
    def refused(self) -> Mapping[Key, tuple[float, str]]:
        """In whose name a peer was refused since it was last let in: when (monotonic seconds),
        and why."""
        return self._refused

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
        key = (kind, name)
        before = self._refused.pop(key, None)
        try:
            self._check(presented, kind, name)
        except NotAdmitted as error:
            if before is None and len(self._refused) >= MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._refused[key] = (self._clock.monotonic(), str(error))
            raise
        known = self._known.get(key)
        if known is None or known.removed_at is not None:
            self._enrol(presented)
        elif presented.serial != known.serial and presented.issued_at >= (known.issued_at or 0.0):
            self._renewed(presented)
        if kind == "node" and self._gathering is not None:
            self._gathering.wait()
            self._check(presented, kind, name)  # what was revoked meanwhile has no session yet that could be ended

    def _check(self, presented: Presented, kind: str, name: str) -> None:
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
                f"{gone or f'the certificates of {kind} {name} were revoked'} at {utc(known.revoked_at)}"
                f"{f' ({known.reason})' if known.reason else ''}: join it anew with a token of "
                f"llmgw ctl {kind}s add {name}",
            )

    def record(self, presented: Presented, made: Presented) -> None:
        """Write down a certificate that was made for who showed another, before it is handed
        over. The clock that dated it may be ahead, so whoever leads next could not revoke what
        it does not know of; and who leads no more can renew nothing. Raises ``NotAdmitted``,
        also while the store is away."""
        kind, name = key = made.identity.kind, made.identity.name
        told = Told(made, first=True)
        with self._lock:
            self._check(presented, kind, name)
            now = self._clock.now().timestamp()
            try:
                self._store.write(lambda tx: enrolment.write(tx, {key: told}, now))
            except StoreUnavailable as error:
                words = f"the store does not take the new certificate, so it is not handed over: try again ({error})"
                raise NotAdmitted("overloaded", words) from error
            self._told.pop(key, None)
            self._known[key] = enrolment.enrolled(self._known.get(key), made, now, BY_CERTIFICATE)

    def _renewed(self, presented: Presented) -> None:
        """An enrolled peer has a newer certificate."""
        key = (presented.identity.kind, presented.identity.name)
        known, told = self._known.get(key), self._told.get(key)
        told = Told(presented, first=told is not None and told.first)
        after = known and enrolment.told_of(known, told, self._clock.now().timestamp())
        if after is not None:
            self._known[key] = after
            self._tell(key, told)

    def _enrol(self, presented: Presented) -> None:
        identity = presented.identity
        key = (identity.kind, identity.name)
        before = self._known.get(key)
        self._known[key] = enrolment.enrolled(before, presented, self._clock.now().timestamp(), BY_CERTIFICATE)
        log.info("enrolled by its certificate", kind=identity.kind, name=identity.name, serial=presented.serial)
        self._tell(key, Told(presented, first=True))
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
        self._inbox.force(NodesEnrolled(frozenset(gathered & self.nodes())))
        if waiting is not None:
            waiting.set()

    # ------------------------------------------------------------ what certificates told

    def _tell(self, key: Key, told: Told) -> None:
        self._told[key] = told
        if self._writer is None:
            self._writer = gevent.spawn_later(WRITE_AFTER, self._write)

    def _write(self) -> None:
        while self._told:
            batch = dict(list(self._told.items())[:AT_ONCE])
            try:
                with self._lock:
                    self._store.write(partial(enrolment.write, batch=batch, now=self._clock.now().timestamp()))
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

    def revoke(self, asked: Asked, identity: Identity, reason: str, *, unseen: bool = False) -> Revoked:
        """Refuse every certificate of an identity that was issued until now, and end its
        sessions at once; it stays in the fleet and may join anew. Join tokens for it that
        were not used are taken back. ``unseen``: also one that never came. Raises ``Refused``."""
        return self._revoke(asked, identity, reason, removed=False, unseen=unseen)

    def remove(self, asked: Asked, identity: Identity) -> None:
        """The same, and take it out of the fleet: what runs there is placed elsewhere
        (REC-13). Raises ``Refused``, 404 if it was removed before."""
        self._revoke(asked, identity, "", removed=True, unseen=False)

    def _revoke(self, asked: Asked, identity: Identity, reason: str, *, removed: bool, unseen: bool) -> Revoked:
        key = (identity.kind, identity.name)
        with self._lock:
            known = self._known.get(key) if unseen else self.one(identity)
            if removed and known is not None and known.removed_at is not None:
                raise not_found(*key, f" in the fleet any more: it was removed at {utc(known.removed_at)}")
            self._leaving.add(key)
            try:
                row, tokens = self._changes.make(asked, self._revocation(asked, key, reason, removed=removed))
            except Refused as error:
                learn_if_uncertain(error, self._store, lambda tx: tx.identities.all(), self.learn)
                raise
            finally:
                self._leaving.discard(key)
            self._told.pop(key, None)
            self.keep(row)
        log.info("certificates revoked", kind=key[0], name=key[1], removed=removed, actor=asked.actor)
        why = "was removed from the fleet" if removed else "had its certificates revoked"
        self._end(
            identity, "revoked", f"{identity} {why}: join it anew with a token of llmgw ctl {key[0]}s add {key[1]}"
        )
        return row, tokens

    def _revocation(
        self, asked: Asked, key: Key, reason: str, *, removed: bool
    ) -> Callable[[Transaction], Changed[Revoked]]:
        """As of now, or of the newest certificate: the clock that dated it may be ahead of ours."""
        known, told = self._known.get(key), self._told.get(key)
        now = max(self._clock.now().timestamp(), (known and known.issued_at) or 0.0)

        def work(tx: Transaction) -> Changed[Revoked]:
            before = tx.identities.one(*key)
            if told is not None:  # it may wait for the store
                before = enrolment.told_of(before, told, now) or before
            asked.expect(None if before is None else before.version)
            fresh = before or Enrolled(*key, enrolled_at=now, enrolled_by=asked.actor, removed_at=now, version=0)
            after = enrolment.revoked(fresh, now, asked.actor, reason, removed=removed)
            tx.identities.put(after)
            unused = [each for each in tx.identities.tokens() if (each.kind, each.name) == key and not each.used_at]
            for token in unused:
                tx.identities.remove_token(token.id)
            tokens = tuple(token.id for token in unused)
            audited = {**enrolment.plain(after), "join_tokens": tokens}
            return Changed((after, tokens), "identity", "/".join(key), before and enrolment.plain(before), audited)

        return work

    def joined(self, tx: Transaction, presented: Presented, token: str, actor: str) -> Enrolled:
        """Within a transaction: an identity got its first certificate with a token. Call
        ``keep`` with the result once it is committed."""
        identity = presented.identity
        now = self._clock.now().timestamp()
        before = tx.identities.one(identity.kind, identity.name)
        after = enrolment.enrolled(before, presented, now, actor)
        tx.identities.put(after)
        tx.audit.add(enrolment.entry(now, "identities.join", (actor, token), before, after))
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

    def learn(self, rows: Iterable[Enrolled]) -> None:
        """What the store has, as after a commit of unknown outcome; what certificates told
        since is added. Ends the sessions of who turns out to be revoked."""
        now = self._clock.now().timestamp()
        known = {(row.kind, row.name): row for row in rows}
        revoked = [
            row for key, row in known.items() if row.revoked_at != getattr(self._known.get(key), "revoked_at", None)
        ]
        for key, told in self._told.items():
            after = enrolment.told_of(known.get(key), told, now)
            if after is not None:
                known[key] = after
        self._known = known
        self._inbox.force(EnrolmentChanged(self.nodes()))
        for row in revoked:
            self._end(Identity(row.kind, row.name), "revoked", f"{row.kind} {row.name} was revoked")  # type: ignore[arg-type]
