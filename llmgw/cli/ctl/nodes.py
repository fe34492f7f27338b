"""Nodes: what they have and what is claimed of it."""

from typing import TYPE_CHECKING, Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, segment
from llmgw.cli.ctl.enrol import adding, removing
from llmgw.cli.groups import Group
from llmgw.cli.options import api, confirm, example, output, watch, with_list, yes
from llmgw.cli.output import UNKNOWN, ago, clean, count, gb, gb_of, listed, plain, plural, say, utc
from llmgw.cli.tables import Row, fitting, gauge, table
from llmgw.cli.watch import view

if TYPE_CHECKING:
    from rich.console import Console

Node = dict[str, Any]

OURS = "llmgw.io/"
PLACES = ("site", "room", "row", "rack", "pdu")
"""Where a node is, from large to small."""

STATUSES = ("connected", "reconnecting", "unreachable", "lost")
SMALL, LARGE = 4, 8
BARS = (8, 6, 4, 3, 0)
"""Lengths of bars: the longest that fits beside everything else."""

WIDE_ENOUGH = 110
"""Columns of a terminal from which on there is room for more."""


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog=example(
        "llmgw ctl nodes",
        "llmgw ctl nodes --status unreachable",
        "llmgw ctl nodes --domain rack=r12 --label tier=gold -o wide",
    ),
)
@click.option("--status", type=click.Choice(STATUSES), help="Only nodes in this state.")
@click.option("--domain", metavar="KIND=NAME", help="Only nodes there, such as rack=r12.")
@click.option("--name", metavar="PART", help="Only nodes whose id contains this.")
@click.option("--label", metavar="NAME=VALUE", multiple=True, help="Only nodes with this label; may be repeated.")
@watch
@output
@api
def nodes(
    client: Client,
    *,
    form: str,
    watch: float | None,
    status: str | None,
    domain: str | None,
    name: str | None,
    label: tuple[str, ...],
) -> None:
    """List nodes: status, claims of what they have, devices, engines.

    CORES, MEM (GB) and devices are claimed of total, RUNS counts replicas; "-" is unknown. Excluded devices, engines
    that are not ready and cordons are told below their node.
    """
    query: dict[str, Any] = {"status": status, "domain": domain, "name": name, "label": list(label) or None}
    none = "No node matches." if any(query.values()) else "No node has joined. Let one join: llmgw ctl nodes add NAME"
    view(
        form,
        watch,
        lambda: client.all("nodes", "nodes", **query),
        lambda out, answer: show(out, answer["nodes"], form == "wide", none),
    )


with_list(nodes)


@nodes.command("accept-loss", epilog=example("llmgw ctl nodes accept-loss"))
@yes
@output
@api
def accept_loss(client: Client, yes: bool, form: str) -> None:
    """Declare lost the nodes that went silent together.

    When more than half of the nodes go silent within a minute, nothing is declared lost: the fault may be the control
    plane's own network. This says that those it names are gone: what ran there is rebuilt elsewhere, at once. Nodes
    that come back before are not lost, nor are nodes that fall silent meanwhile.
    """
    loss = client.get("status", "problems").get("mass_loss")
    if loss is None:
        raise click.ClickException("no mass loss is on: silent nodes are declared lost by themselves, a few at a time")
    confirm(f"Declare {_which(loss['nodes'])} lost and rebuild elsewhere what ran there?", yes)
    answer = client.send("POST", "nodes/accept-loss", "nodes", {"nodes": loss["nodes"]})
    if not plain(answer, form):
        say(f"{plural(len(answer['nodes']), 'node')} declared lost; what ran there is rebuilt elsewhere")
        if answer.get("silent"):
            say(f"Not declared lost: {_which(answer['silent'])}, silent as well since you were asked")


def _which(names: list[str]) -> str:
    return f"{plural(len(names), 'node')} ({listed(names, 12)})"


nodes.add_command(adding("node"))
nodes.add_command(removing("node", completion.nodes))


def show(out: "Console", found: list[Node], wide: bool, none: str) -> None:
    """The table of nodes."""
    roomy = wide or out.width >= WIDE_ENOUGH

    def rows(bar: int) -> list[Row]:
        return [
            Row(
                [
                    node["id"],
                    location(node) if roomy else location(node).rpartition("/")[2],
                    _status(node),
                    _cores(node, bar),
                    _memory(node, bar),
                    _devices(node, bar),
                    len(node["replicas"]),
                    *(_more(node) if wide else []),
                ],
                _notes(node),
            )
            for node in found
        ]

    columns = [
        *("NODE", "location", "STATUS", "CORES", "MEM", "devices", ">RUNS"),
        *(["SINCE", "engines", ">CPU%", ">LOAD", ">MEM USED", "ADDRESS", "AGENT", "labels"] if wide else []),
    ]
    table(columns, fitting(columns, rows, BARS, out.width), none, out)


def location(node: Node) -> str:
    """Where a node is: ``room/row/rack``."""
    places = node.get("location") or {}
    return "/".join(clean(places[place]) for place in PLACES if place in places)


def _status(node: Node) -> str:
    kept = [word for word, field in (("cordoned", "cordon"), ("held", "holds")) if node.get(field)]
    return " ".join(kept if kept and node["status"] == "connected" else [str(node["status"]), *kept])


def _cores(node: Node, width: int) -> str:
    cpu = node.get("cpu", {})
    claimed, total = cpu.get("claimed_cores"), cpu.get("count")
    return gauge(claimed, total, f"{count(claimed)}/{count(total)}", width)


def _memory(node: Node, width: int) -> str:
    memory = node.get("memory", {})
    claimed, total = memory.get("claimed_bytes"), memory.get("total_bytes")
    return gauge(claimed, total, gb_of(claimed, total), width)


def _devices(node: Node, width: int) -> str:
    """Devices by class: claimed of those that may be used."""
    if "address" not in node and not node["devices"]:
        return UNKNOWN
    classes: dict[str, list[int]] = {}
    for device in node["devices"]:
        figures = classes.setdefault(clean(device.get("device_class") or device.get("name") or "unknown"), [0, 0])
        figures[0] += "claimed_by" in device
        figures[1] += 1
    shown = [
        f"{name} {gauge(claimed, total, f'{claimed}/{total}', width)}"
        for name, (claimed, total) in sorted(classes.items())
    ]
    return ", ".join(shown) or "none"


def _notes(node: Node) -> list[str]:
    """What is not as it should be."""
    notes = []
    if "cordon" in node:
        cordon = node["cordon"]
        notes.append(f"cordoned: {cordon['reason'] or 'no reason given'} ({cordon['actor']}, {utc(cordon['at'])})")
    for hold in node.get("holds") or ():
        notes.append(f"held: {hold.get('domain')}: {hold.get('reason')}" if isinstance(hold, dict) else f"held: {hold}")
    excluded: dict[str, list[str]] = {}
    for device in node["devices"]:
        if "excluded" in device:
            excluded.setdefault(device["excluded"], []).append(str(device.get("index", device["uuid"])))
    notes += [f"device {', '.join(names)} not used: {reason}" for reason, names in excluded.items()]
    for engine in node.get("engines") or ():
        if engine["state"] != "ready":
            notes.append(f"engine {engine['name']} {engine['state']}: {engine.get('detail') or 'no detail'}")
    if node.get("engines") == []:
        notes.append("no engine is installed here")
    return [*notes, *node.get("notes", [])]


def engines(node: Node) -> str:
    """Engines and their install state."""
    if "engines" not in node:
        return UNKNOWN
    words = [
        f"{engine['name']}" + ("" if engine["state"] == "ready" else f" ({engine['state']})")
        for engine in node["engines"]
    ]
    return ", ".join(words) or "none"


def _more(node: Node) -> list[Any]:
    return [
        ago(node.get("status_seconds")),
        engines(node),
        count(node.get("cpu", {}).get("percent")),
        count(node.get("cpu", {}).get("load1")),
        gb(node.get("memory", {}).get("used_bytes")),
        node.get("address"),
        node.get("agent_version"),
        _labels(node),
    ]


def _labels(node: Node) -> str:
    labels = node.get("labels") or {}
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if not name.startswith(OURS))


# ---------------------------------------------------------------- one node


@click.group(cls=Group, epilog=example("llmgw ctl node show node-3"))
def node() -> None:
    """One node."""


@node.command("show", epilog=example("llmgw ctl node show node-3", "llmgw ctl node show node-3 --watch"))
@click.argument("name", metavar="NODE", shell_complete=completion.nodes)
@watch
@output
@api
def show_node(client: Client, name: str, form: str, watch: float | None) -> None:
    """Show a node: every device, engine, label and replica."""
    view(form, watch, lambda: client.get(f"nodes/{segment(name)}", "devices"), show_one)


def show_one(out: "Console", found: Node) -> None:
    """Everything that is known about a node."""
    cpu, memory = found.get("cpu", {}), found.get("memory", {})
    busy = cpu["count"] * cpu["percent"] / 100 if "count" in cpu and "percent" in cpu else None
    show(out, [found], False, "")
    out.print()
    facts = [
        ("since", ago(found.get("status_seconds"))),
        ("last heard", f"{ago(found.get('last_heard_seconds'))} ago" if "last_heard_seconds" in found else UNKNOWN),
        ("address", f"{clean(found.get('address'))} ({clean(found.get('hostname'))})"),
        ("system", " ".join(clean(found[word]) for word in ("os", "kernel", "arch") if found.get(word)) or UNKNOWN),
        ("processor", clean(cpu.get("model"))),
        (
            "measured",
            ", ".join(
                [
                    f"cores {count(busy)}/{count(cpu.get('count'))}",
                    f"load {count(cpu.get('load1'))}",
                    f"memory {gb_of(memory.get('used_bytes'), memory.get('total_bytes'))} GB",
                ]
            ),
        ),
        ("driver", clean(found.get("driver"))),
        ("agent", clean(found.get("agent_version"))),
        ("engines", ", ".join(_engine(engine) for engine in found["engines"]) if "engines" in found else UNKNOWN),
        ("labels", ", ".join(f"{k}={v}" for k, v in sorted((found.get("labels") or {}).items())) or "none"),
        ("replicas", ", ".join(found["replicas"]) or "none"),
    ]
    for name, words in facts:
        out.print(f"{name:11} {clean(words)}")
    if found["devices"]:
        out.print()
        table(
            [">DEVICE", "CLASS", "MEM USED", ">UTIL%", ">°C", ">WATTS", "CLAIMED BY", "why"],
            [_device(device) for device in found["devices"]],
            "",
            out,
        )


def _engine(engine: Node) -> str:
    return " ".join(clean(engine[word]) for word in ("name", "version", "state") if engine.get(word))


def _device(device: Node) -> Row:
    used, total = device.get("memory_used_bytes"), device.get("memory_bytes")
    foreign = device.get("foreign_processes") or []
    return Row(
        [
            device.get("index", device["uuid"]),
            device.get("device_class") or device.get("name"),
            gauge(used, total, gb_of(used, total), SMALL),
            count(device.get("utilization_percent")),
            count(device.get("temperature_celsius")),
            count(device.get("power_watts")),
            device.get("claimed_by", ""),
            f"not used: {device['excluded']}" if "excluded" in device else "",
        ],
        [f"other processes: {', '.join(foreign)}"] if foreign else [],
    )
