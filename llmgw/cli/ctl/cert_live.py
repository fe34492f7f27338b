"""Certificates as the control plane knows them, and refusing them (SEC-01, SEC-02)."""

from datetime import UTC, datetime
from typing import Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, segment
from llmgw.cli.options import api, confirm, example, output, yes
from llmgw.cli.output import clean, console, day, moment, plain, say
from llmgw.cli.tables import Row, table

KINDS = ("node", "router")


@click.command(
    "list", epilog=example("llmgw ctl cert list", "llmgw ctl cert list --revoked", "llmgw ctl cert list -o wide")
)
@click.option("--kind", type=click.Choice(KINDS), help="Only nodes, or only routers.")
@click.option("--revoked", is_flag=True, help="Only those that were revoked or removed.")
@output
@api
def list_certificates(client: Client, kind: str | None, revoked: bool, form: str) -> None:
    """List the newest certificate of every node and router, as the control plane knows it."""
    answer = client.all("identities", "identities", kind=kind, revoked="true" if revoked else None)
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
        "Nobody was revoked." if revoked else "Nobody has joined. Let a node join: llmgw ctl nodes add NAME",
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
    say(f"{kind} {row['name']} is {state(row)}, enrolled {moment(row['enrolled_at'])} by {row['enrolled_by']}")
    if "serial" in row:
        issued, expires = moment(row.get("issued_at")), moment(row.get("expires_at"))
        say(f"certificate {row['serial']}, from {issued} until {expires}")
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

    Its connections end, and it can come back only by joining anew. It stays in the fleet: engines that run on a node
    go on serving until it counts as lost. To take it out for good: llmgw ctl nodes remove.
    """
    confirm(f"Revoke the certificates of {kind} {name}?", yes)
    body = {"reason": reason, "unseen": unseen}
    answer = client.send("POST", f"identities/{kind}/{segment(name)}/revoke", "name", body)
    if not plain(answer, form):
        say(f"the certificates of {kind} {name} are refused. It may join anew: llmgw ctl {kind}s add {name}")


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
    return [f"{word} {moment(row['revoked_at'])} by {clean(row.get('revoked_by'))}{why}"]
