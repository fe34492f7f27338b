"""Replicas and their shards."""

from typing import Any

import click

from llmgw.cli.client import Client
from llmgw.cli.options import api, example, output
from llmgw.cli.output import ago, gb, plain, table

Replica = dict[str, Any]


def _where(replica: Replica) -> str:
    return ", ".join(f"{shard['node']}:{shard['port']}" for shard in replica["shards"])


def _why(replica: Replica) -> str:
    words = [replica.get("reason", "")]
    for shard in replica["shards"]:
        if shard.get("detail"):
            words.append(shard["detail"])
        if "exit" in shard:
            code, message = shard["exit"]["code"], shard["exit"].get("message", "")
            words.append(code if message in words[0] else f"{code}: {message}")
    if replica.get("stale"):
        words.append("stale profile")
    return "; ".join(word for word in words if word)


@click.command(epilog=example("llmgw ctl replicas", "llmgw ctl replicas --model smollm2-135m -o wide"))
@click.option("--model", metavar="NAME", help="Only replicas of this model.")
@click.option("--node", metavar="ID", help="Only replicas on this node.")
@output
@api
def replicas(client: Client, model: str | None, node: str | None, form: str) -> None:
    """List replicas: state, age, where they run, and why they are so."""
    answer = client.get("replicas", "replicas", model=model, node=node)
    if plain(answer, form):
        return
    wide = form == "wide"
    table(
        [
            "REPLICA",
            "STATE",
            "FOR",
            "AGE",
            "WHERE",
            "why",
            *(["PROFILE", "ENGINE", "PID", "CORES", "MEM"] if wide else []),
        ],
        [
            [
                replica["id"],
                replica["state"],
                ago(replica.get("state_seconds")),
                ago(replica.get("age_seconds")),
                _where(replica),
                _why(replica),
                *(_more(replica) if wide else []),
            ]
            for replica in answer["replicas"]
        ],
        "There are no replicas.",
    )


def _more(replica: Replica) -> list[Any]:
    shards = replica["shards"]
    return [
        replica["profile"],
        ", ".join(dict.fromkeys(shard["engine"] for shard in shards)),
        ", ".join(str(shard.get("pid", "-")) for shard in shards),
        ", ".join(str(shard.get("cpu_cores", "-")) for shard in shards),
        ", ".join(gb(shard.get("memory_bytes")) for shard in shards),
    ]
