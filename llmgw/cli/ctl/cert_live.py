"""Certificates as the control plane knows them, and refusing them (SEC-01, SEC-02)."""

from datetime import UTC, datetime
from typing import Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, segment
from llmgw.cli.options import api, confirm, example, output, yes
from llmgw.cli.output import clean, console, day, moment, plain, plural, say, utc
from llmgw.cli.tables import Row, table

KINDS = ("node", "router")


def _moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> datetime | None:
    try:
        given = None if value is None else datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no moment: write it as 2030-01-31T12:30:00Z") from error
    return given if given is None or given.tzinfo else given.replace(tzinfo=UTC)


@click.command(
    "list",
    epilog=example(
        "llmgw ctl cert list",
        "llmgw ctl cert list --revoked",
        "llmgw ctl cert list --issued-before 2030-01-31T12:30:00Z",
    ),
)
@click.option("--kind", type=click.Choice(KINDS), help="Only nodes, or only routers.")
@click.option("--revoked", is_flag=True, help="Only those that were revoked or removed.")
@click.option(
    "--issued-before",
    "before",
    metavar="MOMENT",
    callback=_moment,
    help="Only those issued before that and not revoked, as after a rotation; UTC unless it says otherwise.",
)
@output
@api
def list_certificates(client: Client, kind: str | None, revoked: bool, before: datetime | None, form: str) -> None:
    """List the newest certificate of every node and router, as the control plane knows it."""
    if revoked and before is not None:
        raise click.UsageError("--revoked and --issued-before exclude each other")
    answer = client.all("identities", "identities", kind=kind, revoked="true" if revoked else None)
    if before is not None:
        answer["identities"] = [row for row in answer["identities"] if _shows(row, before)]
    if plain(answer, form):
        return
    wide = form == "wide"
    table(
        ["KIND", "NAME", "STATE", "ISSUED", "EXPIRES", *(["serial", "enrolled", "by"] if wide else [])],
        [
            Row(
                [
                    row["kind"],
                    row["name"],
                    state(row),
                    moment(row.get("issued_at")),
                    moment(row.get("expires_at")),
                    *([row.get("serial"), day(row["enrolled_at"]), row["enrolled_by"]] if wide else []),
                ],
                notes(row),
            )
            for row in answer["identities"]
        ],
        "Nobody was revoked."
        if revoked
        else "Nobody has a certificate from before that."
        if before is not None
        else f"Nobody has joined. Let a {kind or 'node'} join: llmgw ctl {kind or 'node'}s add NAME",
        console(),
    )


@click.command("show", epilog=example("llmgw ctl cert show node gpu-7"))
@click.argument("kind", metavar="node|router", type=click.Choice(KINDS))
@click.argument("name", metavar="NAME", shell_complete=completion.identities)
@output
@api
def show(client: Client, kind: str, name: str, form: str) -> None:
    """Show the newest certificate of a node or router, and since when it belongs to the fleet."""
    row = client.get(f"identities/{kind}/{segment(name)}", "name")
    if plain(row, form):
        return
    say(f"{kind} {row['name']} is {state(row)}, enrolled {utc(row['enrolled_at'])} by {row['enrolled_by']}")
    if "serial" in row:
        say(f"certificate {row['serial']}, from {utc(row.get('issued_at'))} until {utc(row.get('expires_at'))}")
    for line in notes(row):
        say(line)


@click.command("revoke", epilog=example("llmgw ctl cert revoke node gpu-7 --reason 'the machine was stolen'"))
@click.argument("kind", metavar="node|router", type=click.Choice(KINDS))
@click.argument("name", metavar="NAME", shell_complete=completion.identities)
@click.option("--reason", default="", help="Why, for the audit and for who is refused.")
@click.option(
    "--unseen", is_flag=True, help="Also if it never connected: the authority may have given it a certificate."
)
@yes
@output
@api
def revoke(client: Client, kind: str, name: str, *, reason: str, unseen: bool, yes: bool, form: str) -> None:
    """Refuse every certificate that a node or router has, at once.

    Its connections end, join tokens for it are taken back, and it can come back only by joining anew. It stays in
    the fleet: engines that run on a node go on serving until it counts as lost. To take it out for good: llmgw ctl
    nodes remove.
    """
    confirm(f"Revoke the certificates of {kind} {name}?", yes)
    body = {"reason": reason, "unseen": unseen}
    answer = client.send("POST", f"identities/{kind}/{segment(name)}/revoke", "name", body)
    if not plain(answer, form):
        unused = len(answer.get("join_tokens_removed") or ())
        also = f", and {plural(unused, 'unused join token')} taken back" if unused else ""
        say(f"the certificates of {kind} {name} are refused{also}. It may join anew: llmgw ctl {kind}s add {name}")


def _shows(row: dict[str, Any], before: datetime) -> bool:
    """Whether it may still show a certificate that was issued before that moment."""
    issued = row.get("issued_at")
    return issued is not None and state(row) in ("good", "expired") and datetime.fromisoformat(issued) < before


def state(row: dict[str, Any]) -> str:
    """What a certificate is good for, in a word."""
    if "removed_at" in row:
        return "removed"
    if "revoked_at" in row and row.get("issued_at", "") <= row["revoked_at"]:
        return "revoked"
    expires = row.get("expires_at")
    if expires is None:
        return "never seen"
    return "expired" if datetime.fromisoformat(expires) <= datetime.now(UTC) else "good"


def notes(row: dict[str, Any]) -> list[str]:
    """Who took it back, and why."""
    if "revoked_at" not in row:
        return []
    why = f": {clean(row['reason'])}" if row.get("reason") else ""
    word = state(row) if state(row) in ("removed", "revoked") else "earlier ones revoked"
    return [f"{word} {utc(row['revoked_at'])} by {clean(row.get('revoked_by'))}{why}"]
