"""Who leads: a lease row in the store, as a pure machine (HA-01, HA-02).

The row holds the owner's random id, a count that rises with each change, and the epoch.
One statement takes and renews it (``store.port.Leadership.claim``): it succeeds for the
owner, for anybody while there is no row, and for a candidate who names the owner (nobody,
once it was released) and the count that it saw, if both are still so. A claim that the
database carries out late, long after whoever asked gave up, therefore takes nothing from
anybody else.

No clock but the monotonic ones of the two processes decides anything:

- the *holder* counts from the moment it asked: it acts until ``asked + ttl - margin``;
- a *candidate* counts from the moment it was answered: it asks for the row once owner and
  count have not changed for ``ttl``.

The renewal that a candidate sees was asked for before it was seen, so the holder's time is
over before the candidate's wait is, whatever the clocks of hosts and database show and
however they step; ``margin`` is for clocks that run at different rates. A candidate begins
to wait anew when the store did not answer, so that after an outage the holder, which asks
every second then, keeps the lead.

Only an answered claim makes a leader. A row that bears our id although no claim of ours
was answered is another's as far as we can tell, unless it is as new as the claim whose
answer we miss: then we renew it. And a store that has gone back in time (an older copy was
put in its place) may hide a holder that is still at work: even a free row is left alone
there for the length of a claim, and a holder that was in doubt begins anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

TTL = 30.0
"""Seconds that a claim lasts."""

RENEW = 5.0
"""Seconds between two renewals."""

MARGIN = 5.0
"""Seconds before the end of its claim at which a holder stops acting."""

LOOK = 1.0
"""Seconds between two looks of a candidate, and between two tries after a failure."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lease, for people and for those who ask the wrong one: its name and
    where it is to be reached, by listener (``agents``, ``routers``, ``admin``, ``join``)."""

    name: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """The lease as the store has it. ``owner`` is empty once it was released. ``renewed_at``
    is by the database's clock: for people, and to tell two renewals apart that got the same
    count because the store went back in time. It is compared with no other time."""

    owner: str
    renewals: int
    epoch: int
    ttl: float = TTL
    holder: Holder = Holder()
    renewed_at: float | None = None


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Answered:
    """The store answered what was asked for at ``asked``: the row as it is now, ``None`` if
    there is none."""

    asked: float
    row: Row | None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The store did not answer, or refused. Whether a claim was carried out is unknown."""

    why: str


Event = Answered | Unanswered

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Look:
    """Read the row."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Take or renew the lease by the one statement. ``owner``, ``renewals`` and
    ``renewed_at`` are those of the row that may be taken, of nobody or of another; a row of
    our own is renewed if its count is no less than ``renewals``. The epoch becomes more than
    ``floor`` and than it was when the lease changes hands, and at least ``floor`` when it is
    renewed."""

    owner: str = ""
    renewals: int = -1
    floor: int = 0
    renewed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Won:
    """We lead, with this epoch, until ``until`` (monotonic) unless it is extended."""

    epoch: int
    until: float


@dataclass(frozen=True, slots=True)
class Extended:
    """We lead until ``until``; ``epoch`` is ours, and higher than before if one was wanted."""

    epoch: int
    until: float


@dataclass(frozen=True, slots=True)
class Lost:
    """We lead no more: let everything go (HA-02)."""

    why: str


Effect = Look | Claim | Won | Extended | Lost


class Lease:
    """One candidate's part. ``owner`` must be drawn at random for each. At most one
    question to the store is open at a time: the driver answers each ``Look`` and ``Claim``
    with one event. ``row`` is what the store said last.

    After ``Lost`` the machine is a candidate again.
    """

    def __init__(
        self, owner: str, now: float, *, ttl: float = TTL, renew: float = RENEW, margin: float = MARGIN
    ) -> None:
        if not 0 < renew < ttl - margin:
            raise ValueError("a lease must be renewed before its margin")
        self.owner = owner
        self.ttl = ttl
        self._renew = renew
        self._margin = margin
        self.row: Row | None = None
        self.leading = False
        self.epoch = 0
        self.until = now
        self.failing = ""
        self.next_wake: float | None = now
        self._since: float | None = None
        self._wanted = 0
        self._asking = False
        self._claim: Claim | None = None
        self._missing: int | None = None  # the count that a claim without an answer made, if it was carried out
        self._newest: Row | None = None
        self._free_at = now  # from when a row that is nobody's may be taken at once

    def sure(self, now: float) -> bool:
        """Whether we lead beyond doubt: everything may be done."""
        return self.leading and now < self.until

    def want_epoch(self, above: int, now: float) -> None:
        """Raise our epoch above ``above`` with the next renewal, which is due now."""
        if self.leading and above >= max(self.epoch, self._wanted):
            self._wanted = above + 1
            if not self._asking:
                self.next_wake = now

    def wake(self, now: float) -> list[Effect]:
        """Ask what is due."""
        if self._asking or self.next_wake is None or now < self.next_wake:
            return []
        if self.leading:
            return self._ask(self._renewal())
        self._asking = True
        self.next_wake = None
        return [Look()]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in what the store said, or that it did not."""
        self._asking = False
        claim, self._claim = self._claim, None
        if isinstance(event, Unanswered):
            self.failing = event.why
            self._since = None
            self.next_wake = now + LOOK
            if claim is not None and not self.leading and self._missing is None:
                self._missing = claim.renewals + 1
            return []
        self.failing = ""
        before, self.row = self.row, event.row
        self._notice_older(event.row, now)
        if claim is not None and event.row is not None and event.row.owner == self.owner:
            if event.row.renewals > claim.renewals:
                return self._ours(event.row, event.asked, now)
            if self.leading and now < self.until:
                return self._ask(self._renewal())  # the store went back in time; nobody had it since
            if self.leading:
                return self._lose("the store went back in time while it was in doubt that we lead", now)
        if self.leading:
            other = event.row.holder.name or event.row.owner if event.row and event.row.owner else "nobody"
            return self._lose(f"the lease is {other}'s", now)
        return self._candidate(before, event.row, now)

    def _ours(self, row: Row, asked: float, now: float) -> list[Effect]:
        self.until = asked + self.ttl - self._margin
        self.epoch = row.epoch
        if row.epoch >= self._wanted:
            self._wanted = 0
        self.next_wake = now if self._wanted else asked + self._renew
        if self.leading:
            return [Extended(self.epoch, self.until)]
        self.leading = True
        self._since = self._missing = None
        return [Won(self.epoch, self.until)]

    def _renewal(self) -> Claim:
        """Of a row that is no older than what we know: in an older copy we may be the owner of
        what another took since."""
        known = -1 if self.row is None else self.row.renewals
        return Claim(self.owner, known, max(self.epoch, self._wanted))

    def _lose(self, why: str, now: float) -> list[Effect]:
        self.leading = False
        self._since = None
        self.next_wake = now + LOOK
        return [Lost(why)]

    def _notice_older(self, row: Row | None, now: float) -> None:
        newest, self._newest = self._newest, row
        if newest is not None and (row is None or row.renewals < newest.renewals or row.epoch < newest.epoch):
            self._since = self._missing = None
            self._free_at = now + max(self.ttl, newest.ttl)

    def _candidate(self, before: Row | None, row: Row | None, now: float) -> list[Effect]:
        if row is None or not row.owner:
            self._since = None
            if now >= self._free_at:
                return self._take(row)
            self.next_wake = min(now + LOOK, self._free_at)
            return []
        if row.owner == self.owner and self._missing is not None and row.renewals >= self._missing:
            return self._take(row)  # our claim was carried out, and nobody has taken it from us
        same = before is not None and _mark(before) == _mark(row)
        if self._since is None or not same:
            self._since = now
        wait = max(self.ttl, row.ttl)
        if now - self._since >= wait:
            return self._take(row)
        self.next_wake = min(now + LOOK, self._since + wait)
        return []

    def _take(self, row: Row | None) -> list[Effect]:
        self._since = None
        return self._ask(taking(row))

    def _ask(self, claim: Claim) -> list[Effect]:
        self._asking = True
        self._claim = claim
        self.next_wake = None
        return [claim]


def taking(row: Row | None) -> Claim:
    """The claim that takes this row from whoever has it, if it is still so."""
    return Claim() if row is None else Claim(row.owner, row.renewals, renewed_at=row.renewed_at)


def _mark(row: Row) -> tuple[str, int, float | None]:
    """What differs from one renewal to the next."""
    return row.owner, row.renewals, row.renewed_at
