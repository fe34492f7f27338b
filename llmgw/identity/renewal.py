"""When to ask for a new certificate (SEC-01). Pure; moments and lives in seconds.

Asked for between a half and three fifths of its life, spread over the fleet, a
certificate is new before a third of its life remains, even if the first tries fail.
"""

EARLIEST, LATEST = 0.5, 0.6
"""Shares of a life between which renewal is due."""

LATE = 2 / 3
"""Share of a life after which a person should look: less than a third remains."""

OVERDUE_SPREAD = 60.0
"""Longest until one that should be new already asks: a fleet that slept asks one by one."""

SHORTEST_RETRY, LONGEST_RETRY = 1.0, 3600.0


def due(issued_at: float, expires_at: float, now: float, draw: float) -> float:
    """The moment at which to ask. ``draw`` is a random number from 0 up to 1. Compute it
    once for a certificate: for one that is overdue it lies a little after ``now``."""
    life = max(0.0, expires_at - issued_at)
    moment = issued_at + life * (EARLIEST + (LATEST - EARLIEST) * draw)
    if moment > now:
        return moment
    return now + draw * min(OVERDUE_SPREAD, life / 20)


def late(issued_at: float, expires_at: float, now: float) -> bool:
    """Whether less than a third of the life remains, or none."""
    return now >= issued_at + max(0.0, expires_at - issued_at) * LATE


def retry(expires_at: float, now: float, draw: float) -> float:
    """The moment to ask again after an answer was refused or did not come: after a
    twentieth of what remains, so that there are many tries before the end. Past the end it
    goes on, for the clock may be wrong."""
    wait = min(LONGEST_RETRY, max(SHORTEST_RETRY, (expires_at - now) / 20))
    if expires_at <= now:
        wait = OVERDUE_SPREAD
    return now + wait * (0.5 + 0.5 * draw)
