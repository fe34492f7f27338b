"""``ctl status``: problems first, then capacity, then models (CLI-02). 80 columns do."""

import sys
from typing import TYPE_CHECKING, Any

import click

from llmgw.cli.client import Client
from llmgw.cli.options import api, example, output
from llmgw.cli.output import ago, clean, console, count, gb, plain, plural, table

if TYPE_CHECKING:
    from rich.console import Console

Answer = dict[str, Any]
BAR = 24
NAME = 14


@click.command(epilog=example("llmgw ctl status", "llmgw ctl status -o json"))
@output
@api
def status(client: Client, form: str) -> None:
    """Show the state of the whole: problems first, capacity, models against what they should have."""
    answer = client.get("status", "problems")
    if plain(answer, form):
        return
    out = console()
    _head(out, answer)
    _problems(out, answer)
    _capacity(out, answer["capacity"])
    _models(out, answer)


def _head(out: "Console", answer: Answer) -> None:
    nodes = answer["nodes"]
    words = [f"{nodes['connected']} of {nodes['total']} nodes connected"]
    words += [
        f"{nodes[word]} {word}" for word in ("reconnecting", "unreachable", "lost", "cordoned") if nodes.get(word)
    ]
    routers = answer["routers"]
    words.append(f"{len(routers)} router process{'es' if len(routers) != 1 else ''}")
    out.print(f"llmgw {clean(answer['version'])}, epoch {answer['epoch']}, up {ago(answer.get('uptime_seconds'))}")
    out.print(", ".join(words))
    settling = answer["settling"]
    if settling["active"]:
        out.print(
            f"Settling for {ago(settling.get('seconds'))}: {clean(settling.get('reason'))}; nothing is placed yet"
        )


def _problems(out: "Console", answer: Answer) -> None:
    from rich.padding import Padding  # noqa: PLC0415 - not needed to start a part
    from rich.text import Text  # noqa: PLC0415

    problems = answer["problems"]
    if not problems:
        out.print(Text("\nNo problems.", style="green"))
        return
    out.print(Text(f"\nPROBLEMS ({len(problems)})", style="bold red"))
    for problem in problems:
        words = f"{clean(problem['kind'])} {clean(problem['subject'])}: {clean(problem['message'])}"
        out.print(Padding(Text(words), (0, 0, 0, 2), expand=False))


def _capacity(out: "Console", capacity: Answer) -> None:
    lines = []
    for device in capacity["devices"]:
        excluded = f", {device['excluded']} not used" if device["excluded"] else ""
        words = f"{device['claimed']} of {device['total']}, {device['free']} free{excluded}"
        lines.append((device["device_class"], _share(device["claimed"], device["total"]), words))
    memory, cores = capacity["memory"], capacity["cores"]
    words = (
        f"{gb(memory.get('claimed_bytes'))} of {gb(memory.get('total_bytes'))} GB, {gb(memory.get('used_bytes'))} used"
    )
    lines.append(("memory", _share(memory.get("claimed_bytes"), memory.get("total_bytes")), words + _unknown(memory)))
    claimed, total, used = (count(cores.get(f"{word}_cores")) for word in ("claimed", "total", "used"))
    words = f"{claimed} of {total}, {used} used"
    lines.append(("cores", _share(cores.get("claimed_cores"), cores.get("total_cores")), words + _unknown(cores)))
    out.print("\nCAPACITY (claimed by replicas)", style="bold")
    for name, share, text in lines:
        out.print(f"  {clean(name)[:NAME]:{NAME}} {_bar(share)} {text}")


def _unknown(figures: Answer) -> str:
    number = figures.get("unknown_nodes")
    return f" ({plural(number, 'node')} not known)" if number else ""


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else min(1.0, part / whole)


def _bar(share: float | None) -> str:
    full, free = ("█", "░") if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else ("#", ".")
    if share is None:
        return "-".ljust(BAR)
    filled = round(share * BAR)
    if share > 0:
        filled = max(1, filled)
    return full * filled + free * (BAR - filled)


def _models(out: "Console", answer: Answer) -> None:
    out.print("\nMODELS (ready of wanted)", style="bold")
    table(
        ["MODEL", "STATE", "READY", "why"],
        [
            [
                model["name"],
                model.get("state"),
                f"{model['ready']}/{model['wanted']}",
                "" if model.get("state") == "ready" and model["ready"] >= model["wanted"] else model.get("reason", ""),
            ]
            for model in answer["models"]
        ],
        "  The catalog has no models. Add one to the catalog file, then: llmgw ctl catalog reload",
        out,
    )
