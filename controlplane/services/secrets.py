"""Secrets of the control plane itself and their rotation (SEC-08).

There is one: ``engine``, from which engines' keys are derived (ENG-03). A rotation adds a
generation: what is started from then on gets a key of it, what runs keeps its key until it
is restarted, and the loop has a generation dropped once no engine needs it. No value ever
leaves here but into the loop.
"""

import secrets
from collections.abc import Sequence

from gevent.lock import RLock

from controlplane.events import EngineKeysChanged
from controlplane.fleet.generations import kept, users
from controlplane.fleet.keys import EngineKeys
from controlplane.inbox import Inbox
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import Refused, conflict, not_found
from controlplane.services.fleet import Fleet, Plain
from controlplane.services.moments import shown
from controlplane.services.recovery import learn_if_uncertain, once_answered
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import StoredSecret
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import did_you_mean

log = Logger("llmgw.secrets")

ENGINE = "engine"
RANDOM_BYTES = 32
MARK_BYTES = 4

MAX_GENERATIONS = 8
"""Generations that are kept at once: who rotates more often has not restarted anything."""


def fresh(number: int, now: float, actor: str = "") -> StoredSecret:
    """A new generation of the engines' secret. ``now`` is Unix time."""
    value = secrets.token_bytes(RANDOM_BYTES)
    return StoredSecret(ENGINE, number, secrets.token_hex(MARK_BYTES), value, now, actor)


def engine_keys(generations: Sequence[StoredSecret]) -> EngineKeys:
    """What the loop derives keys from."""
    return EngineKeys({row.generation: row.value for row in generations})


class Secrets:
    """The generations, read from memory; changes go through the store first."""

    def __init__(
        self,
        store: StoreAccess,
        changes: Changes,
        *,
        inbox: Inbox,
        fleet: Fleet,
        clock: Clock,
        generations: Sequence[StoredSecret],
    ) -> None:
        self._store = store
        self._changes = changes
        self._inbox = inbox
        self._fleet = fleet
        self._clock = clock
        self._lock = RLock()
        self._generations = tuple(generations)

    def all(self) -> list[Plain]:
        """Every secret with its generations, newest first, and who still needs the older ones."""
        view, newest = self._fleet.view, self._generations[-1]
        in_use = users(view)
        return [
            {
                "name": ENGINE,
                "generation": newest.generation,
                "version": newest.number,
                "generations": [
                    {
                        "id": row.generation,
                        "state": "current" if row is newest else "old",
                        "created_at": shown(row.created_at),
                        "created_by": row.created_by or None,
                        "replicas": in_use.get(row.generation, 0),
                        "kept": None if row is newest else kept(view, row.generation, in_use) or "about to be dropped",
                    }
                    for row in reversed(self._generations)
                ],
            }
        ]

    def one(self, name: str) -> Plain:
        """One secret. Raises ``Refused``."""
        found = next((row for row in self.all() if row["name"] == name), None)
        if found is None:
            raise not_found("secret", name, did_you_mean(name, [ENGINE]))
        return found

    def rotate(self, asked: Asked, name: str) -> Plain:
        """Make a new generation the current one. Raises ``Refused``."""
        self.one(name)
        now = self._clock.now().timestamp()

        def work(tx: Transaction) -> Changed[tuple[StoredSecret, ...]]:
            before = tx.secrets.all(name)
            number = before[-1].number if before else 0
            asked.expect(number or None)
            if len(before) >= MAX_GENERATIONS:
                raise conflict(
                    f"{len(before)} generations of the secret {name} are in use: first restart what has an older key "
                    "(llmgw ctl restart --stale), until llmgw ctl secrets list shows that the older ones are gone"
                )
            new = fresh(number + 1, now, asked.actor)
            tx.secrets.add(new)
            old = {"generation": before[-1].generation} if before else None
            return Changed((*before, new), "secret", name, old, {"generation": new.generation})

        with self._lock:  # memory changes in the order of the commits
            try:
                rows = self._changes.make(asked, work)
                self._learn(rows, asked.actor)
            except Refused as error:
                learn_if_uncertain(
                    error, self._store, lambda tx: tx.secrets.all(name), lambda rows: self._learn(rows, asked.actor)
                )
                raise
        log.info("secret rotated", name=name, generation=self._generations[-1].generation, actor=asked.actor)
        return self.one(name)

    def drop(self, generations: Sequence[str]) -> None:
        """Have the store forget generations that nothing needs, as soon as it answers."""
        gone = frozenset(generations)

        def dropped(_: None) -> None:
            # Of what memory has by now: a rotation may have been waiting for the store meanwhile.
            self._learn([row for row in self._generations if row.generation not in gone], "")
            log.info("older generations dropped", name=ENGINE, left=len(self._generations))

        once_answered(self._store, lambda tx: tx.secrets.drop(ENGINE, generations), dropped)

    def _learn(self, rows: Sequence[StoredSecret], actor: str) -> None:
        self._generations = tuple(rows)
        self._inbox.force(EngineKeysChanged(engine_keys(rows), actor))
