"""A control plane with thousands of agents: ``python bench/fleet.py --nodes 5000``.

A real control plane and ``llmgw sim-fleet``, each a process of its own, over mutual TLS: the
storm of registrations after a start, a clean restart and a kill; heartbeats while the fleet
is planned; memory. See ``bench/README.md``.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, instead of this directory

import psutil  # noqa: E402
import requests  # noqa: E402
import yaml  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.tools import CACHE, free_port, say  # noqa: E402
from tests.fakes.controlplane import ControlPlane  # noqa: E402
from tests.harness import identities  # noqa: E402

MODELS = 40
PATIENCE = 300.0
"""Seconds for the fleet to be in session, or replicas to be placed, before it is given up."""

BUDGETS = {
    "clean restart: all back": "≤ 25 s",
    "heartbeats a second per core, planning": "≥ 3,000",
    "control plane, resident": "≤ 600 MB",
    "control plane with replicas, resident": "≤ 600 MB",
    "a scrape of /metrics (processor, size)": "≤ 0.10 s",
}


@dataclass
class Rows:
    """What was found."""

    rows: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, value: str) -> None:
        """One line of the table."""
        self.rows.append((name, value))
        say.print(f"  {name}: {value}", markup=False)


class Server:
    """The control plane on ports that it keeps over a restart."""

    def __init__(self, folder: Path, replicas: int) -> None:
        listeners = {f"{name}__listen": f"127.0.0.1:{free_port()}" for name in ("agents", "routers", "join", "admin")}
        self.plane = ControlPlane(folder, catalog(0), **listeners)
        self.replicas = replicas
        self._seen = 0
        self.start()

    def start(self) -> None:
        self.plane.start()
        assert self.plane.process is not None
        self.process = psutil.Process(self.plane.process.pid)

    def wants(self, replicas: int) -> None:
        """Another catalog, which is planned for at once."""
        self.plane.catalog.write_text(yaml.safe_dump(catalog(replicas // MODELS)))
        self.plane.tell(signal.SIGHUP)

    def status(self) -> dict[str, Any]:
        answer = requests.get(f"{self.plane.api}/api/v1/status", headers=self.plane.auth, timeout=60)
        return dict(answer.json())

    def cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def stalls(self) -> list[tuple[float, float]]:
        """Of each stall since the last call: its seconds, and how much of it was own work."""
        found = re.findall(r"event loop was held.*? seconds=([0-9.]+) cpu_seconds=([0-9.]+)", self.plane.log())
        new, self._seen = found[self._seen :], len(found)
        return [(float(seconds), float(cpu)) for seconds, cpu in new]


def catalog(each: int) -> dict[str, Any]:
    """Models that share the fleet."""
    profile = {"engine": "sim", "source": "sim:", "gpu_class": "h100-80g", "gpus": 1, "min_memory_gb": 4}
    profile |= {"cpu_cores": 1}
    scaling = {"min": each, "max": each}
    return {"models": {f"model-{number:02}": {"scaling": scaling, "profiles": [profile]} for number in range(MODELS)}}


class Fleet:
    """``llmgw sim-fleet`` with all its nodes. ``told`` is what it found, after ``end``."""

    def __init__(self, folder: Path, server: Server, options: argparse.Namespace, *more: str) -> None:
        authority = identities.ours().authority_folder(folder / "authority")
        self._err = (folder / "fleet.log").open("a")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "llmgw.cli", "sim-fleet", "--authority", str(authority), "-o", "json"),
                *("--control-plane", str(server.plane.addresses["agents.listen"])),
                *("--nodes", str(options.nodes), "--devices", str(options.devices), *more),
            ],
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def end(self) -> dict[str, Any]:
        """Stop it."""
        self.process.send_signal(signal.SIGINT)
        told, _ = self.process.communicate(timeout=120)
        self._err.close()
        return dict(json.loads(told))


def until(what: str, condition: Any) -> float:
    """Seconds until it holds. Each look is a question that the control plane has to answer."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"{what}: not within {PATIENCE:g} s")
        time.sleep(1.0)
    return time.monotonic() - began


def connected(server: Server, nodes: int) -> bool:
    with contextlib.suppress(requests.RequestException, KeyError, ValueError):
        return bool(server.status()["nodes"]["connected"] == nodes)
    return False


def storms(folder: Path, options: argparse.Namespace, rows: Rows) -> None:
    """After a start, a clean restart and a kill."""
    server = Server(folder, 0)
    fleet = Fleet(folder, server, options)
    names = ["start", "clean restart", "kill -9"]
    stalls, cpu = [], []
    try:
        for number, name in enumerate(names):
            if number:
                server.plane.stop(signal.SIGTERM if number == 1 else signal.SIGKILL)
                server.stalls()
                server.start()
            say.print(f"{name}: waiting for {options.nodes} nodes")
            until(name, lambda: connected(server, options.nodes))
            stalls.append(server.stalls())
            cpu.append(server.cpu())
            time.sleep(5)  # the fleet looks at itself once a second
        memory = server.process.memory_info().rss
    finally:
        told = fleet.end()
        server.plane.stop()
    for name, outage, held, used in zip(names, told["outages"], stalls, cpu, strict=False):
        took = f"{outage['seconds']:.1f} s" if outage["seconds"] is not None else "not all"
        rows.add(f"{name}: all {'in' if name == 'start' else 'back'}", took)
        rows.add(f"{name}: longest stall of the hub (own work in it)", longest(held))
        rows.add(f"{name}: processor of the control plane until then", f"{used:.1f} s")
    rows.add("sessions that ended, by why", words(told["ended"]))
    rows.add("tries that came to nothing, by why", words(told["turned_away"]))
    rows.add(
        "a connection, median / p99", " / ".join(f"{told['connect_seconds'][name]} s" for name in ("median", "p99"))
    )
    rows.add("control plane, resident", f"{memory / 1e6:.0f} MB")
    rows.add("sim-fleet", f"{told['memory_bytes'] / 1e6:.0f} MB, {told['memory_bytes_per_node'] / 1e3:.0f} kB a node")


def steady(folder: Path, options: argparse.Namespace, rows: Rows) -> None:
    """Heartbeats at a rate while nothing is planned, and while something always is."""
    server = Server(folder, options.replicas)
    every = options.nodes / options.rate
    fleet = Fleet(folder, server, options, "--heartbeat", f"{every:.3f}")
    windows: dict[str, tuple[float, float, list[tuple[float, float]]]] = {}
    began = time.monotonic()
    try:
        until("all in session", lambda: connected(server, options.nodes))
        server.wants(options.replicas)
        took = until(
            "all placed", lambda: server.status()["replicas"].get("ready", 0) >= options.replicas // MODELS * MODELS
        )
        rows.add(f"{options.replicas} replicas placed and ready", f"{took:.1f} s")
        for name in ("idle", "planning"):
            with planning(server, options.replicas) if name == "planning" else contextlib.nullcontext():
                time.sleep(2)
                server.stalls()
                at, used = time.monotonic(), server.cpu()
                time.sleep(options.seconds)
                windows[name] = (at - began, (server.cpu() - used) / (time.monotonic() - at), server.stalls())
        scrapes = [scrape(server) for _ in range(5)]
        scraped = server.stalls()
        memory = server.process.memory_info().rss
    finally:
        told = fleet.end()
        server.plane.stop()
    for name, (at, cores, held) in windows.items():
        beats = [second["heartbeats"] for second in told["timeline"] if at <= second["at"] < at + options.seconds]
        rate = sum(beats) / max(1, len(beats))
        rows.add(f"heartbeats a second, {name}", f"{rate:,.0f} ({cores:.2f} cores of the control plane)")
        rows.add(f"heartbeats a second per core, {name}", f"{rate / cores:,.0f}" if cores else "-")
        rows.add(f"longest stall of the hub (own work in it), {name}", longest(held))
    seconds, used, size = sorted(scrapes)[len(scrapes) // 2]
    rows.add("a scrape of /metrics (processor, size)", f"{seconds:.2f} s ({used:.2f} s, {size / 1e6:.1f} MB)")
    rows.add("longest stall of the hub (own work in it), scrapes", longest(scraped))
    rows.add("sessions that ended meanwhile", words(told["ended"]))
    rows.add("control plane with replicas, resident", f"{memory / 1e6:.0f} MB")


def scrape(server: Server) -> tuple[float, float, int]:
    """Seconds of one scrape, those of them that the control plane worked, and its bytes."""
    began, used = time.monotonic(), server.cpu()
    size = len(requests.get(f"{server.plane.api}/metrics", timeout=60).content)
    found = time.monotonic() - began, server.cpu() - used, size
    time.sleep(1.0)
    return found


@contextlib.contextmanager
def planning(server: Server, replicas: int) -> Iterator[None]:
    """A tenth of all replicas comes and goes."""
    over = threading.Event()

    def flap() -> None:
        few = True
        while not over.wait(1.0):
            server.wants(replicas * 9 // 10 if few else replicas)
            few = not few

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def longest(stalls: list[tuple[float, float]]) -> str:
    if not stalls:
        return "none above 100 ms"
    seconds, cpu = max(stalls)
    return f"{seconds:.2f} s ({cpu:.2f} s) of {len(stalls)}"


def words(counts: dict[str, int]) -> str:
    return "; ".join(f"{count} {why}" for why, count in counts.items()) or "none"


def main() -> int:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=3000.0, help="heartbeats a second of the whole fleet")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each window of the steady part")
    parser.add_argument("--part", choices=("all", "storms", "steady"), default="all")
    options = parser.parse_args()
    rows = Rows()
    for name, part in (("storms", storms), ("steady", steady)):
        if options.part in ("all", name):
            with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
                part(Path(folder), options, rows)
    table = Table(box=box.SIMPLE_HEAD, title=f"{options.nodes} nodes of {options.devices} devices over mutual TLS")
    for column in ("figure", "found", "budget at 5,000"):
        table.add_column(column)
    for name, value in rows.rows:
        table.add_row(name, value, BUDGETS.get(name, ""))
    Console(width=160, markup=False).print(table)
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "fleet.json").write_text(json.dumps({"options": vars(options), "figures": dict(rows.rows)}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
