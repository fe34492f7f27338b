"""The router against its peers, on one mock engine, in one run: ``python bench/router.py``.

CPU time of a router's process tree divided by requests is what counts: it is steadier than
throughput on a shared machine. Runs are paired in turn and the ratio of each pair is taken.
See ``bench/README.md``.
"""

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, instead of this directory

import yaml  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.tools import (  # noqa: E402
    CACHE,
    KEY,
    ROOT,
    Load,
    Process,
    Unavailable,
    environment,
    free_port,
    request,
    require_wrk,
    say,
    start,
    wait_until_right,
    wrk,
)
from llmgw.wire.routing import Endpoint, RoutedKey, RoutedModel, RouteTable  # noqa: E402
from tests.fakes.route_server import RouteServer  # noqa: E402
from tests.harness import identities  # noqa: E402

PEERS = {"vllm-router": "vllm-router==0.1.17", "litellm": "litellm[proxy]==1.106.12"}
MOCK = "uvloop httptools"
CONNECTIONS = 32
PACED_STREAMS = 150
PACED_GAP = 0.02
LATENCY_RUNS = 5

BUDGETS = {
    "whole": ("CPU per request ÷ vllm-router", 0.9, 0.7),
    "paced": ("CPU per paced chunk ÷ vllm-router", 0.9, 0.7),
    "burst": ("CPU per 64-chunk burst stream ÷ vllm-router", 0.6, 0.4),
    "added_p50": ("added latency at half load, p50, ms", 0.5, 0.3),
    "added_p99": ("added latency at half load, p99, ms", 3.0, 1.5),
    "stream_kb": ("memory per open stream, kB", 60.0, 30.0),
}
"""What we hold ourselves to: the name, the budget, and the figure we would be proud of."""

# ------------------------------------------------------------------------ routers


def start_ours(directory: Path, control: RouteServer) -> Process:
    """One worker, keys on, a control plane that is polled, reported to and given usage records."""
    port = free_port()
    identity = identities.ours().router(directory / "identity", "bench")
    config = directory / "router.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "listen": f"127.0.0.1:{port}",
                "workers": 1,
                "control_planes": [f"127.0.0.1:{control.port}"],
                "router_id": "bench",
                "identity": str(identity),
                "state_dir": str(directory / "state"),
            }
        )
    )
    return start("llmgw", port, [sys.executable, "-m", "router.main", "--config", str(config)], directory)


def table(ports: list[int]) -> RouteTable:
    endpoints = tuple(
        Endpoint(id=f"e{port}", host="127.0.0.1", port=port, upstream_model="m", key="ek-bench") for port in ports
    )
    key = RoutedKey(id="k", digest=hashlib.sha256(KEY.encode()).hexdigest())
    return RouteTable(generation="1", models=(RoutedModel(name="m", state="ready", endpoints=endpoints),), keys=(key,))


def start_vllm_router(ports: list[int], directory: Path) -> Process:
    binaries = environment("vllm-router", PEERS["vllm-router"])
    port = free_port()
    command = [str(binaries / "vllm-router"), "--port", str(port), "--host", "127.0.0.1"]
    command += ["--policy", "power_of_two", "--log-level", "error", "--prometheus-port", str(free_port())]
    command += ["--worker-urls", *(f"http://127.0.0.1:{upstream}" for upstream in ports)]
    return start("vllm-router", port, command, directory)


def start_litellm(ports: list[int], directory: Path) -> Process:
    binaries = environment("litellm", PEERS["litellm"])
    port = free_port()
    config = directory / "litellm.yaml"
    models = [
        {
            "model_name": "m",
            "litellm_params": {"model": "openai/m", "api_base": f"http://127.0.0.1:{one}/v1", "api_key": "x"},
        }
        for one in ports
    ]
    config.write_text(yaml.safe_dump({"model_list": models, "general_settings": {"master_key": KEY}}))
    command = [str(binaries / "litellm"), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    return start("litellm", port, [*command, "--num_workers", "1"], directory, LITELLM_TELEMETRY="False")


# ------------------------------------------------------------------------ measuring


def stats(ports: list[int]) -> dict[str, int]:
    """What the mock engines have served so far."""
    counts = [json.loads(request(port, "/stats")) for port in ports]
    return {name: sum(count[name] for count in counts) for name in counts[0]}


@dataclass
class Result:
    """Figures of one router, one per round."""

    whole: list[float] = field(default_factory=list)  # µs CPU per request
    rps: list[float] = field(default_factory=list)
    burst: list[float] = field(default_factory=list)  # µs CPU per stream
    paced: list[float] = field(default_factory=list)  # µs CPU per chunk
    added_p50: list[float] = field(default_factory=list)  # ms
    added_p99: list[float] = field(default_factory=list)
    stream_kb: list[float] = field(default_factory=list)
    rss: float = float("nan")  # MB


def per_request(process: Process, script: str, seconds: float, connections: int) -> tuple[float, Load]:
    """µs of CPU per request under full load."""
    before = process.cpu()
    load = wrk(process.port, script, seconds, connections)
    return (process.cpu() - before) / load.requests * 1e6, load


def per_paced_chunk(process: Process, ports: list[int], seconds: float) -> tuple[float, float]:
    """µs of CPU per chunk, and kB per open stream. Chunks are counted by the engines."""
    idle = process.memory()
    load = subprocess.Popen(
        [
            "wrk", "-t1", f"-c{PACED_STREAMS}", f"-d{round(seconds) + 2}s", "--timeout", "30s",
            "-s", str(ROOT / "bench" / "stream.lua"), f"http://127.0.0.1:{process.port}/v1/chat/completions",
        ],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "BENCH_KEY": KEY},
    )  # fmt: skip
    time.sleep(1.5)  # all streams are open
    cpu, chunks = process.cpu(), stats(ports)["chunks"]
    time.sleep(seconds)
    used, passed = process.cpu() - cpu, stats(ports)["chunks"] - chunks
    memory = process.memory()
    load.wait()
    return used / passed * 1e6, (memory - idle) * 1000 / PACED_STREAMS


@dataclass
class Pair:
    """One router in front of engines that answer at once, and of engines that pace their chunks."""

    burst: Process
    paced: Process
    paced_ports: list[int]


def whole(result: Result, router: Pair, seconds: float) -> None:
    """Answers that are not streams."""
    cost, load = per_request(router.burst, "chat.lua", seconds, CONNECTIONS)
    result.whole.append(cost)
    result.rps.append(load.rps)


def burst(result: Result, router: Pair, seconds: float) -> None:
    """Streams whose chunks come at once."""
    result.burst.append(per_request(router.burst, "stream.lua", seconds, CONNECTIONS)[0])


def paced(result: Result, router: Pair, seconds: float) -> None:
    """Streams as engines send them."""
    cost, memory = per_paced_chunk(router.paced, router.paced_ports, seconds)
    result.paced.append(cost)
    result.stream_kb.append(memory)


SCENARIOS: tuple[Callable[[Result, Pair, float], None], ...] = (whole, burst, paced)


def added_latency(process: Process, direct: int, rps: float) -> tuple[float, float]:
    """p50 and p99 added over the engine itself at half of ``rps``, in ms: the differences of
    medians of short runs in turn, since other work on the machine moves single ones."""
    delay = max(1, round(CONNECTIONS * 1000 / (rps / 2)))
    straight: list[Load] = []
    through: list[Load] = []
    for _ in range(LATENCY_RUNS):
        straight.append(wrk(direct, "chat.lua", 2, CONNECTIONS, delay))
        through.append(wrk(process.port, "chat.lua", 2, CONNECTIONS, delay))
    p50 = statistics.median(load.p50 for load in through) - statistics.median(load.p50 for load in straight)
    p99 = statistics.median(load.p99 for load in through) - statistics.median(load.p99 for load in straight)
    return p50, p99


# ------------------------------------------------------------------------ the run


def run(rounds: int, seconds: float, with_litellm: bool) -> dict[str, Any]:
    """Everything. Returns results by router, and notes on what could not be measured."""
    require_wrk()
    notes: list[str] = []
    results: dict[str, Result] = {}
    started: list[Process] = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        python = environment("mock", MOCK) / "python"
        engines: dict[str, list[int]] = {"burst": [], "paced": []}
        for kind, gap in (("burst", 0.0), ("paced", PACED_GAP)):
            for nth in range(2):
                port = free_port()
                engines[kind].append(port)
                command = [str(python), str(ROOT / "bench" / "upstream.py"), str(port), str(gap)]
                started.append(start(f"engine-{kind}-{nth}", port, command, directory))
        stack.callback(_stop, started)
        for port in (*engines["burst"], *engines["paced"]):
            _wait_for(port)

        routers: dict[str, Pair] = {}
        pairs: dict[str, Process] = {}
        for kind, ports in engines.items():
            control = RouteServer(table(ports), "bench")
            stack.callback(control.stop)
            place = directory / kind
            place.mkdir()
            for router in ("llmgw", "vllm-router"):
                try:
                    process = start_ours(place, control) if router == "llmgw" else start_vllm_router(ports, place)
                    started.append(process)
                    wait_until_right(process, 60)
                except Unavailable as error:
                    if router == "llmgw":
                        raise
                    notes.append(str(error))
                    continue
                pairs[f"{router}/{kind}"] = process
        for router in ("llmgw", "vllm-router"):
            if f"{router}/burst" in pairs and f"{router}/paced" in pairs:
                routers[router] = Pair(pairs[f"{router}/burst"], pairs[f"{router}/paced"], engines["paced"])
                results[router] = Result()

        for router, pair in routers.items():
            say.print(f"warming {router}")
            wrk(pair.burst.port, "chat.lua", 2, CONNECTIONS)
            wrk(pair.burst.port, "stream.lua", 1, CONNECTIONS)
        for nth in range(rounds):
            order = list(routers) if nth % 2 == 0 else list(routers)[::-1]
            for scenario in SCENARIOS:
                say.print(f"round {nth + 1} of {rounds}: {scenario.__name__}")
                for router in order:
                    scenario(results[router], routers[router], seconds)
        rps = min(statistics.median(result.rps) for result in results.values())
        for nth in range(max(1, rounds // 2)):
            for router, pair in routers.items():
                say.print(f"latency, round {nth + 1}: {router}")
                p50, p99 = added_latency(pair.burst, engines["burst"][0], rps)
                results[router].added_p50.append(p50)
                results[router].added_p99.append(p99)
        for router, pair in routers.items():
            results[router].rss = pair.burst.memory()

        if with_litellm:
            try:
                results["litellm"] = measure_litellm(engines["burst"], directory, seconds, started)
            except Unavailable as error:
                notes.append(str(error))
    return {"results": results, "notes": notes}


def measure_litellm(ports: list[int], directory: Path, seconds: float, started: list[Process]) -> Result:
    """Few requests: it is two orders of magnitude slower, and known to be."""
    say.print("litellm")
    process = start_litellm(ports, directory)
    started.append(process)
    wait_until_right(process, 180)
    result = Result()
    wrk(process.port, "chat.lua", 2, 4)
    cost, load = per_request(process, "chat.lua", seconds, 4)
    result.whole.append(cost)
    result.rps.append(load.rps)
    result.burst.append(per_request(process, "stream.lua", seconds, 4)[0])
    result.rss = process.memory()
    return result


def _stop(processes: list[Process]) -> None:
    for process in reversed(processes):
        process.stop()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            request(port, "/stats")
        except (OSError, urllib.error.URLError) as error:
            if time.monotonic() > deadline:
                raise Unavailable("the mock engine did not start") from error
            time.sleep(0.05)
        else:
            return


# ------------------------------------------------------------------------ telling


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of pairs."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


COLUMNS = (
    "router",
    "µs/request",
    "req/s",
    "µs/64-chunk burst",
    "µs/paced chunk",
    "added p50 ms",
    "added p99 ms",
    "kB/stream",
    "RSS MB",
)


def show(outcome: dict[str, Any], console: Console) -> dict[str, Any]:
    """Print the tables; returns what is saved."""
    results: dict[str, Result] = outcome["results"]
    figures = Table(box=box.MARKDOWN, title="CPU of the router's processes, one worker, medians")
    for column in COLUMNS:
        figures.add_column(column, justify="left" if column == "router" else "right")
    for name, result in results.items():
        cells = [result.whole, result.rps, result.burst, result.paced, result.added_p50, result.added_p99]
        cells += [[max(result.stream_kb)] if result.stream_kb else [], [result.rss]]
        figures.add_row(name, *(_cell(values) for values in cells))
    console.print(figures)

    ours = results["llmgw"]
    measured: dict[str, float] = {
        "added_p50": statistics.median(ours.added_p50),
        "added_p99": statistics.median(ours.added_p99),
        "stream_kb": max(ours.stream_kb),
    }
    if "vllm-router" in results:
        theirs = results["vllm-router"]
        for name in ("whole", "paced", "burst"):
            measured[name] = ratio(getattr(ours, name), getattr(theirs, name))
    budgets = Table(box=box.MARKDOWN, title="Budgets")
    for column in ("what", "measured", "budget", "moonshot", ""):
        budgets.add_column(column, justify="left" if column in ("what", "") else "right")
    for name, (words, budget, moonshot) in BUDGETS.items():
        value = measured.get(name)
        if value is None:
            budgets.add_row(words, "-", f"{budget:g}", f"{moonshot:g}", "not measured")
            continue
        verdict = "moonshot" if value <= moonshot else "kept" if value <= budget else "MISSED"
        budgets.add_row(words, f"{value:.2f}", f"{budget:g}", f"{moonshot:g}", verdict)
    console.print(budgets)
    for note in outcome["notes"]:
        console.print(f"note: {note}", markup=False)
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "results": {name: vars(result) for name, result in results.items()},
        "measured": measured,
        "budgets": BUDGETS,
        "notes": outcome["notes"],
    }


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    value = statistics.median(values)
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="two short rounds, about three minutes (default)")
    size.add_argument("--full", action="store_true", help="five rounds, about ten minutes")
    parser.add_argument("--no-litellm", action="store_true", help="leave out LiteLLM (80 s to install)")
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    rounds, seconds = (5, 8.0) if options.full else (2, 4.0)
    try:
        outcome = run(rounds, seconds, not options.no_litellm)
    except Unavailable as error:
        say.print(f"cannot measure: {error}")
        return 1
    saved = show(outcome, Console(width=160))
    file = CACHE / f"router-{time.strftime('%Y%m%d-%H%M%S')}.json"
    file.write_text(json.dumps(saved, indent=1))
    say.print(f"saved {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
