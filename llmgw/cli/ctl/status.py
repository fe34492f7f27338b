"""``ctl status``: problems first, then capacity, then models (CLI-02).

80 columns and one screen do, for four nodes as for two thousand.
"""

from typing import TYPE_CHECKING, Any

import click

from llmgw.cli.client import Client
from llmgw.cli.ctl.problems import told
from llmgw.cli.options import api, example, output, watch
from llmgw.cli.output import GIB, UNKNOWN, ago, clean, count, gb, plural
from llmgw.cli.tables import bar, below, share, table
from llmgw.cli.watch import view

if TYPE_CHECKING:
    from rich.console import Console

Answer = dict[str, Any]
BAR = 24
ROOMY = 72
NAME = 20
MOST = 12
"""Lines of a section; what is more is counted, with the command that lists it."""

PATIENCE = 10.0
"""Seconds for the answer: who is woken at night must soon know that there is none."""

BAD = ("unplaceable", "parked", None)


@click.command(epilog=example("llmgw status", "llmgw ctl status -o json", "llmgw ctl status --watch"))
@watch
@output
@api
def status(client: Client, form: str, watch: float | None) -> None:
    """Show the state of the whole: problems first, capacity, models against what they should have.

    Problems that are alike are told in one line, the worst first.
    """
    client.patience = PATIENCE
    view(form, watch, lambda: client.get("status", "problems"), show)


def show(out: "Console", answer: Answer) -> None:
    """Everything that a person woken at night must know first."""
    _head(out, answer)
    _problems(out, answer)
    _capacity(out, answer["capacity"])
    _models(out, answer)


def _head(out: "Console", answer: Answer) -> None:
    nodes = answer["nodes"]
    words = [f"{nodes['connected']} of {plural(nodes['total'], 'node')} connected"]
    words += [
        f"{nodes[word]} {word}"
        for word in ("reconnecting", "unreachable", "lost", "cordoned", "held")
        if nodes.get(word)
    ]
    routers = answer["routers"]
    leader = answer["leader"]
    name = f" on {clean(leader['name'])}" if leader["ha"] else ""
    head = f"llmgw {clean(answer['version'])}{name}, epoch {answer['epoch']}, up {ago(answer.get('uptime_seconds'))}"
    below(out, f"{head}, {len(routers)} router process{'es' if len(routers) != 1 else ''}", 0)
    below(out, ", ".join(words), 0)
    settling = answer["settling"]
    if settling["active"]:
        since, why = ago(settling.get("seconds")), clean(settling.get("reason"))
        below(out, f"Settling for {since}: {why}; nothing is placed yet", 0, "yellow")


def _problems(out: "Console", answer: Answer) -> None:
    from rich.text import Text  # noqa: PLC0415 - not needed to start a part

    problems = answer["problems"]
    if not problems:
        out.print("\nNo problems.", style="green")
        return
    out.print(f"\nPROBLEMS ({len(problems)})", style="bold red")
    lines = told(problems)
    for line in lines[:MOST]:
        head, colon, words = line.words.partition(": ")
        below(out, Text.assemble((head + colon, "bold"), words), 2)
        if line.see:
            below(out, line.see, 4, "bright_black")
    rest = sum(line.many for line in lines[MOST:])
    if rest:
        below(out, f"… and {rest} more: llmgw ctl status -o json", 2)


def _capacity(out: "Console", capacity: Answer) -> None:
    lines = []
    for device in capacity["devices"]:
        excluded = f", {device['excluded']} not used" if device["excluded"] else ""
        words = f"{device['claimed']} of {device['total']}, {device['free']} free{excluded}"
        lines.append((clean(device["device_class"]), share(device["claimed"], device["total"]), words))
    memory, cores = capacity["memory"], capacity["cores"]
    claimed, total, used = (memory.get(f"{word}_bytes") for word in ("claimed", "total", "used"))
    lines.append(("memory", share(claimed, total), _sizes(claimed, total, used) + _unknown(memory)))
    words = "{} of {}, {} used".format(*(count(cores.get(f"{word}_cores")) for word in ("claimed", "total", "used")))
    lines.append(("cores", share(cores.get("claimed_cores"), cores.get("total_cores")), words + _unknown(cores)))
    out.print("\nCAPACITY (claimed by replicas)", style="bold")
    width = min(NAME, max(len(name) for name, _, _ in lines))
    length = BAR if out.width >= ROOMY else BAR // 4
    for name, part, text in lines:
        below(out, f"{name[:NAME]:{width}}  {bar(part, length)}  {text}", 2)


def _sizes(claimed: float | None, total: float | None, used: float | None) -> str:
    """Memory of the whole, in the unit that its size asks for."""
    tera = (total or 0) >= 10_000 * GIB
    parts = [gb(size if size is None or not tera else size / 1024) for size in (claimed, total, used)]
    return f"{parts[0]} of {parts[1]} {'TB' if tera else 'GB'}, {parts[2]} used"


def _unknown(figures: Answer) -> str:
    number = figures.get("unknown_nodes")
    return f" ({plural(number, 'node')} not known)" if number else ""


def _models(out: "Console", answer: Answer) -> None:
    models = answer["models"]
    replicas = ", ".join(f"{number} {clean(word)}" for word, number in sorted(answer["replicas"].items()) if number)
    out.print()
    below(out, "MODELS (ready of wanted)" + (f"; replicas: {replicas}" if replicas else ""), 0, "bold")
    named = {problem["subject"] for problem in answer["problems"] if problem["kind"] == "model"}
    shown = models if len(models) <= MOST else [model for model in models if not _good(model)]
    shown = sorted(shown, key=lambda model: (_good(model), model["ready"] >= model["wanted"]))
    rows = [
        [model["name"], model.get("state"), f"{model['ready']}/{model['wanted']}", _why(model, named)]
        for model in shown[:MOST]
    ]
    if rows or not models:
        table(
            ["MODEL", "STATE", "READY", "why"],
            rows,
            "The catalog has no models. Add one: llmgw ctl model add --help",
            out,
        )
    left = len(shown[MOST:])
    if left:
        below(out, f"… and {left} more: llmgw ctl models", 0)
    fine = [model for model in models if _good(model)] if len(models) > MOST else []
    if fine:
        states: dict[str, int] = {}
        for model in fine:
            states[model["state"]] = states.get(model["state"], 0) + 1
        words = ", ".join(f"{number} {clean(word)}" for word, number in states.items())
        below(out, f"{plural(len(fine), 'model')} as they should be: {words}. All: llmgw ctl models", 0)


def _good(model: Answer) -> bool:
    return model.get("state") not in BAD and model["ready"] >= model["wanted"]


def _why(model: Answer, named: set[str]) -> str:
    """The reason, unless it stands among the problems."""
    if _good(model) or model["name"] in named:
        return ""
    reason = model.get("reason")
    return clean(reason) if reason else "" if model.get("state") else UNKNOWN
