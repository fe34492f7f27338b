"""The simulated store, as far as leadership goes: the lease row and the way to it (HA-01).

Whoever asks sends a question over the network and gets an answer, or none. A question
may be carried out long after its asker gave up: held up on the way, or by a server that
was stopped and goes on. A server that ends takes what it has not carried out with it.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from controlplane.leadership.lease import Claim, Holder, Row
from controlplane.store.restore import held_back
from llmgw.sim.network import Network
from llmgw.sim.world import WALL_OFFSET, World

STORE = "store"
"""The store's host."""

KEPT = 40
"""Earlier rows that a restore may bring back."""

RETRANSMIT = 1.0
LONGEST_TRY = 90.0
"""Seconds for which an asker's kernel tries to get a question through."""

Question = Callable[[], Row | None]
Answer = Callable[[Row | str | None], None]
"""Takes the row, or why there is no answer."""


class SimStore:
    """See the module. ``row`` is the truth; ``clock_ahead`` is how far its clock is off."""

    def __init__(self, world: World, network: Network) -> None:
        self.row: Row | None = None
        self.clock_ahead = 0.0
        self.slow = 0.0
        """Seconds that carrying out a question may take on top of the usual."""
        self.losing = 0.0
        """Chance that an answer does not get through."""
        self.trap: Callable[[str], None] | None = None
        """What happens to the host of the next process that takes the lease, at that moment."""
        self.restores = 0
        self.turns: dict[str, int] = {}
        """When the lease last came to each owner: a number that rises."""
        self.hold_up: dict[str, float] = {}
        """Seconds by which the next question of a host is late."""
        self._world = world
        self._network = network
        self._rng: random.Random = world.rng(STORE)
        self._lives = 0
        self._away = False
        self._frozen = False
        self._anew = False
        self._waiting: list[Callable[[], None]] = []
        self._before: deque[Row | None] = deque(maxlen=KEPT)

    # ------------------------------------------------------------ the statements

    def read(self) -> Row | None:
        """The row."""
        return self.row

    def claim(self, owner: str, seen: Claim, ttl: float, holder: Holder) -> Row | None:
        """Take or renew the lease, in one statement; then the row as it is."""
        row = self.row
        if row is None:
            self._keep(Row(owner, 1, seen.floor + 1, ttl, holder, self.now()))
        elif row.owner == owner and self.may_renew(row, seen):
            epoch = max(row.epoch, seen.floor)
            self._keep(Row(owner, row.renewals + 1, epoch, ttl, holder, self.now()))
        elif self.may_take(row, seen):
            epoch = self.next_epoch(row.epoch, seen.floor)
            self._keep(Row(owner, row.renewals + 1, epoch, ttl, holder, self.now()))
        return self.row

    def may_take(self, row: Row, seen: Claim) -> bool:
        """Whether another's lease may be taken: it is as the claimant saw it."""
        return (row.owner, row.renewals, row.renewed_at) == (seen.owner, seen.renewals, seen.renewed_at)

    def may_renew(self, row: Row, seen: Claim) -> bool:
        """Whether its owner may renew it: it is no older than the owner knows."""
        return row.renewals >= seen.renewals

    @staticmethod
    def next_epoch(epoch: int, floor: int) -> int:
        """The epoch of a new leader."""
        return max(epoch, floor) + 1

    def release(self, owner: str) -> Row | None:
        """Give the lease up, if it is still the owner's."""
        if self.row is not None and self.may_release(self.row, owner):
            self._keep(
                replace(self.row, owner="", renewals=self.row.renewals + 1, holder=Holder(), renewed_at=self.now())
            )
        return self.row

    def may_release(self, row: Row, owner: str) -> bool:
        """Whether the lease is its to give up."""
        return row.owner == owner

    def now(self) -> float:
        """The store's clock, which may step at any time."""
        return self._world.now + WALL_OFFSET + self.clock_ahead

    def _keep(self, row: Row) -> None:
        self._before.append(self.row)
        if self.row is None or self.row.owner != row.owner or self.row.epoch != row.epoch:
            self._world.log(STORE, f"the lease is {row.owner or 'nobody'}'s, epoch {row.epoch}")
        if row.owner and (self.row is None or self.row.owner != row.owner or self._anew):
            self.turns[row.owner] = max(self.turns.values(), default=0) + 1
        self._anew = False
        self.row = row

    # ------------------------------------------------------------ the way to it

    def ask(self, host: str, question: Question, answer: Answer) -> None:
        """Ask from ``host``; ``answer`` is called at most once."""
        delay = self._network.delay() + self.hold_up.pop(host, 0.0)
        self._world.after(delay, self._arrive, host, question, answer, self._lives, self._world.now)

    def _arrive(self, host: str, question: Question, answer: Answer, life: int, sent: float) -> None:
        if self._network.blocked(host, STORE):
            if self._world.now - sent < LONGEST_TRY:
                self._world.after(RETRANSMIT, self._arrive, host, question, answer, life, sent)
            return
        if self._away or life != self._lives:
            self._world.after(self._network.delay(), answer, "the store does not answer")
            return
        if self._frozen:
            self._waiting.append(lambda: self._carry_out(host, question, answer, life))
            return
        work = self._rng.uniform(0.001, 0.02) + self._rng.uniform(0.0, self.slow)
        self._world.after(work, self._carry_out, host, question, answer, life)

    def _carry_out(self, host: str, question: Question, answer: Answer, life: int) -> None:
        if life != self._lives:
            return
        if self._frozen:
            self._waiting.append(lambda: self._carry_out(host, question, answer, life))
            return
        turn = self.row.owner if self.row is not None else ""
        row = question()
        if self.trap is not None and row is not None and row.owner and row.owner != turn:
            trap, self.trap = self.trap, None
            trap(host)
        if not self._network.blocked(host, STORE) and self._rng.random() >= self.losing:
            self._world.after(self._network.delay(), answer, row)

    # ------------------------------------------------------------ what happens to it

    def stop(self) -> None:
        """It ends: what was under way never happens."""
        self._away = True
        self._lives += 1
        self._waiting.clear()

    def start(self) -> None:
        """It is back."""
        self._away = False

    def freeze(self) -> None:
        """SIGSTOP: questions wait."""
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT: everything that waited is carried out, however old it is."""
        self._frozen = False
        waiting, self._waiting = self._waiting, []
        for carry_out in waiting:
            carry_out()

    def restore(self, back: int, *, held: bool = False, by_command: bool = False) -> None:
        """An older copy takes its place: the row of ``back`` changes ago, or the first after
        that which somebody held (``held``); or what ``llmgw store restore`` makes of it."""
        earlier = [row for row in [*self._before][-back:] if not held or (row is not None and row.owner)]
        self._lives += 1
        self.restores += 1
        self._anew = True
        older = earlier[0] if earlier else self.row
        if by_command:
            nothing = Row("", 0, 0, 0.0)
            older = held_back(f"restore-{self.restores}", older or nothing, self.row or nothing)
        self.row = older
        words = f"{self.row.owner or 'nobody'}'s, epoch {self.row.epoch}" if self.row else "not there"
        self._world.log(STORE, f"restored: the lease is {words}")
        self._before.clear()

    def mend(self) -> None:
        """Everything about it is well again."""
        self.slow = self.losing = 0.0
        self.hold_up.clear()
        self.trap = None
        self.start()
        if self._frozen:
            self.thaw()
