"""Who leads where there is no standby: whoever holds the lock, at once. Pure (HA-01).

The row is taken whatever it says, since the lock keeps everybody else out; its epoch goes
on. It is looked at again so that the lock is taken anew soon after its connection broke,
and so that we notice if another came in meanwhile. Nothing makes us doubt while the store
is away.
"""

from controlplane.leadership.lease import RENEW, Answered, Candidate, Claim, Effect, Look, taking


class Alone(Candidate):
    """The candidate without a standby."""

    def __init__(self, owner: str, now: float) -> None:
        super().__init__(owner, now, until=float("inf"), renew=RENEW)

    def _question(self) -> Look | Claim:
        return Claim(floor=max(self.epoch, self._wanted)) if self.leading and self._wanted else Look()

    def _answered(self, claim: Claim | None, event: Answered, now: float) -> list[Effect]:
        self.row = row = event.row
        ours = row is not None and row.owner == self.owner
        if self.leading and not ours:
            return self._lose("another control plane came in while the lock was lost", now)
        if row is not None and ours and claim is not None:
            return self._ours(row, now)
        if not self.leading:
            return self._ask(taking(row))
        self.next_wake = now if self._wanted else now + RENEW
        return []

    def _unanswered(self, claim: Claim | None) -> None:
        """Nobody else can take the row."""
