"""A fleet of simulated nodes on real connections (``llmgw sim-fleet``): how a control plane
does with many.

Each node holds a session over mutual TLS: inventory, heartbeats with drawn measurements,
and shards that become ready without an engine. Nothing listens; no request can be served.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import random  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import click  # noqa: E402
import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from llmgw.identity.names import valid_name  # noqa: E402
from llmgw.runtime.daemon import allow_many_files, run  # noqa: E402
from llmgw.runtime.kinds import ADDRESSES, DURATION  # noqa: E402
from llmgw.runtime.logs import configure  # noqa: E402
from llmgw.runtime.settings import Address  # noqa: E402
from llmgw.sim.fleet_agent import Agent  # noqa: E402
from llmgw.sim.fleet_figures import Cost, Figures, Second, picture  # noqa: E402
from llmgw.sim.fleet_node import Node, Shape  # noqa: E402
from llmgw.sim.fleet_tls import Identities, connect  # noqa: E402

LOOK_EVERY = 1.0
"""Seconds between two looks at the whole."""

QUIET_EVERY = 10
"""Looks between two lines of progress where no terminal watches."""


class SimFleet:
    """All nodes, each with its agent. ``heartbeat`` seconds instead of what the control
    plane asks for, if given."""

    def __init__(
        self,
        addresses: tuple[Address, ...],
        identities: Identities,
        nodes: int,
        shape: Shape | None = None,
        *,
        prefix: str = "sim-",
        seed: int = 0,
        heartbeat: float | None = None,
    ) -> None:
        self.figures = Figures(nodes)
        self.nodes: list[Node] = []
        self._agents: list[Agent] = []
        for index in range(nodes):
            name = f"{prefix}{index:05}"
            node = Node(index, name, shape or Shape(), random.Random(f"{seed}-{name}"))  # noqa: S311 - a simulation
            secure = partial(connect, identities.context(name))
            self.nodes.append(node)
            self._agents.append(
                Agent(node, addresses, secure, self.figures, authorities=identities.authorities, heartbeat=heartbeat)
            )
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    @property
    def registered(self) -> int:
        """Nodes in session now."""
        return self.figures.in_session

    def start(self) -> "SimFleet":
        """Connect all at once, as after a restart of the control plane."""
        self._greenlets = [gevent.spawn(agent.run) for agent in self._agents]
        return self

    def lose(self, count: int) -> None:
        """The first ``count`` nodes vanish, as by a cut of power."""
        gevent.killall(self._greenlets[:count])
        self.figures.in_session -= sum(agent.registered for agent in self._agents[:count])

    def stop(self) -> None:
        """Drop every connection."""
        gevent.killall(self._greenlets)


def watch(figures: Figures, stopping: Event, seconds: float | None, tell: Callable[[Second], None]) -> None:
    """Look at the fleet until told to stop, or for so many seconds."""
    began = time.monotonic()
    while True:
        left = None if seconds is None else began + seconds - time.monotonic()
        pause = LOOK_EVERY if left is None else min(LOOK_EVERY, left)
        if pause <= 0 or stopping.wait(pause):
            return
        tell(figures.look(time.monotonic() - began))


def resident() -> int:
    """Bytes that this process has in memory; 0 if that cannot be read."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _progress(figures: Figures, second: Second) -> None:
    words = (
        f"{second.at:.0f} s: {second.in_session} of {figures.nodes} in session, {second.heartbeats} heartbeats"
        f"{f', {second.turned_away} turned away' if second.turned_away else ''}"
        f"{f', {second.left} ended' if second.left else ''}"
    )
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()
    elif len(figures.seconds) % QUIET_EVERY == 1:
        sys.stderr.write(f"{words}\n")


class _Kind(click.ParamType[Any]):
    """A value as in a settings file."""

    def __init__(self, name: str, parse: Callable[[Any], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        try:
            return value if not isinstance(value, str) else self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _prefix(value: str) -> str:
    if not valid_name(f"{value}00000"):
        raise ValueError("must begin like the name of a node: letters, digits, dots, dashes and underscores")
    return value


@click.command(
    "llmgw sim-fleet",
    epilog="\b\nExample:\n  llmgw sim-fleet --authority /etc/llmgw/authority --nodes 500 --seconds 60\n\n\b\n"
    "Exit status: 0 every node was in session at the end; 1 not.",
)
@click.option(
    "--authority",
    type=click.Path(path_type=Path),
    default=Path("/etc/llmgw/authority"),
    show_default=True,
    metavar="DIR",
    help="Folder of the authority that the control plane trusts; the nodes' certificates are made from it in memory.",
)
@click.option(
    "--control-plane",
    "addresses",
    type=_Kind("HOST:PORT,...", ADDRESSES.parse),
    default="127.0.0.1:7001",
    show_default=True,
    help="Its agents.listen; several with commas between.",
)
@click.option("--nodes", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many.")
@click.option("--devices", type=click.IntRange(0, 1024), default=8, show_default=True, help="GPUs of each.")
@click.option(
    "--heartbeat",
    type=_Kind("TIME", DURATION.parse),
    help="Time between two heartbeats, such as 1s. Default: what the control plane asks for.",
)
@click.option("--seconds", type=click.FloatRange(min=1), help="How long. Default: until Ctrl-C.")
@click.option(
    "--prefix", type=_Kind("TEXT", _prefix), default="sim-", show_default=True, help="What their names begin with."
)
@click.option("--seed", default=0, show_default=True, help="For what is drawn.")
@click.option("-o", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form.")
def command(
    *,
    authority: Path,
    addresses: tuple[Address, ...],
    nodes: int,
    devices: int,
    heartbeat: float | None,
    seconds: float | None,
    prefix: str,
    seed: int,
    form: str,
) -> None:
    """Hold the sessions of many simulated nodes, and tell how that went.

    They belong to the control plane like any others from then on: have it forget them
    with llmgw ctl nodes remove, or use a control plane of its own.
    """
    configure("error", "text")
    allow_many_files()
    sys.stderr.write(f"making {nodes} certificates\n")
    identities, before = Identities(authority), resident()
    fleet = SimFleet(
        addresses, identities, nodes, Shape(devices=devices), prefix=prefix, seed=seed, heartbeat=heartbeat
    )
    stopping = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, stopping.set)
    began = time.process_time()
    fleet.start()
    watch(fleet.figures, stopping, seconds, partial(_progress, fleet.figures))
    complete, memory = fleet.figures.complete, resident()
    cost = Cost(time.process_time() - began, memory, max(0, memory - before))
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    if form == "json":
        click.echo(json.dumps(fleet.figures.plain(cost), indent=2))
    else:
        blocks = "█░" if "utf" in (sys.stdout.encoding or "").lower() else "#."
        for line in picture(fleet.figures, cost, blocks=blocks):
            click.echo(line)
    fleet.stop()
    raise SystemExit(0 if complete else 1)


def main() -> int:
    """The process."""
    command(prog_name="llmgw sim-fleet")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
