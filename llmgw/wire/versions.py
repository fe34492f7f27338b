"""Protocol versions: what this build speaks and how two builds agree (DEP-03)."""

PROTOCOL = 1
"""Newest agent protocol this build speaks."""

OLDEST_PROTOCOL = 1
"""Oldest agent protocol this build still understands (the previous release's)."""

RECONNECT_LIMIT = 30.0
"""Seconds between two tries of an agent to reach a control plane, at most. Settling must
outlast it, so that a control plane does not place anew what an agent is about to report
(REC-24)."""

UPGRADE = "llmgw-agent/1"
"""Value of the HTTP ``Upgrade`` header that opens an agent session."""


def agree(oldest: int, newest: int) -> int | None:
    """Newest protocol both sides speak, or ``None`` when the ranges do not meet.

    ``oldest`` and ``newest`` are the peer's range, as its hello states it.
    """
    best = min(newest, PROTOCOL)
    return best if best >= max(oldest, OLDEST_PROTOCOL) else None
