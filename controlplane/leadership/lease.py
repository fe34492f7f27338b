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

A holder that alone cannot reach the store would not hear that another leads. So whoever took
the row from it says so (``superseded``), and one in doubt believes that: to let go is safe
whoever says it. One beyond doubt does not: no other can have the lease before it is in doubt.
"""

from abc import ABC, abstractmethod
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

LATE = 3.0
"""Seconds that a renewal may take to be seen, beside those between two, before it is overdue."""


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


class Candidate(ABC):
    """One process's part in who leads, for one candidacy: ``owner`` must be drawn at random for
    each. At most one question to the store is open at a time: the driver answers each ``Look``
    and ``Claim`` with one event.

    ``row`` is what the store said last, ``failing`` why it said nothing, if it did not. While it
    leads it does so with ``epoch``, beyond doubt until ``until``; ``replaced`` is whom it took
    the lease from, if that one did not release it. ``unrenewed_since`` is since when another's
    row was seen as it is (monotonic), ``None`` if that cannot be told; it should change every
    ``renew`` seconds. ``wake`` is due at ``next_wake``; ``None``: not before an answer.
    """

    ttl = 0.0
    """Seconds that a claim lasts; 0 without a standby."""

    def __init__(self, owner: str, now: float, *, until: float, renew: float) -> None:
        self.owner = owner
        self.row: Row | None = None
        self.replaced: Holder | None = None
        self.leading = False
        self.epoch = 0
        self.until = until
        self.failing = ""
        self.next_wake: float | None = now
        self.renew = renew
        self.unrenewed_since: float | None = None
        self._wanted = 0
        self._asking = False
        self._claim: Claim | None = None

    def sure(self, now: float) -> bool:
        """Whether we lead beyond doubt: everything may be done."""
        return self.leading and now < self.until

    @property
    def takes_at(self) -> float | None:
        """When we ask for the row at the earliest if nobody renews it (monotonic); ``None`` if
        that cannot be told, or if we lead."""
        return None

    def overdue(self, now: float) -> bool:
        """Whether another has the row and did not renew it when it should have."""
        return self.unrenewed_since is not None and now - self.unrenewed_since > self.renew + LATE

    @property
    def may_hold(self) -> bool:
        """Whether the row may bear our id: we lead, or a claim got no answer yet."""
        return self.leading or self._claim is not None

    def want_epoch(self, above: int, now: float) -> None:
        """Raise our epoch above ``above`` with the next renewal, which is due now."""
        if self.leading and above >= max(self.epoch, self._wanted):
            self._wanted = above + 1
            if not self._asking:
                self.next_wake = now

    def superseded(self, epoch: int, name: str, now: float) -> list[Effect]:
        """The control plane of that name says that it took the lease, with this epoch. Believed
        in doubt alone; an earlier leader, such as one that woke up, is none of ours to follow."""
        if not self.leading or self.sure(now) or epoch <= self.epoch:
            return []
        self._claim = None  # what becomes of it is no more than what a look would find
        return self._lose(f"{name or 'another'} says that it took the lease, with epoch {epoch}", now)

    def wake(self, now: float) -> list[Effect]:
        """Ask what is due."""
        if self._asking or self.next_wake is None or now < self.next_wake:
            return []
        return self._ask(self._question())

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in what the store said, or that it did not."""
        self._asking = False
        claim, self._claim = self._claim, None
        if isinstance(event, Unanswered):
            self.failing = event.why
            self.next_wake = now + LOOK
            self._unanswered(claim)
            return []
        self.failing = ""
        return self._answered(claim, event, now)

    @abstractmethod
    def _question(self) -> Look | Claim:
        """What is to be asked when nothing else is under way."""

    @abstractmethod
    def _answered(self, claim: Claim | None, event: Answered, now: float) -> list[Effect]:
        """Take in an answer, to ``claim`` or to a look."""

    @abstractmethod
    def _unanswered(self, claim: Claim | None) -> None:
        """There was no answer."""

    def _ask(self, question: Look | Claim) -> list[Effect]:
        self._asking = True
        self._claim = question if isinstance(question, Claim) else None
        self.next_wake = None
        return [question]

    def _lose(self, why: str, now: float) -> list[Effect]:
        self.leading = False
        if not self._asking:
            self.next_wake = now + LOOK
        return [Lost(why)]

    def _notice_renewal(self, before: Row | None, row: Row, now: float) -> float:
        """Since when another's row is as it is."""
        same = before is not None and _mark(before) == _mark(row)
        if self.unrenewed_since is None or not same:
            self.unrenewed_since = now
        return self.unrenewed_since

    def _ours(self, row: Row, since: float) -> list[Effect]:
        """A claim of ours was answered with our row, which is renewed some time after ``since``."""
        self.epoch = row.epoch
        if row.epoch >= self._wanted:
            self._wanted = 0
        self.next_wake = since if self._wanted else since + self.renew
        if self.leading:
            return [Extended(self.epoch, self.until)]
        self.leading = True
        return [Won(self.epoch, self.until)]


class Lease(Candidate):
    """One of several. After ``Lost`` the machine is a candidate again."""

    def __init__(
        self, owner: str, now: float, *, ttl: float = TTL, renew: float = RENEW, margin: float = MARGIN
    ) -> None:
        if not 0 < renew < ttl - margin:
            raise ValueError("a lease must be renewed before its margin")
        super().__init__(owner, now, until=now, renew=renew)
        self.ttl = ttl
        self._margin = margin
        self._missing: int | None = None  # the count that a claim without an answer made, if it was carried out
        self._newest: Row | None = None
        self._free_at = now  # from when a row that is nobody's may be taken at once

    @property
    def takes_at(self) -> float | None:
        """See ``Candidate``."""
        if self.leading or self.failing or self.row is None:
            return None
        if not self.row.owner:
            return self._free_at
        return None if self.unrenewed_since is None else self.unrenewed_since + max(self.ttl, self.row.ttl)

    @property
    def may_hold(self) -> bool:
        """See ``Candidate``."""
        return super().may_hold or self._missing is not None

    def _question(self) -> Look | Claim:
        return self._renewal() if self.leading else Look()

    def _unanswered(self, claim: Claim | None) -> None:
        self.unrenewed_since = None
        if claim is not None and not self.leading and self._missing is None:
            self._missing = claim.renewals + 1

    def _answered(self, claim: Claim | None, event: Answered, now: float) -> list[Effect]:
        before, self.row = self.row, event.row
        self._notice_older(event.row, now)
        if claim is not None and event.row is not None and event.row.owner == self.owner:
            if event.row.renewals > claim.renewals:
                self.until = event.asked + self.ttl - self._margin
                self.unrenewed_since = self._missing = None
                return self._ours(event.row, event.asked)
            if self.leading and now < self.until:
                return self._ask(self._renewal())  # the store went back in time; nobody had it since
            if self.leading:
                return self._lose("the store went back in time while it was in doubt that we lead", now)
        if self.leading:
            other = event.row.holder.name or event.row.owner if event.row and event.row.owner else "nobody"
            return self._lose(f"the lease is {other}'s", now)
        return self._candidate(before, event.row, now)

    def _renewal(self) -> Claim:
        """Of a row that is no older than what we know: in an older copy we may be the owner of
        what another took since."""
        known = -1 if self.row is None else self.row.renewals
        return Claim(self.owner, known, max(self.epoch, self._wanted))

    def _notice_older(self, row: Row | None, now: float) -> None:
        newest, self._newest = self._newest, row
        if newest is not None and (row is None or row.renewals < newest.renewals or row.epoch < newest.epoch):
            self.unrenewed_since = self._missing = None
            self._free_at = now + max(self.ttl, newest.ttl)

    def _candidate(self, before: Row | None, row: Row | None, now: float) -> list[Effect]:
        if row is None or not row.owner:
            self.unrenewed_since = None
            if now >= self._free_at:
                return self._take(row)
            self.next_wake = min(now + LOOK, self._free_at)
            return []
        if row.owner == self.owner and self._missing is not None and row.renewals >= self._missing:
            return self._take(row)  # our claim was carried out, and nobody has taken it from us
        since = self._notice_renewal(before, row, now)
        wait = max(self.ttl, row.ttl)
        if now - since >= wait:
            return self._take(row)
        self.next_wake = min(now + LOOK, since + wait)
        return []

    def _take(self, row: Row | None) -> list[Effect]:
        self.unrenewed_since = None
        if row is None or row.owner != self.owner:
            self.replaced = row.holder if row is not None and row.owner else None
        return self._ask(taking(row))


def taking(row: Row | None) -> Claim:
    """The claim that takes this row from whoever has it, if it is still so."""
    return Claim() if row is None else Claim(row.owner, row.renewals, renewed_at=row.renewed_at)


def _mark(row: Row) -> tuple[str, int, float | None]:
    """What differs from one renewal to the next."""
    return row.owner, row.renewals, row.renewed_at
