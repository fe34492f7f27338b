"""A lease row in memory, and machines that ask for it over a line that a test has in its hands."""

from dataclasses import dataclass, replace

from controlplane.leadership.lease import (
    Answered,
    Claim,
    Effect,
    Extended,
    Holder,
    Lease,
    Look,
    Lost,
    Row,
    Unanswered,
    Won,
)

TICK = 0.1
TAKEOVER = 4.0
"""Seconds beyond the lease's end that a takeover may take (HA-02)."""


class Store:
    """The row, with what the one statement does to it. ``copies`` are all rows there ever were."""

    def __init__(self, row: Row | None = None) -> None:
        self.row = row
        self.copies: list[Row | None] = [row]

    def execute(self, owner: str, question: Look | Claim, ttl: float) -> Row | None:
        if isinstance(question, Claim):
            self.claim(owner, question, ttl)
        return self.row

    def claim(self, owner: str, claim: Claim, ttl: float) -> None:
        row = self.row
        if row is None:
            self.put(Row(owner, 1, claim.floor + 1, ttl, Holder(owner)))
        elif row.owner == owner and row.renewals >= claim.renewals:
            self.put(replace(row, renewals=row.renewals + 1, epoch=max(row.epoch, claim.floor), ttl=ttl))
        elif (row.owner, row.renewals, row.renewed_at) == (claim.owner, claim.renewals, claim.renewed_at):
            epoch = max(row.epoch, claim.floor) + 1
            self.put(Row(owner, row.renewals + 1, epoch, ttl, Holder(owner)))

    def release(self, owner: str) -> None:
        if self.row is not None and self.row.owner == owner:
            self.put(replace(self.row, owner="", renewals=self.row.renewals + 1, holder=Holder()))

    def put(self, row: Row | None) -> None:
        """A new row, stamped by the clock of the database."""
        self.row = None if row is None else replace(row, renewed_at=float(len(self.copies)))
        self.copies.append(self.row)

    def restore(self, copy: Row | None) -> None:
        """An older copy, as it was."""
        self.row = copy
        self.copies.append(copy)


@dataclass
class Asked:
    """A question on its way: carried out or not yet."""

    question: Look | Claim
    at: float
    done: bool = False
    row: Row | None = None


class Process:
    """A machine with a clock of its own. ``rate`` is how fast it runs."""

    def __init__(self, name: str, store: Store, now: float = 0.0, rate: float = 1.0, **options: float) -> None:
        self.name = name
        self.store = store
        self.rate = rate
        self.offset = 1000.0 * len(name)
        self.lease = Lease(name, self.clock(now), **options)
        self.open: Asked | None = None
        self.effects: list[Effect] = []

    def clock(self, now: float) -> float:
        return now * self.rate + self.offset

    def sure(self, now: float) -> bool:
        return self.lease.sure(self.clock(now))

    def wake(self, now: float) -> None:
        self._take(self.lease.wake(self.clock(now)), now)

    def execute(self) -> None:
        """The store does what was asked."""
        if self.open is not None and not self.open.done:
            self.open.done = True
            self.open.row = self.store.execute(self.name, self.open.question, self.lease.ttl)

    def answer(self, now: float) -> None:
        """The answer arrives."""
        asked, self.open = self.open, None
        if asked is None or not asked.done:
            self.open = asked
            return
        self._take(self.lease.handle(Answered(self.clock(asked.at), asked.row), self.clock(now)), now)

    def lose(self, now: float) -> Asked | None:
        """No answer arrives in time; what is left may be carried out later."""
        asked, self.open = self.open, None
        if asked is not None:
            self._take(self.lease.handle(Unanswered("away"), self.clock(now)), now)
        return asked

    def superseded(self, epoch: int, name: str, now: float) -> None:
        """Another says that it leads."""
        self._take(self.lease.superseded(epoch, name, self.clock(now)), now)

    def _take(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Look | Claim):
                assert self.open is None, "one question at a time"
                self.open = Asked(effect, now)
            else:
                assert isinstance(effect, Won | Extended | Lost)
                self.effects.append(effect)

    def step(self, now: float, *, reachable: bool = True) -> None:
        """Wake, and have everything that is asked answered at once, or not at all."""
        self.wake(now)
        while self.open is not None:
            if not reachable:
                self.lose(now)
                return
            self.execute()
            self.answer(now)


def run(processes: list[Process], begin: float, end: float, away: tuple[str, ...] = ()) -> float:
    """Let time pass in small steps; ``away`` do not reach the store. The moment after."""
    now = begin
    while now < end:
        for process in processes:
            process.step(now, reachable=process.name not in away)
        assert sum(process.sure(now) for process in processes) <= 1
        now += TICK
    return now


def led(store: Store, now: float = 0.0) -> Process:
    """A process that leads."""
    process = Process("holder", store, now)
    process.step(now)
    assert process.sure(now)
    return process
