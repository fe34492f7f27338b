"""How many connections a listener has at once, and who goes when one more comes (AGT-03).

Whoever keeps us waiting goes before somebody is turned away. So a peer that opens
connections and says nothing, or little, takes the place of nobody but itself. Nor does one
that keeps us working, such as with long polls: no identity has more than it leaves free.
"""

from collections import Counter
from typing import Protocol


class Guest(Protocol):
    """A connection. ``reading``: we wait for what it sends. ``who``: whose certificate it
    showed; empty if none, and then it shares with nobody."""

    reading: bool
    who: str

    def leave(self) -> None:
        """End it: it is waited for no longer."""


class Places:
    """``most`` at once. Of those that we wait for, first the one goes that came first and has
    not had an answer yet; then the one whose last answer is the oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: dict[Guest, None] = {}
        self._served: dict[Guest, None] = {}
        self._each: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Connections that have a place."""
        return len(self._new) + len(self._served)

    def come(self, guest: Guest) -> bool:
        """Give a place; false if all are taken by such as we are working for. Who has as many
        as are free gets one of its own."""
        has = self._each[guest.who] if guest.who else 0
        crowded = has > 0 and has >= self._most - self.taken
        if crowded or self.taken >= self._most:
            waiting = (other for among in (self._new, self._served) for other in among if other.reading)
            longest = next((other for other in waiting if not crowded or other.who == guest.who), None)
            if longest is None:
                return False
            self.go(longest)
            longest.leave()
        self._new[guest] = None
        self._each[guest.who] += 1
        return True

    def served(self, guest: Guest) -> None:
        """It had an answer, and may ask again."""
        if guest in self._new or guest in self._served:
            self._new.pop(guest, None)
            self._served.pop(guest, None)
            self._served[guest] = None

    def go(self, guest: Guest) -> None:
        """Its place is free."""
        if guest not in self._new and guest not in self._served:
            return
        self._new.pop(guest, None)
        self._served.pop(guest, None)
        self._each[guest.who] -= 1
        if not self._each[guest.who]:
            del self._each[guest.who]
