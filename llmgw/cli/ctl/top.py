"""``ctl top``: what uses most, as measured."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from llmgw.cli.client import Client
from llmgw.cli.ctl.nodes import LARGE, SMALL, WIDE_ENOUGH
from llmgw.cli.ctl.replicas import claimed, measured
from llmgw.cli.options import api, example, output, watch
from llmgw.cli.output import UNKNOWN, count, gb_of
from llmgw.cli.tables import gauge, share, table
from llmgw.cli.watch import AGES, view

if TYPE_CHECKING:
    from rich.console import Console

Item = dict[str, Any]
Use = dict[str, float | None]


@click.command(epilog=example("llmgw ctl top", "llmgw ctl top --by memory --limit 5 --watch"))
@click.option("--by", type=click.Choice(["cpu", "memory"]), default="cpu", show_default=True, help="What to sort by.")
@click.option("--limit", type=click.IntRange(1), default=15, show_default=True, help="Most nodes, and most replicas.")
@watch
@output
@api
def top(client: Client, by: str, limit: int, form: str, watch: float | None) -> None:
    """Show what uses most: nodes and replicas by measured use. "-" is unknown, and comes last."""

    def fetch() -> Item:
        return {
            "nodes": _busiest(client.all("nodes", "nodes")["nodes"], _node_use, by),
            "replicas": _busiest(client.all("replicas", "replicas", rejected="false")["replicas"], _replica_use, by),
        }

    view(form, watch, fetch, lambda out, answer: show_top(out, answer, limit), moves=AGES)


def _busiest(found: list[Item], use: Callable[[Item], Use], by: str) -> list[Item]:
    def key(item: Item) -> tuple[bool, float]:
        value = use(item)[by]
        return (value is None, -(value or 0.0))

    return sorted(found, key=key)


def _node_use(node: Item) -> Use:
    memory = node.get("memory", {})
    return {
        "cpu": node.get("cpu", {}).get("percent"),
        "memory": share(memory.get("used_bytes"), memory.get("total_bytes")),
    }


def _replica_use(replica: Item) -> Use:
    cores, memory = measured(replica)
    return {"cpu": cores, "memory": memory}


def show_top(out: "Console", answer: Item, limit: int) -> None:
    """Two tables, the busiest first."""
    large = LARGE if out.width >= WIDE_ENOUGH else SMALL * 2
    found, replicas = answer["nodes"], answer["replicas"]
    rows = []
    for node in found[:limit]:
        percent, memory = node.get("cpu", {}).get("percent"), node.get("memory", {})
        used, total = memory.get("used_bytes"), memory.get("total_bytes")
        rows.append(
            [
                node["id"],
                gauge(percent, 100, f"{count(percent)}%", large) if percent is not None else UNKNOWN,
                count(node.get("cpu", {}).get("load1")),
                gauge(used, total, gb_of(used, total), large),
                _gpu(node, large),
            ]
        )
    out.print("NODES (measured)", style="bold")
    table(["NODE", "CPU", ">LOAD", "MEM", "DEVICES BUSY"], rows, "No node is enrolled.", out)
    _rest(out, len(found) - limit, "nodes")
    out.print("\nREPLICAS (measured of claimed)", style="bold")
    table(
        ["REPLICA", "STATE", ">CORES", ">MEM", "where"],
        [
            [
                replica["id"],
                replica["state"],
                *_of_claimed(replica),
                ", ".join(shard["node"] for shard in replica["shards"]),
            ]
            for replica in replicas[:limit]
        ],
        "There are no replicas.",
        out,
    )
    _rest(out, len(replicas) - limit, "replicas")


def _of_claimed(replica: Item) -> list[str]:
    (cores, memory), (claimed_cores, claimed_memory) = measured(replica), claimed(replica)
    return [f"{count(cores)}/{count(claimed_cores)}", gb_of(memory, claimed_memory)]


def _rest(out: "Console", more: int, noun: str) -> None:
    if more > 0:
        out.print(f"… and {more} more {noun}: --limit N")


def _gpu(node: Item, width: int) -> str:
    busy = [device["utilization_percent"] for device in node["devices"] if "utilization_percent" in device]
    if not busy:
        return UNKNOWN if node["devices"] or "address" not in node else "none"
    mean = sum(busy) / len(busy)
    return gauge(mean, 100, f"{mean:.0f}% of {len(busy)}", width)
