"""Who only wants to know who leads, since it could not lead itself. Pure (HA-01)."""

from controlplane.leadership.lease import LOOK, Answered, Candidate, Claim, Effect, Look


class Onlooker(Candidate):
    """It looks at the row and never asks for it."""

    def __init__(self, owner: str, now: float, *, renew: float) -> None:
        super().__init__(owner, now, until=now, renew=renew)

    def _question(self) -> Look:
        return Look()

    def _answered(self, _claim: Claim | None, event: Answered, now: float) -> list[Effect]:
        before, self.row = self.row, event.row
        if event.row is None or not event.row.owner:
            self.unrenewed_since = None
        else:
            self._notice_renewal(before, event.row, now)
        self.next_wake = now + LOOK
        return []

    def _unanswered(self, _claim: Claim | None) -> None:
        """It looks again, and knows of no renewal that it missed."""
        self.unrenewed_since = None
