"""The driver of a control plane's lease in the simulator: the real machine
(``controlplane.leadership.lease``, or ``alone`` where there is no standby), asking the
simulated store with a time limit, as ``controlplane.leadership.driver`` does.

Beside what the machine believes it keeps what is true: ``claimed_until`` is when the last
claim that the store carried out, and said so, ends less its margin, in the world's time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from controlplane.leadership import lease
from controlplane.leadership.alone import Alone
from llmgw.sim.store import Question, SimStore
from llmgw.sim.wall import Wall
from llmgw.sim.world import TICK, Process, Timer

TIMEOUT = 3.0
"""Seconds the store has for an answer."""

Decided = lease.Won | lease.Extended | lease.Lost


@dataclass(frozen=True, slots=True)
class Times:
    """How long a claim lasts and how often it is renewed, in seconds."""

    ttl: float = lease.TTL
    renew: float = lease.RENEW
    margin: float = lease.MARGIN


class LeaseKeeper:
    """One process's lease. ``told`` gets what the machine decides."""

    def __init__(
        self,
        process: Process,
        store: SimStore,
        *,
        host: str,
        wall: Wall,
        holder: lease.Holder,
        times: Times,
        alone: bool,
        told: Callable[[Decided], None],
    ) -> None:
        self.wall = wall
        self.claimed_until = -inf
        self._alone = alone
        self._process = process
        self._store = store
        self._host = host
        self._holder = holder
        self._times = times
        self._told = told
        self._number = 0
        self._stopped = False
        self._alarm: Timer | None = None
        self._candidacies = 0
        self.lease = self._machine()

    def now(self) -> float:
        """The clock that the lease goes by."""
        return self.wall.monotonic()

    def stand_by(self) -> None:
        """Be a candidate from now on, with an id of our own."""
        self._number += 1
        self.claimed_until = -inf
        self.lease = self._machine()
        self._turn()

    def _machine(self) -> lease.Candidate:
        self._candidacies += 1
        owner = f"{self._process.name}-{self._candidacies}"
        if self._alone:
            return Alone(owner, self.now())
        times = self._times
        return lease.Lease(owner, self.now(), ttl=times.ttl, renew=times.renew, margin=times.margin)

    def sure(self) -> bool:
        """Whether the process believes that it leads beyond doubt."""
        return self.lease.sure(self.now())

    def want_epoch(self, seen: int) -> None:
        """Somebody obeyed epoch ``seen``: ours must become higher."""
        self.lease.want_epoch(seen, self.now())
        self._arm()

    def superseded(self, epoch: int, name: str) -> bool:
        """A control plane says that it took the lease. Whether we lead nevertheless."""
        effects = self.lease.superseded(epoch, name, self.now())
        if effects:
            self._number += 1  # an answer that comes late is for nobody
            self._carry_out(effects)
        return self.lease.leading

    def release(self) -> None:
        """Look no more, and give up the lease, or what a claim under way may make of it."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        self.claimed_until = -inf
        if self.lease.may_hold:
            self.lease.leading = False
            self._store.ask(self._host, partial(self._store.release, self.lease.owner), lambda _: None)

    def _turn(self) -> None:
        self._alarm = None
        if not self._stopped:
            self._carry_out(self.lease.wake(self.now()))

    def _carry_out(self, effects: list[lease.Effect]) -> None:
        for effect in effects:
            match effect:
                case lease.Look():
                    self._ask(self._store.read)
                case lease.Claim():
                    self._ask(partial(self._store.claim, self.lease.owner, effect, self.lease.ttl, self._holder))
                case _:
                    self._told(effect)
        self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self.lease.next_wake is not None and not self._stopped:
            delay = max(TICK, (self.lease.next_wake - self.now()) / self.wall.clock.rate)
            self._alarm = self._process.later(delay, self._turn)

    def _ask(self, question: Question) -> None:
        self._number += 1
        number, asked, began = self._number, self.now(), self._process.world.now
        lasts = inf if self._alone else (self._times.ttl - self._times.margin) / self.wall.clock.rate

        carried_out: list[lease.Row] = []

        def carry_out() -> lease.Row | None:
            before, row = self._store.row, question()
            if row is not None and row is not before:
                carried_out.append(row)
            return row

        def answered(answer: lease.Row | str | None) -> None:
            if number != self._number or self._stopped:
                return
            self._number += 1
            if isinstance(answer, str):
                event: lease.Event = lease.Unanswered(answer)
            else:
                event = lease.Answered(asked, answer)
                if carried_out:
                    self.claimed_until = began + lasts
            self._carry_out(self.lease.handle(event, self.now()))

        self._process.later(TIMEOUT, answered, "the store did not answer in time")
        self._store.ask(self._host, carry_out, lambda answer: self._process.run(answered, answer))
