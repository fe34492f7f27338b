"""Replicas and their shards, and replacing them."""

from typing import TYPE_CHECKING, Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, segment
from llmgw.cli.options import api, confirm, example, output, watch, yes
from llmgw.cli.output import UNKNOWN, ago, clean, count, gb, listed, plain, plural, say
from llmgw.cli.tables import Row, below, table
from llmgw.cli.watch import view

if TYPE_CHECKING:
    from rich.console import Console

Replica = dict[str, Any]


@click.command(
    epilog=example("llmgw ctl replicas", "llmgw ctl replicas --model smollm2-135m -o wide", "llmgw ctl replicas -w")
)
@click.option(
    "--model", metavar="NAME", shell_complete=completion.models, help="Only replicas of this model; an alias will do."
)
@click.option("--node", metavar="ID", shell_complete=completion.nodes, help="Only replicas on this node.")
@click.option("--state", metavar="WORD", help="Only replicas in this state, such as failed.")
@watch
@output
@api
def replicas(
    client: Client, *, model: str | None, node: str | None, state: str | None, form: str, watch: float | None
) -> None:
    """List replicas: state, age, where they run, and why they are so."""
    query: dict[str, Any] = {"model": model, "node": node, "state": state}
    none = "No replica matches." if any(query.values()) else "There are no replicas. What should run: llmgw ctl models"
    if form in ("table", "wide"):
        query["rejected"] = "false"  # nothing of it is shown, and it is most of the answer
    view(
        form,
        watch,
        lambda: client.all("replicas", "replicas", **query),
        lambda out, answer: show(out, answer["replicas"], form == "wide", none),
    )


def show(out: "Console", found: list[Replica], wide: bool, none: str) -> None:
    """The table of replicas."""
    table(
        [
            "REPLICA",
            "STATE",
            ">FOR",
            ">AGE",
            "where",
            *(["profile", "ENGINE", ">PID", ">CORES", ">MEM"] if wide else []),
            "why",
        ],
        [
            Row(
                [
                    replica["id"],
                    _state(replica),
                    ago(replica.get("state_seconds")),
                    ago(replica.get("age_seconds")),
                    where(replica),
                    *(_more(replica) if wide else []),
                    "; ".join(_why(replica, wide)),
                ]
            )
            for replica in found
        ],
        none,
        out,
    )


def _state(replica: Replica) -> str:
    words = [str(replica["state"])]
    if replica.get("stale"):
        words.append("stale")
    if replica.get("restart"):
        words.append(f"restart {replica['restart']}")
    return " ".join(words)


def where(replica: Replica) -> str:
    """Nodes and ports of its shards; the leader's is first."""
    return listed([f"{shard['node']}:{shard.get('port', UNKNOWN)}" for shard in replica["shards"]], 8)


def _why(replica: Replica, wide: bool) -> list[str]:
    """What is not as it should be; ``wide``: also why what is right is so."""
    words = [clean(replica.get("reason", "")) if wide or replica["state"] != "ready" else ""]
    if replica.get("restart"):
        by = f" by {clean(replica['replacement'])}" if replica.get("replacement") else ""
        words.append(f"restart {clean(replica['restart'])}{by}: {clean(replica.get('restart_asked', UNKNOWN))}")
    elif replica.get("stale"):
        words.append(f"{clean(replica.get('stale_because', UNKNOWN))}: llmgw ctl restart --stale")
    several = len(replica["shards"]) > 1
    for shard in replica["shards"]:
        said = []
        if shard.get("detail"):
            said.append(clean(shard["detail"]))
        if "exit" in shard:
            code, message = clean(shard["exit"]["code"]), clean(shard["exit"].get("message", ""))
            if message in words[0]:
                words[0] += "" if f"({code})" in words[0] else f" ({code})"
            else:
                said.append(f"{message} ({code})" if message else code)
        words += [f"{shard['node']}: {text}" if several else text for text in said]
    return [word for word in words if word]


def total(values: list[float | None]) -> float | None:
    """The sum of what is known; unknown if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def measured(replica: Replica) -> tuple[float | None, float | None]:
    """Cores and bytes that a replica was seen to use."""
    shards = replica["shards"]
    return (
        total([shard.get("used_cores") for shard in shards]),
        total([shard.get("used_memory_bytes") for shard in shards]),
    )


def claimed(replica: Replica) -> tuple[float | None, float | None]:
    """Cores and bytes that a replica claims."""
    shards = replica["shards"]
    return total([shard.get("cpu_cores") for shard in shards]), total([shard.get("memory_bytes") for shard in shards])


def _more(replica: Replica) -> list[Any]:
    shards = replica["shards"]
    (used_cores, used_memory), (cores, memory) = measured(replica), claimed(replica)
    return [
        replica["profile"],
        ", ".join(dict.fromkeys(shard["engine"] for shard in shards)),
        ", ".join(str(shard.get("pid", UNKNOWN)) for shard in shards),
        f"{count(used_cores)}/{count(cores)}",
        f"{gb(used_memory)}/{gb(memory)}",
    ]


@click.command(epilog=example("llmgw ctl replica smollm2-135m-df3a0bf1", "llmgw ctl replica qwen-1a2b3c4d --watch"))
@click.argument("replica", shell_complete=completion.replicas)
@watch
@output
@api
def replica(client: Client, replica: str, form: str, watch: float | None) -> None:
    """Show a replica: its shards, what they claim and use, and the last words of those that ended."""
    view(form, watch, lambda: client.get(f"replicas/{segment(replica)}", "shards"), show_one)


def show_one(out: "Console", found: Replica) -> None:
    """Everything that is known about a replica."""
    show(out, [found], True, "")
    out.print()
    table(
        [">RANK", "NODE", "PHASE", ">FOR", "address", ">CORES", ">MEM", "devices", "why"],
        [
            Row(
                [
                    shard["rank"],
                    shard["node"],
                    shard["phase"],
                    ago(shard.get("phase_seconds")),
                    f"{clean(shard.get('host'))}:{shard.get('port', UNKNOWN)}",
                    f"{count(shard.get('used_cores'))}/{count(shard.get('cpu_cores'))}",
                    f"{gb(shard.get('used_memory_bytes'))}/{gb(shard.get('memory_bytes'))}",
                    listed(shard.get("devices") or [], 8) if shard.get("devices") else "",
                    "adopted" if shard.get("adopted") else "",
                ],
                [f"| {line}" for line in shard.get("exit", {}).get("tail") or ()],
            )
            for shard in found["shards"]
        ],
        "It has no shards.",
        out,
    )
    for candidate in found["rejected"]:
        for reason in candidate["reasons"]:
            below(out, f"not on {clean(candidate['node'])}: {clean(reason['message'])} ({clean(reason['code'])})", 0)


@click.command(
    epilog=example(
        "llmgw ctl restart smollm2-135m-df3a0bf1",
        "llmgw ctl restart --model smollm2-135m",
        "llmgw ctl restart --stale",
        "llmgw ctl restart --all --yes",
    )
)
@click.argument("replica", nargs=-1, shell_complete=completion.replicas)
@click.option("--model", metavar="NAME", shell_complete=completion.models, help="Every replica of this model.")
@click.option("--stale", is_flag=True, help="Every replica that runs an older profile or engine key.")
@click.option("--all", "everything", is_flag=True, help="Every replica there is; asks first.")
@click.option("--reason", default="", help="Why; it is told with each replica.")
@click.option("--in-place", is_flag=True, help="Stop the old one first, where there is no room for two.")
@yes
@output
@api
def restart(
    client: Client,
    replica: tuple[str, ...],
    *,
    model: str | None,
    stale: bool,
    everything: bool,
    in_place: bool,
    reason: str,
    yes: bool,
    form: str,
) -> None:
    """Replace replicas one by one: each serves until the new one is ready."""
    if sum((bool(replica), model is not None, stale, everything)) != 1:
        raise click.UsageError("name replicas, or one of --model NAME, --stale, --all")
    if everything:
        confirm("Replace every replica of every model?", yes)
    chosen: dict[str, Any] = {"replicas": list(replica)} if replica else {"model": model} if model is not None else {}
    chosen |= {"stale": True} if stale else {"all": True} if everything else {}
    answer = client.send("POST", "replicas/restart", "queued", {**chosen, "in_place": in_place, "reason": reason})
    if plain(answer, form):
        return
    queued = [entry["id"] for entry in answer["queued"]]
    how = "each is stopped first" if in_place else "each serves until its replacement is ready"
    say(
        f"{plural(len(queued), 'replica')} queued ({listed(queued)}): {how}. See: llmgw ctl replicas --watch; "
        "what was given up, and why: llmgw ctl events --kind restart-given-up"
        if queued
        else "There is nothing to restart."
    )
