"""Whom this node obeys (AGT-04, HA-01): see ``llmgw.wire.epochs``. Pure.

It obeys only once the epoch is on disk: it must not be forgotten in a crash.
"""

from llmgw.wire import epochs


class Allegiance:
    """The highest epoch seen, and whose it is (empty = unknown)."""

    def __init__(self, epoch: int = 0, leader: str = "") -> None:
        self.epoch = epoch
        self.leader = leader
        self._kept = (epoch, leader)

    def objection(self, epoch: int, leader: str) -> str:
        """Why a leader must not be obeyed, in words; empty if it may."""
        return epochs.objection(self.epoch, self.leader, epoch, leader)

    def see(self, epoch: int, leader: str) -> bool:
        """A leader that may be obeyed welcomed us with its epoch. Whether that is news."""
        before = (self.epoch, self.leader)
        if epoch > self.epoch:
            self.epoch, self.leader = epoch, leader
        elif epoch == self.epoch and leader and not self.leader:
            self.leader = leader
        return (self.epoch, self.leader) != before

    def raised(self, epoch: int) -> bool:
        """A command of the leader that we obey has this epoch: whether that is higher than
        at the welcome."""
        return self.see(epoch, self.leader)

    def kept(self, epoch: int, leader: str) -> None:
        """This is on disk."""
        self._kept = (epoch, leader)

    @property
    def durable(self) -> bool:
        """Whether what was seen is on disk: only then may a command have consequences."""
        return (self.epoch, self.leader) == self._kept
