"""Which leader may be believed: one rule for agents and routers (AGT-04, HA-01). Pure.

Each leader of the control plane has an epoch, and each after it a higher one, given out by
the store. Whoever has followed one follows no lower one ever again, nor the same one of
another leader: two that claim one epoch have a store that was restored, or split.
"""


def objection(seen: int, seen_leader: str, epoch: int, leader: str) -> str:
    """Why ``leader`` with ``epoch`` must not be followed by who has seen ``seen`` of
    ``seen_leader``, in words; empty if it may. An empty leader is unknown."""
    if epoch < seen:
        return f"epoch {epoch} is older than {seen}, the highest seen here"
    if epoch == seen and leader and seen_leader and leader != seen_leader:
        return f"epoch {epoch} was seen here of another leader ({seen_leader[:64]}, not {leader[:64]})"
    return ""
