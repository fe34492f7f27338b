"""What a failover came to (HA-01, HA-02)."""

from dataclasses import dataclass, field


@dataclass
class Takeover:
    """Seconds from the moment the leader was taken away until its successor answered people,
    every router process had its table, and every node was in session with it and it had settled."""

    people: float = 0.0
    routers: float = 0.0
    nodes: float = 0.0


@dataclass
class Outcome:
    """What a scenario came to. ``stale`` are commands that nodes took from a leader that had
    been replaced or was in doubt, but for what heals in place; ``disobeyed`` says where a node
    went back to an earlier leader; ``moved`` are engines that ended or began."""

    takeover: Takeover = field(default_factory=Takeover)
    streams: int = 0
    cut: list[str] = field(default_factory=list)
    answered: int = 0
    failed: list[tuple[float, str]] = field(default_factory=list)
    slowest: float = 0.0
    pause: float = 0.0
    stale: int = 0
    disobeyed: list[str] = field(default_factory=list)
    moved: set[int] = field(default_factory=set)

    def faults(self) -> list[str]:
        """All that must not be, in words."""
        found = [f"stream cut: {how}" for how in self.cut]
        found += [f"request failed after {at:.1f} s: {how}" for at, how in self.failed]
        found += [f"{self.stale} stale commands were taken"] if self.stale else []
        found += self.disobeyed
        return found + ([f"engines ended or began: {sorted(self.moved)}"] if self.moved else [])
