"""The request log and what was used (CLI-05)."""

from typing import TYPE_CHECKING, Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, segment
from llmgw.cli.options import api, example, output
from llmgw.cli.output import UNKNOWN, clean, console, count, moment, plain, say, short
from llmgw.cli.tables import Row, bar, share, table

if TYPE_CHECKING:
    from rich.console import Console

Item = dict[str, Any]

BY = ("key", "scope", "model", "day", "hour")
BAR = 16
MOST_CSV = 5000
"""Rows of one page, which is what a CSV holds."""

LATE = "Requests come here some seconds after they ended."

ROOMY = 110
"""Columns of a terminal from which on there is room for more figures."""


@click.command(
    epilog=example(
        "llmgw ctl requests", "llmgw ctl requests --failed --since 1h", "llmgw ctl requests --model qwen -o wide"
    )
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many.")
@click.option("--model", metavar="NAME", shell_complete=completion.models, help="Only to this model.")
@click.option("--key", metavar="ID", help="Only with this API key.")
@click.option("--scope", metavar="PATH", help="Only of this scope and all beneath it.")
@click.option(
    "--replica", metavar="ID", shell_complete=completion.replicas, help="Only those that this replica answered."
)
@click.option("--failed", is_flag=True, help="Only those that failed.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, whole and unrounded.")
@click.option("--since", metavar="WHEN", help="Only since then: a time ago such as 1h, or a moment.")
@click.option("--until", metavar="WHEN", help="Only until then.")
@output
@api
def requests(client: Client, form: str, limit: int, *, failed: bool, as_csv: bool, **query: Any) -> None:
    """Show the log of clients' requests, newest first: no prompts, only figures. Times are UTC.

    FIRST is the time to the first byte, TOOK to the last, in seconds; TOKENS are of the prompt and of the answer.
    """
    query["failed"] = "true" if failed else None
    if as_csv:
        click.echo(client.text("requests", "text/csv", format="csv", limit=min(limit, MOST_CSV), **query), nl=False)
        return
    answer = client.all("requests", "requests", limit, **query)
    if plain(answer, form):
        return
    wide = form == "wide"
    table(
        [
            *("TIME", ">STATUS", "MODEL", ">FIRST", ">TOOK", ">TOKENS", "request"),
            *(["key", "scope", "replica", "router"] if wide else []),
            "why",
        ],
        [
            Row(
                [
                    moment(entry["at"]),
                    _status(entry),
                    entry["model"],
                    _seconds(entry.get("first_byte_seconds")),
                    _seconds(entry.get("duration_seconds")),
                    f"{short(entry.get('prompt_tokens'))}/{short(entry.get('completion_tokens'))}",
                    entry["id"],
                    *([entry.get("key_name", entry["key"])] if wide else []),
                    *([entry.get(word, "") for word in ("scope", "replica", "router")] if wide else []),
                    "; ".join(_why(entry)),
                ]
            )
            for entry in answer["requests"]
        ],
        f"No request matches. {LATE}"
        if any(query.values())
        else f"No request has been logged. {LATE} Is the log on? llmgw ctl settings get requests.log",
        console(),
    )


def _status(entry: Item) -> str:
    status = entry.get("status")
    return clean(status) if status else UNKNOWN


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _whole(number: float | None) -> str:
    return f"{count(number)} token" + ("" if number == 1 else "s")


def _why(entry: Item) -> list[str]:
    words = [clean(entry["code"])] if entry.get("code") else []
    words += [f"tried before: {clean(reason)}" for reason in entry.get("retried") or ()]
    return words


@click.command(epilog=example("llmgw ctl request req-1a2b3c4d", "llmgw ctl request req-1a2b3c4d -o json"))
@click.argument("request_id", metavar="ID")
@output
@api
def request(client: Client, request_id: str, form: str) -> None:
    """Show one request: key, model, replica, timings, tokens, and what was tried before."""
    entry = client.get(f"requests/{segment(request_id)}", "id")
    if plain(entry, form):
        return
    asked = entry.get("asked")
    lines = [
        ("request", entry["id"]),
        ("began", f"{moment(entry['at'])} UTC"),
        ("model", f"{entry['model']} (asked for as {asked})" if asked and asked != entry["model"] else entry["model"]),
        ("status", _status(entry) + (f" {entry['code']}" if entry.get("code") else "")),
        ("key", " ".join(entry[word] for word in ("key", "key_name") if entry.get(word)) or UNKNOWN),
        ("scope", entry.get("scope") or "none"),
        ("replica", entry.get("replica") or "none answered"),
        ("router", entry.get("router")),
        ("stream", "yes" if entry.get("stream") else "no"),
        ("first byte", f"{_seconds(entry.get('first_byte_seconds'))} s"),
        ("took", f"{_seconds(entry.get('duration_seconds'))} s"),
        ("prompt", f"{_whole(entry.get('prompt_tokens'))}, {count(entry.get('cached_tokens'))} from the cache"),
        ("answer", _whole(entry.get("completion_tokens"))),
    ]
    for name, value in lines:
        say(f"{name:11} {clean(value)}")
    for number, reason in enumerate(entry.get("retried") or (), 1):
        say(f"try {number:<7} {clean(reason)}")


def _by(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """What to sum by: repeated, or separated by commas."""
    names = list(dict.fromkeys(name.strip() for value in values for name in value.split(",")))
    unknown = [name for name in names if name not in BY]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(BY)}")
    return names or ["model"]


@click.command(
    epilog=example(
        "llmgw ctl usage",
        "llmgw ctl usage --by day,model --since 7d",
        "llmgw ctl usage --by key --scope acme --csv > usage.csv",
    )
)
@click.option("--by", multiple=True, callback=_by, metavar="NAME", help=f"Sum by {', '.join(BY)}; default: model.")
@click.option("--since", metavar="WHEN", default="7d", show_default=True, help="A time ago, or a moment.")
@click.option("--until", metavar="WHEN", help="Until then. Default: now.")
@click.option("--key", metavar="ID", help="Only with this API key.")
@click.option("--scope", metavar="PATH", help="Only of this scope and all beneath it.")
@click.option("--model", metavar="NAME", shell_complete=completion.models, help="Only of this model.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, whole and unrounded.")
@output
@api
def usage(client: Client, form: str, by: list[str], as_csv: bool, **query: Any) -> None:
    """Show what was used: requests and tokens, with a bar for the share of all tokens.

    Requests whose engine did not count tokens are told as uncounted: their tokens are unknown, not zero.
    """
    asked = {"by": ",".join(by), **query}
    if as_csv:
        click.echo(client.text("usage", "text/csv", format="csv", **asked), nl=False)
        return
    answer = client.get("usage", "usage", **asked)
    if not plain(answer, form):
        show_usage(console(), answer["usage"], by, form == "wide")


def show_usage(out: "Console", rows: list[Item], by: list[str], wide: bool = False) -> None:
    """A table; by time in its order, else the most used first."""
    timed = [name for name in by if name in ("day", "hour")]
    if not timed:
        rows = sorted(rows, key=lambda row: -_tokens(row))
    uncounted = any(row.get("uncounted") for row in rows)
    wide = wide or out.width >= ROOMY
    largest = max((_tokens(row) for row in rows), default=0)
    table(
        [
            *(name.upper() for name in by),
            *(">REQUESTS", ">FAILED", ">PROMPT", ">ANSWER"),
            *([">CACHED"] if wide else []),
            *([">UNCOUNTED"] if uncounted else []),
            "TOKENS",
        ],
        [
            Row(
                [
                    *(_named(row, name) for name in by),
                    short(row["requests"]),
                    short(row["failed"]),
                    short(row["prompt_tokens"]),
                    short(row["completion_tokens"]),
                    *([short(row.get("cached_tokens"))] if wide else []),
                    *([short(row.get("uncounted"))] if uncounted else []),
                    f"{bar(share(_tokens(row), largest), BAR if wide else BAR // 2)} {short(_tokens(row))}",
                ]
            )
            for row in rows
        ],
        f"Nothing was used in that time. {LATE}",
        out,
    )


def _tokens(row: Item) -> float:
    return float(row["prompt_tokens"] + row["completion_tokens"])


def _named(row: Item, name: str) -> str:
    if name == "day":
        return moment(row["start"])[:10]
    if name == "hour":
        return moment(row["start"])[:16]
    if name == "key":
        return clean(row.get("key_name") or row.get("key") or "none")
    return clean(row.get(name) or "none")
