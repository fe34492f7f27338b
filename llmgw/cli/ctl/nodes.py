"""Nodes: list, cordon, uncordon."""

from typing import Any

import click

from llmgw.cli.client import Client, segment
from llmgw.cli.options import api, example, output
from llmgw.cli.output import UNKNOWN, ago, count, gb, plain, plural, table

Node = dict[str, Any]


def _devices(node: Node) -> str:
    """Devices by class: claimed of total, and those left out with their reason."""
    classes: dict[str, list[int]] = {}
    left_out = []
    for device in node["devices"]:
        figures = classes.setdefault(device.get("device_class") or device.get("name") or "unknown", [0, 0])
        figures[0] += "claimed_by" in device
        figures[1] += 1
        if "excluded" in device:
            left_out.append(f"{device.get('index', device['uuid'])} not used: {device['excluded']}")
    shown = [f"{name} {claimed}/{total}" for name, (claimed, total) in sorted(classes.items())]
    if not shown and "address" in node:
        shown = ["none"]
    return "; ".join([*shown, *left_out]) or UNKNOWN


def _engines(node: Node) -> str:
    if "engines" not in node:
        return UNKNOWN
    words = []
    for engine in node["engines"]:
        state = "" if engine["state"] == "ready" else f" ({engine['state']}: {engine.get('detail') or 'no detail'})"
        words.append(engine["name"] + state)
    return ", ".join(words) or "none"


def _status(node: Node) -> str:
    return f"{node['status']} cordoned" if "cordon" in node else str(node["status"])


def _memory(node: Node) -> str:
    memory = node.get("memory", {})
    return f"{gb(memory.get('claimed_bytes'))}/{gb(memory.get('total_bytes'))}"


def _cores(node: Node) -> str:
    cpu = node.get("cpu", {})
    return f"{count(cpu.get('claimed_cores'))}/{count(cpu.get('count'))}"


@click.command(epilog=example("llmgw ctl nodes", "llmgw ctl nodes -o wide"))
@output
@api
def nodes(client: Client, form: str) -> None:
    """List nodes: status, claims of what they have, devices, engines.

    CORES and MEM are claimed of total (GB); "-" is unknown.
    """
    answer = client.get("nodes", "nodes")
    if plain(answer, form):
        return
    wide = form == "wide"
    table(
        [
            *("NODE", "STATUS", "SINCE", "CORES", "MEM", "devices", "engines", "REPLICAS"),
            *(["CPU%", "LOAD", "MEM USED", "ADDRESS", "AGENT", "labels", "cordon", "notes"] if wide else []),
        ],
        [
            [
                node["id"],
                _status(node),
                ago(node.get("status_seconds")),
                _cores(node),
                _memory(node),
                _devices(node),
                _engines(node),
                len(node["replicas"]),
                *(_more(node) if wide else []),
            ]
            for node in answer["nodes"]
        ],
        "No node is enrolled. Add its token to the control plane's fleet_tokens and send it SIGHUP.",
    )


def _more(node: Node) -> list[Any]:
    cordon = node.get("cordon")
    return [
        count(node.get("cpu", {}).get("percent")),
        count(node.get("cpu", {}).get("load1")),
        gb(node.get("memory", {}).get("used_bytes")),
        node.get("address"),
        node.get("agent_version"),
        ", ".join(f"{name}={value}" for name, value in sorted(node.get("labels", {}).items())),
        f"{cordon['reason']} ({cordon['actor']}, {cordon['at']})" if cordon else "",
        "; ".join(node.get("notes", [])),
    ]


@click.command(epilog=example('llmgw ctl cordon node-3 --reason "fan is failing"'))
@click.argument("node")
@click.option("--reason", default="", help="Why; shown wherever the node is turned down.")
@output
@api
def cordon(client: Client, node: str, reason: str, form: str) -> None:
    """Place nothing new on a node. What runs there goes on."""
    answer = client.send("POST", f"nodes/{segment(node)}/cordon", "id", {"reason": reason})
    if not plain(answer, form):
        click.echo(f"{answer['id']} is cordoned; {plural(len(answer['replicas']), 'replica')} there now")


@click.command(epilog=example("llmgw ctl uncordon node-3"))
@click.argument("node")
@output
@api
def uncordon(client: Client, node: str, form: str) -> None:
    """Let new replicas on a node again."""
    answer = client.send("POST", f"nodes/{segment(node)}/uncordon", "id")
    if not plain(answer, form):
        click.echo(f"{answer['id']} takes new replicas: no cordon is on it")
