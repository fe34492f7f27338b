"""What happened to a simulated fleet over time, as figures and as a picture. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_REASONS = 50
"""Different words that are told apart; what comes beyond is counted together."""

MAX_HANDSHAKES = 100_000

ROWS = 24
"""Lines of the picture at most."""

OTHER = "other reasons"


@dataclass(frozen=True, slots=True)
class Second:
    """One look at the fleet. ``at`` is seconds since the start; the counts are of the time
    since the look before."""

    at: float
    in_session: int
    heartbeats: int
    entered: int
    turned_away: int
    left: int


@dataclass(slots=True)
class Outage:
    """A time in which not every node was in session: from ``since`` to ``until`` (``None``:
    it goes on), with ``least`` nodes left at the worst. The first begins with the start."""

    since: float
    least: int
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took of this machine: seconds of processor since the start, resident bytes of
    the process, and how many of them since before the nodes were made."""

    cpu: float
    memory: int
    grown: int


@dataclass
class Figures:
    """Counts what ``fleet_agent.Told`` is told. ``nodes`` is how many there are."""

    nodes: int
    in_session: int = 0
    heartbeats: int = 0
    sessions: int = 0
    away: Counter[str] = field(default_factory=Counter)
    """Tries that came to nothing, by why."""
    ended: Counter[str] = field(default_factory=Counter)
    """Sessions that ended, by why."""
    handshakes: list[float] = field(default_factory=list)
    seconds: list[Second] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    _counted: tuple[int, int, int, int] = (0, 0, 0, 0)

    def entered(self) -> None:
        """See ``Told``."""
        self.in_session += 1
        self.sessions += 1

    def left(self, why: str) -> None:
        """See ``Told``."""
        self.in_session -= 1
        _count(self.ended, why)

    def turned_away(self, why: str) -> None:
        """See ``Told``."""
        _count(self.away, why)

    def shook_hands(self, seconds: float) -> None:
        """See ``Told``."""
        if len(self.handshakes) < MAX_HANDSHAKES:
            self.handshakes.append(seconds)

    def beat(self) -> None:
        """See ``Told``."""
        self.heartbeats += 1

    def look(self, at: float) -> Second:
        """Note how it is ``at`` seconds after the start."""
        now = (self.heartbeats, self.sessions, self.away.total(), self.ended.total())
        second = Second(at, self.in_session, *(new - old for new, old in zip(now, self._counted, strict=True)))
        self._counted = now
        self.seconds.append(second)
        current = self.outages[-1] if self.outages and self.outages[-1].until is None else None
        if not self.outages:
            current = Outage(0.0, self.in_session)
            self.outages.append(current)
        if current is not None:
            current.least = min(current.least, self.in_session)
            if self.in_session == self.nodes:
                current.until = at
        elif self.in_session < self.nodes:
            self.outages.append(Outage(at, self.in_session))
        return second

    @property
    def complete(self) -> bool:
        """Whether every node is in session."""
        return self.in_session == self.nodes

    def plain(self, cost: Cost) -> dict[str, Any]:
        """Everything as plain values."""
        quick = sorted(self.handshakes)
        last = self.seconds[-1].at if self.seconds else 0.0
        return {
            "nodes": self.nodes,
            "in_session": self.in_session,
            "seconds": round(last, 1),
            "sessions": self.sessions,
            "heartbeats": self.heartbeats,
            "heartbeats_per_second": round(self.heartbeats / last, 1) if last else None,
            "turned_away": dict(self.away.most_common()),
            "ended": dict(self.ended.most_common()),
            "connect_seconds": {"median": _quantile(quick, 0.5), "p99": _quantile(quick, 0.99)},
            "outages": [
                {
                    "since": round(outage.since, 1),
                    "least_in_session": outage.least,
                    "seconds": None if outage.until is None else round(outage.until - outage.since, 1),
                }
                for outage in self.outages
            ],
            "cpu_seconds": round(cost.cpu, 2),
            "memory_bytes": cost.memory,
            "memory_bytes_per_node": cost.grown // self.nodes,
            "timeline": [
                {
                    "at": round(second.at, 1),
                    "in_session": second.in_session,
                    "heartbeats": second.heartbeats,
                    "entered": second.entered,
                    "turned_away": second.turned_away,
                    "ended": second.left,
                }
                for second in self.seconds
            ],
        }


def _count(counter: Counter[str], why: str) -> None:
    counter[why if why in counter or len(counter) < MAX_REASONS else OTHER] += 1


def _quantile(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 4) if ordered else None


# ---------------------------------------------------------------- the picture


def picture(figures: Figures, cost: Cost, *, width: int = 80, blocks: str = "█░") -> Iterator[str]:
    """The fleet over time, a line for each stretch of it, and what it comes to."""
    bar = max(10, min(40, width - 46))
    yield f"{'second':>8}  {'in session':<{bar + 8}}{'beats/s':>8}{'away':>8}{'ended':>8}"
    for begin, stretch in _stretches(figures.seconds):
        last, took = stretch[-1], max(0.001, stretch[-1].at - begin)
        filled = _filled(last.in_session, figures.nodes, bar)
        drawn = blocks[0] * filled + blocks[1] * (bar - filled)
        beats = sum(second.heartbeats for second in stretch) / took
        away, ended = sum(second.turned_away for second in stretch), sum(second.left for second in stretch)
        yield f"{last.at:8.0f}  {drawn} {last.in_session:<7}{beats:8.0f}{away or '':>8}{ended or '':>8}"
    yield ""
    for number, outage in enumerate(figures.outages):
        what = "start" if number == 0 else f"second {outage.since:.0f} ({outage.least} left)"
        took_words = f"after {outage.until - outage.since:.1f} s" if outage.until is not None else "not until the end"
        yield f"All {figures.nodes} in session since the {what}: {took_words}"
    if figures.handshakes:
        quick = sorted(figures.handshakes)
        yield (
            f"Connections: {len(figures.handshakes)}, to stand: {_quantile(quick, 0.5):.3f} s (median), "
            f"{_quantile(quick, 0.99):.3f} s (99 of 100)"
        )
    yield (
        f"This process: {cost.memory / 2**20:.0f} MiB, {cost.grown / figures.nodes / 1024:.0f} KiB a node; "
        f"{cost.cpu:.1f} s of processor"
    )
    for name, counter in (("turned away", figures.away), ("sessions ended", figures.ended)):
        for why, count in counter.most_common():
            yield f"{count:8}  {name}: {why}"


def _stretches(seconds: list[Second]) -> Iterator[tuple[float, list[Second]]]:
    """At most ``ROWS`` stretches, each with when it began."""
    size = max(1, -(-len(seconds) // ROWS))
    for first in range(0, len(seconds), size):
        yield (seconds[first - 1].at if first else 0.0), seconds[first : first + size]


def _filled(part: int, whole: int, width: int) -> int:
    """Blocks of a bar: one node shows, and so does one that lacks."""
    filled = round(width * part / whole)
    if 0 < part < whole:
        filled = min(max(filled, 1), width - 1)
    return filled
