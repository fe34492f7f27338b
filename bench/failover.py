"""Two control planes, of which one is taken away: ``python bench/failover.py --nodes 10``.

Real processes on loopback, the product's own times, PostgreSQL: the leader is stopped, killed
and frozen, and the store is away, while streams and requests go through the router. See
``bench/README.md``.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, instead of this directory

from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.tools import CACHE, say  # noqa: E402
from controlplane.leadership.lease import RENEW, TTL  # noqa: E402
from controlplane.settings import SETTINGS  # noqa: E402
from tests.harness.failover import Site  # noqa: E402
from tests.harness.outcome import Outcome  # noqa: E402

SCENARIOS = ("stopped", "killed", "frozen", "store away")

OWN = (
    *("agents.heartbeat", "agents.silence", "loop.interval", "nodes.unreachable_after", "nodes.lost_after"),
    *("settling.steady", "settling.limit", "drain.grace", "stop.grace", "backoff.first", "backoff.limit"),
)
"""Settings that tests make quick; here they are the product's."""

TAKEOVER = 4.0
"""Seconds that a takeover may take, beyond the length of the lease where the leader said nothing
(HA-02)."""

STEP = 2.0
"""Seconds of one character of a picture."""


def times(ttl: float) -> dict[str, Any]:
    """The product's own times, but for the length of the lease; it is renewed in proportion."""
    sections: dict[str, Any] = {"ha": {"ttl": f"{ttl:g}s", "renew": f"{renew(ttl):g}s"}}
    for name in OWN:
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = SETTINGS.index[name].default
    return sections


def renew(ttl: float) -> float:
    """Seconds between two renewals of a lease of this length."""
    return RENEW * ttl / TTL


@dataclass
class Picture:
    """One look every ``STEP`` seconds: who leads, how many nodes are in session with each, and
    whether traffic went on since the last look."""

    site: Site
    rows: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = list(self.site.cluster.layout.control_planes)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> dict[str, str]:
        """The picture."""
        self._over.set()
        self._thread.join()
        return self.rows

    def _run(self) -> None:
        next_look = time.monotonic()
        before = (0, 0, 0)
        while not self._over.wait(max(0.0, next_look - time.monotonic())):
            next_look += STEP
            for name in self._names:
                self._add(name, self._role(name))
            seen = self.site.seen
            if seen is None:
                self._add("streams", " ")
                self._add("requests", " ")
                continue
            now = (seen.pieces, seen.answered, len(seen.failed))
            self._add("streams", "x" if seen.cut else "=" if now[0] > before[0] else ".")
            self._add("requests", "x" if now[2] > before[2] else "=" if now[1] > before[1] else ".")
            before = now

    def _role(self, name: str) -> str:
        leads = self.site.metric(name, "llmgw_leader", 0.5)
        if leads is None:
            return "x"
        if not leads:
            return "-"
        if not self.site.metric(name, "llmgw_lease_sure", 0.5):
            return "?"
        sessions = self.site.metric(name, "llmgw_agent_sessions", 0.5)
        return "L" if sessions is None or sessions >= len(self.site.cluster.layout.nodes) else f"{sessions:.0f}"[-1]

    def _add(self, row: str, character: str) -> None:
        self.rows[row] = self.rows.get(row, "") + character


def scenario(site: Site, name: str) -> Callable[[], Outcome]:
    """What it does."""
    return {
        "stopped": site.stopped,
        "killed": site.killed,
        "frozen": lambda: site.frozen(1.5 * site.ttl),
        "store away": lambda: site.store_away(2 * site.ttl),
    }[name]


def shown(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds else "-"


def verdict(name: str, took: float, ttl: float) -> str:
    """Whether a takeover that took ``took`` seconds meets HA-02; empty where there is none."""
    limits = {"stopped": TAKEOVER, "killed": ttl + TAKEOVER, "frozen": ttl + TAKEOVER}
    if name not in limits:
        return ""
    return f"{'met' if 0 < took <= limits[name] else 'MISSED'} (≤ {limits[name]:g})"


def table(outcomes: dict[str, Outcome], nodes: int, ttl: float) -> Table:
    """The figures."""
    made = Table(box=box.SIMPLE_HEAD, title=f"{nodes} nodes, lease of {ttl:g} s renewed every {renew(ttl):g} s")
    for column in (
        "scenario",
        "takeover s",
        "HA-02",
        "routers s",
        "all nodes s",
        "streams",
        "cut",
        "requests",
        "failed",
    ):
        made.add_column(column, justify="left" if column == "scenario" else "right")
    for column in ("slowest ms", "stale commands", "engines ended"):
        made.add_column(column, justify="right")
    for name, found in outcomes.items():
        took = found.takeover
        made.add_row(
            name,
            *(shown(took.people), verdict(name, took.people, ttl), shown(took.routers), shown(took.nodes)),
            *map(str, (found.streams, len(found.cut), found.answered, len(found.failed))),
            *(f"{found.slowest * 1000:.0f}", str(found.stale), str(len(found.moved))),
        )
    return made


def main() -> int:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--part", choices=("all", *SCENARIOS), default="all")
    parser.add_argument("--ttl", type=float, default=TTL, help="seconds that the lease lasts (default: the product's)")
    options = parser.parse_args()
    outcomes: dict[str, Outcome] = {}
    pictures: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        say.print("starting the installation")
        settings = times(options.ttl)
        with Site(
            Path(folder), nodes=options.nodes, streams=options.streams, settings=settings, ttl=options.ttl
        ) as site:
            for name in SCENARIOS:
                if options.part in ("all", name):
                    site.whole()
                    say.print(f"{name}: {site.leader()} leads")
                    picture = Picture(site)
                    try:
                        outcomes[name] = scenario(site, name)()
                    finally:
                        pictures[name] = picture.end()
            counted, asked = site.counted(), site.asked
    console = Console(width=160, markup=False, highlight=False)
    console.print(table(outcomes, options.nodes, options.ttl))
    for name, rows in pictures.items():
        console.print(f"{name} (a character is {STEP:g} s)")
        for row, line in rows.items():
            console.print(f"  {row:9}{line}")
    console.print("L leads with every node in session, 7 with so many, ? in doubt, - stands by, x does not answer")
    console.print(f"usage: {counted} of {asked} requests are in the store")
    faults = [f"{name}: {fault}" for name, found in outcomes.items() for fault in found.faults()]
    for fault in faults:
        console.print(fault)
    CACHE.mkdir(parents=True, exist_ok=True)
    figures = {name: asdict(found) | {"moved": sorted(found.moved)} for name, found in outcomes.items()}
    (CACHE / "failover.json").write_text(json.dumps({"options": vars(options), "figures": figures}, indent=2))
    return 1 if faults or counted != asked else 0


if __name__ == "__main__":
    sys.exit(main())
