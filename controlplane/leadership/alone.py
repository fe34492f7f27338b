"""Who leads where there is no standby: whoever holds the lock, at once. Pure (HA-01).

The row is taken whatever it says, since the lock keeps everybody else out; its epoch goes
on. It is looked at again so that the lock is taken anew soon after its connection broke,
and so that we notice if another came in meanwhile. Nothing makes us doubt while the store
is away.
"""

from controlplane.leadership.lease import (
    LOOK,
    RENEW,
    Claim,
    Effect,
    Event,
    Extended,
    Look,
    Lost,
    Row,
    Unanswered,
    Won,
    taking,
)


class Alone:
    """The part of ``lease.Lease`` for a control plane without a standby."""

    ttl = 0.0

    def __init__(self, owner: str, now: float) -> None:
        self.owner = owner
        self.row: Row | None = None
        self.leading = False
        self.epoch = 0
        self.until = float("inf")
        self.failing = ""
        self.next_wake: float | None = now
        self._wanted = 0
        self._asking = False
        self._claim: Claim | None = None

    def want_epoch(self, above: int, now: float) -> None:
        """Raise our epoch above ``above``, now."""
        if self.leading and above >= max(self.epoch, self._wanted):
            self._wanted = above + 1
            if not self._asking:
                self.next_wake = now

    def wake(self, now: float) -> list[Effect]:
        """Ask what is due."""
        if self._asking or self.next_wake is None or now < self.next_wake:
            return []
        if self.leading and self._wanted:
            return self._ask(Claim(floor=max(self.epoch, self._wanted)))
        return self._ask(Look())

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in what the store said, or that it did not."""
        self._asking = False
        claim, self._claim = self._claim, None
        if isinstance(event, Unanswered):
            self.failing = event.why
            self.next_wake = now + LOOK
            return []
        self.failing = ""
        self.row = event.row
        ours = event.row is not None and event.row.owner == self.owner
        if self.leading and not ours:
            self.leading = False
            return [Lost("another control plane came in while the lock was lost")]
        if event.row is not None and ours and claim is not None:
            return self._ours(event.row, now)
        if not self.leading:
            return self._ask(taking(event.row))
        self.next_wake = now if self._wanted else now + RENEW
        return []

    def _ours(self, row: Row, now: float) -> list[Effect]:
        self.epoch = row.epoch
        if row.epoch >= self._wanted:
            self._wanted = 0
        self.next_wake = now + RENEW
        if self.leading:
            return [Extended(self.epoch, self.until)]
        self.leading = True
        return [Won(self.epoch, self.until)]

    def _ask(self, question: Look | Claim) -> list[Effect]:
        self._asking = True
        self._claim = question if isinstance(question, Claim) else None
        self.next_wake = None
        return [question]
