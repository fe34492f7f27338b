"""Holds: nothing new is placed in a domain, such as a rack (PLC-15)."""

from collections.abc import Callable, Iterable
from typing import Any

from gevent.lock import RLock

from controlplane.events import Cordon, HoldsSet
from controlplane.inbox import Inbox
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import Refused, invalid, not_found
from controlplane.services.names import content_version, domain
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import Hold
from llmgw.runtime.clock import Clock
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.logs import Logger

log = Logger("llmgw.holds")

Plain = dict[str, Any]


class Holds:
    """The holds, read from memory; a change goes through the store first.

    ``inside`` tells the ids of the nodes that have a label with a value.
    """

    def __init__(
        self,
        inside: Callable[[str, str], list[str]],
        *,
        inbox: Inbox,
        store: StoreAccess,
        changes: Changes,
        clock: Clock,
        holds: Iterable[Hold],
    ) -> None:
        self._inside = inside
        self._inbox = inbox
        self._store = store
        self._changes = changes
        self._clock = clock
        self._holds = {hold.domain: hold for hold in holds}
        self._lock = RLock()

    def current(self) -> dict[str, Cordon]:
        """Every hold by domain, as the loop is told."""
        return {hold.domain: Cordon(hold.reason, hold.actor, hold.at) for hold in self._holds.values()}

    def all(self) -> list[Plain]:
        """Every hold, by domain."""
        return [self._shown(self._holds[name]) for name in sorted(self._holds)]

    def one(self, text: str) -> Plain:
        """One hold. Raises ``Refused``."""
        return self._shown(self._known(_domain(text)))

    def put(self, asked: Asked, text: str, reason: str) -> Plain:
        """Hold a domain, or change why. Raises ``Refused``."""
        name = _domain(text)
        hold = Hold(name, reason, asked.actor, self._clock.now().isoformat(timespec="seconds"))

        def work(tx: Transaction) -> Changed[Hold | None]:
            before = _stored(tx, name)
            asked.expect(_version(before) if before else None)
            tx.intents.put_hold(hold)
            return Changed(hold, "hold", name, before and before.reason, reason)

        self._change(asked, name, work)
        log.info("domain held", domain=name, reason=reason, actor=asked.actor)
        return self._shown(hold)

    def remove(self, asked: Asked, text: str) -> Plain:
        """Release a domain; what the hold was is answered. Raises ``Refused``."""
        name = _domain(text)

        def work(tx: Transaction) -> Changed[Hold | None]:
            before = _stored(tx, name)
            if before is None:
                raise self._unknown(name)
            asked.expect(_version(before))
            tx.intents.remove_hold(name)
            return Changed(None, "hold", name, before.reason)

        shown = self.one(name)
        self._change(asked, name, work)
        log.info("domain released", domain=name, actor=asked.actor)
        return shown

    def _change(self, asked: Asked, name: str, work: Callable[[Transaction], Changed[Hold | None]]) -> None:
        with self._lock:
            try:
                self._take(name, self._changes.make(asked, work))
            except Refused as error:
                learn_if_uncertain(
                    error, self._store, lambda tx: _stored(tx, name), lambda kept: self._take(name, kept)
                )
                raise

    def _take(self, name: str, hold: Hold | None) -> None:
        if hold is None:
            self._holds.pop(name, None)
        else:
            self._holds[name] = hold
        self._inbox.force(HoldsSet(self.current()))

    def _known(self, name: str) -> Hold:
        if name not in self._holds:
            raise self._unknown(name)
        return self._holds[name]

    def _unknown(self, name: str) -> Refused:
        return not_found("hold on", name, did_you_mean(name, self._holds))

    def _shown(self, hold: Hold) -> Plain:
        label, _, value = hold.domain.partition("=")
        return {
            "domain": hold.domain,
            "label": label,
            "value": value,
            "reason": hold.reason,
            "actor": hold.actor,
            "at": hold.at,
            "nodes": self._inside(label, value),
            "version": _version(hold),
        }


def _domain(text: str) -> str:
    found = domain(text)
    if isinstance(found, str):
        raise invalid("domain", found)
    return "=".join(found)


def _version(hold: Hold) -> int:
    return content_version([hold.reason, hold.actor, hold.at])


def _stored(tx: Transaction, name: str) -> Hold | None:
    return next((hold for hold in tx.intents.holds() if hold.domain == name), None)
