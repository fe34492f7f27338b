"""Who led before us, and whether another bears our name: what a candidate sees of the row (HA-01)."""

from controlplane.leadership.lease import Holder, Row


class Predecessor:
    """Over all candidacies of ``ours``. ``namesake`` is another control plane that bore our name
    as it led when we last stood by."""

    def __init__(self, ours: Holder) -> None:
        self._ours = ours
        self._row: Row | None = None
        self._held: Row | None = None
        self.namesake: Holder | None = None

    def won(self, row: Row | None) -> None:
        """The row is ours now."""
        self._row = self._held = row

    def saw(self, row: Row | None) -> None:
        """While we do not lead, the row is this."""
        self._row = row
        if row is None or not row.owner:
            return
        known, self._held = self._held, row
        if row.holder.name != self._ours.name or row.holder == self._ours:
            self.namesake = None
        elif known is not None and known.owner == row.owner and known.renewals != row.renewals:
            # It is alive: not a term of our own that ended in a crash when we had other addresses.
            self.namesake = row.holder

    @property
    def holder(self) -> Holder | None:
        """Who had the lease last, maybe ourselves; ``None`` if nobody is known."""
        if self._row is None or self._held is None or self._row.epoch != self._held.epoch:
            return None
        return self._held.holder

    @property
    def words(self) -> str:
        """How the lease came to be to be had."""
        if self._row is None:
            return "nobody ever had the lease"
        holder = self.holder
        name = "another" if holder is None else "this one" if holder == self._ours else holder.name or "another"
        return f"{name} {'no longer renewed' if self._row.owner else 'let go of'} its lease"
