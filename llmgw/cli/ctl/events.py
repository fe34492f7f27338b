"""Events and the audit: what was decided and seen, and who changed what."""

import json
import time
from typing import TYPE_CHECKING, Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, Unreachable
from llmgw.cli.options import api, example, output
from llmgw.cli.output import as_json, as_yaml, clean, console, moment, plain
from llmgw.cli.sse import Sent
from llmgw.cli.tables import Row, below, table

if TYPE_CHECKING:
    from rich.console import Console

Event = dict[str, Any]

PAUSES = (1.0, 2.0, 5.0)
"""Seconds before the stream of events is asked for again."""


@click.command(
    epilog=example(
        "llmgw ctl events",
        "llmgw ctl events --model smollm2-135m --since 2h",
        "llmgw ctl events --watch",
    )
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many.")
@click.option("--model", metavar="NAME", shell_complete=completion.models, help="Only of this model.")
@click.option("--node", metavar="ID", shell_complete=completion.nodes, help="Only of this node.")
@click.option("--kind", metavar="WORD", help="Only of this kind, such as place or failed.")
@click.option("--since", metavar="WHEN", help="Only since then: a time ago such as 2h, or a moment.")
@click.option("-w", "--watch", is_flag=True, help="Then show each new one as it happens, until Ctrl-C.")
@output
@api
def events(client: Client, form: str, limit: int, since: str | None, watch: bool, **query: Any) -> None:
    """Show what was decided and seen of late, oldest first. Times are UTC."""
    answer = client.all("events", "events", limit, since=since, **query)
    if answer.get("incomplete"):
        click.echo(f"Not all events: {clean(answer['incomplete'])}", err=True)
    if not watch:
        if plain(answer, form):
            return
        told = any(query.values()) or since
        show(console(), answer["events"], "No event matches." if told else "Nothing has happened yet.")
        return
    known = list(reversed(answer["events"]))
    out = console()
    for event in known:
        _line(out, event, form)
    _follow(client, form, out, known[-1].get("id") if known else None, query)


def show(out: "Console", found: list[Event], none: str) -> None:
    """The table of events, oldest first."""
    table(
        ["TIME", "KIND", "SUBJECT", "why"],
        [Row([moment(event["at"]), event["kind"], _subject(event), event["reason"]]) for event in reversed(found)],
        none,
        out,
    )


def _subject(event: Event) -> str | None:
    return event.get("replica") or event.get("model") or event.get("node")


def _line(out: "Console", event: Event, form: str) -> None:
    """One event as it comes: widths of those to come are not known."""
    if form == "json":
        click.echo(as_json(event, None))
    elif form == "yaml":
        click.echo("---\n" + as_yaml(event), nl=False)
    else:
        head = f"{moment(event['at'])}  {clean(event['kind']):16}  {clean(_subject(event))}"
        reason = clean(event["reason"])
        if len(head) + 2 + len(reason) <= out.width:
            below(out, f"{head}  {reason}", 0)
        else:
            below(out, head, 0)
            below(out, reason)


def _follow(client: Client, form: str, out: "Console", last: str | None, query: dict[str, Any]) -> None:
    """Events as they happen; where the connection ends it goes on behind the last one."""
    failures = 0
    while True:
        try:
            for sent in client.events("events", last, watch="true", **query):
                failures = 0
                last = sent.last or last
                _sent(sent, form, out)
        except Unreachable as error:
            if not failures:
                click.echo(f"{error.message}; trying again", err=True)
            failures += 1
        time.sleep(PAUSES[min(failures, len(PAUSES) - 1)])


def _sent(sent: Sent, form: str, out: "Console") -> None:
    """One event of the stream, or what the control plane says about the stream itself."""
    try:
        body = json.loads(sent.data)
    except ValueError:
        return
    if not isinstance(body, dict):
        return
    if {"at", "kind", "reason"} <= body.keys():
        _line(out, body, form)
    elif sent.kind == "gap":
        click.echo("Some events were missed: llmgw ctl events shows them", err=True)


# ---------------------------------------------------------------- audit


@click.command(
    epilog=example(
        "llmgw ctl audit", "llmgw ctl audit --user ada --since 7d", "llmgw ctl audit --kind model --target qwen -o wide"
    )
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many.")
@click.option("--user", metavar="NAME", help="Only changes by this user.")
@click.option("--kind", metavar="WORD", help="Only changes of this kind of thing, such as model or key.")
@click.option("--target", metavar="NAME", help="Only changes of this one.")
@click.option("--since", metavar="WHEN", help="Only since then: a time ago such as 7d, or a moment.")
@click.option("--until", metavar="WHEN", help="Only until then.")
@output
@api
def audit(client: Client, form: str, limit: int, **query: Any) -> None:
    """Show who changed what, oldest first. -o wide shows before and after. Times are UTC."""
    answer = client.all("audit", "audit", limit, **query)
    if plain(answer, form):
        return
    table(
        ["TIME", "OPERATION", "target", "who", *(["KIND", "REQUEST", "change"] if form == "wide" else [])],
        [
            Row(
                [
                    moment(entry["at"]),
                    entry["operation"],
                    entry["target"],
                    entry["actor"],
                    *([entry["kind"], entry.get("request_id"), _change(entry)] if form == "wide" else []),
                ]
            )
            for entry in reversed(answer["audit"])
        ],
        "No change matches." if any(query.values()) else "Nothing has been changed yet.",
        console(),
    )


def _change(entry: Event) -> str:
    before, after = (
        UNSET if entry.get(word) is None else json.dumps(entry[word], ensure_ascii=False)
        for word in ("before", "after")
    )
    return f"{before} -> {after}"


UNSET = "nothing"
