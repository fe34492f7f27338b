"""Which control plane to dial, and when. Pure (AGT-03, REC-24).

A round tries every address once; rounds are spaced by exponential backoff with jitter,
counted from the start of the round, so that an agent never stays away for much longer
than ``RECONNECT_LIMIT`` (the control plane's settling outlasts it).

Who stands by may say when it can lead at the earliest. Then the agent comes back soon after
that moment, however long the backoff has grown by then, and asks seldom before: of a leader
that crashed the whole fleet asks at the same time. Unless the leader said goodbye: then the
next one leads within seconds.
"""

import random

from llmgw.runtime.kinds import Address
from llmgw.wire.versions import RECONNECT_LIMIT

BACKOFF_FIRST = 0.5
"""Seconds: upper end of the first wait."""

PATIENCE = 4
"""Failed rounds that count before the first wait of who waits for a takeover: 4 to 8 s."""

ARRIVAL = 5.0
"""Seconds over which agents come back from the moment that a standby can lead."""

LONGEST_WAIT = 300.0
"""Seconds: the most that a control plane can ask us to stay away."""

MAX_FOUND = 16
"""Addresses that are taken from one search."""


class Rounds:
    """See the module. ``searches`` says that addresses are looked for in the network: before
    the first round, and after each that failed as a whole."""

    def __init__(self, addresses: tuple[Address, ...], rng: random.Random, searches: bool = False) -> None:
        if not addresses and not searches:
            raise ValueError("a session needs at least one address")
        self.addresses = addresses
        self._rng = rng
        self._searches = searches
        self._stale = searches
        self._first = 0
        self._tried = 0
        self._failures = 0
        self._redirect: Address | None = None
        self._redirected = False
        self._started: float | None = None
        self._least_wait = 0.0
        self._spread: float | None = None
        self._parted = False
        self._takeover: float | None = None
        self._standby: Address | None = None

    @property
    def must_search(self) -> bool:
        """Whether to look for addresses before the next one is dialled."""
        return self._stale and self._tried == 0 and self._redirect is None

    def found(self, addresses: tuple[Address, ...]) -> None:
        """Take what a search found. Nothing found: those known before are tried again."""
        self._stale = False
        if addresses:
            self.addresses = tuple(dict.fromkeys(addresses))[:MAX_FOUND]
            self._first = 0

    def next(self, now: float) -> Address | None:
        """The address to dial now; ``None`` if none is known."""
        if self._redirect is not None:
            address, self._redirect = self._redirect, None
            return address
        if self._tried == 0:
            self._started = now
        if not self.addresses:
            return None
        address = self.addresses[(self._first + self._tried) % len(self.addresses)]
        self._tried += 1
        return address

    def redirect(self, leader: Address) -> None:
        """Go there next. Once per round: two standbys that name each other must not make a
        tight loop."""
        if not self._redirected:
            self._redirected = True
            self._redirect = leader

    def wait_at_least(self, seconds: float) -> None:
        """Stay away for that long, whatever comes next."""
        self._least_wait = max(self._least_wait, seconds)

    def spread(self, seconds: float) -> None:
        """Whoever led says goodbye: come back at a moment drawn from that many seconds."""
        self._spread = seconds
        self._parted = True

    def expect(self, standby: Address | None, takeover: float) -> None:
        """``standby`` does not lead, but can from ``takeover`` on: begin the next round there."""
        self._standby = standby
        self._takeover = takeover

    def welcomed(self) -> None:
        """The address dialled last took us."""
        self._parted = False
        self._end()

    def proven(self) -> None:
        """The session stands. Not at the welcome: a peer that fails right after each must
        not be hammered."""
        self._failures = 0

    def lost(self, address: Address | None, was_live: bool, now: float) -> float:
        """The connection is gone, or could not be made; when to go on."""
        if was_live and address in self.addresses:
            # Begin the next round where it last worked.
            self._first = self.addresses.index(address)
        if self._redirect is not None:
            wake = now
        elif self._spread is not None:
            wake = now + self._rng.uniform(0.0, self._spread)
            self._end()
        elif 0 < self._tried < len(self.addresses) and not was_live:
            wake = now + max(self._least_wait, self._rng.uniform(0.0, 0.1))
        else:
            wake = self._next_round(now, was_live)
        self._spread = None
        self._least_wait = 0.0
        return wake

    def _next_round(self, now: float, was_live: bool) -> float:
        """Full backoff, counted from the start of the round that failed."""
        if self._takeover is not None and not self._parted:
            self._failures = max(self._failures, PATIENCE)
        limit = min(RECONNECT_LIMIT, BACKOFF_FIRST * 2.0 ** min(self._failures, 16))
        self._failures += 1
        started = now if was_live or self._started is None else self._started
        wake = started + self._rng.uniform(limit / 2, limit)
        if self._takeover is not None:
            wake = min(wake, self._takeover + self._rng.uniform(0.0, ARRIVAL))
        if self._standby in self.addresses:
            self._first = self.addresses.index(self._standby)
        self._stale = self._searches and not was_live
        self._end()
        return max(wake, now + self._rng.uniform(0.0, 0.5), now + self._least_wait)

    def _end(self) -> None:
        self._tried = 0
        self._redirected = False
        self._started = None
        self._takeover = None
        self._standby = None
