"""What the peers of a listener fill together, such as memory (RTR-13)."""

from collections import Counter


class Shares:
    """``most`` of something. No peer holds more of it than it leaves free, so that none can
    take it from all others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._each: Counter[str] = Counter()

    def take(self, who: str, amount: int) -> bool:
        """Add to what one holds; false, and nothing is added, if that were too much."""
        if amount > 0 and self._each[who] + amount > self._most - self._taken - amount:
            return False
        self.give(who, -amount)
        return True

    def give(self, who: str, amount: int) -> None:
        """Take some of it back."""
        self._taken -= amount
        self._each[who] -= amount
        if not self._each[who]:
            del self._each[who]
