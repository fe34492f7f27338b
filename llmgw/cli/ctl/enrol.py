"""Joining the fleet and leaving it: nodes, routers, and the tokens they join with (SEC-02, REC-13)."""

from typing import Any
from urllib.parse import urlsplit

import click

from llmgw.cli import completion
from llmgw.cli.changes import hand_over, shown_once, take_away
from llmgw.cli.client import Client, segment
from llmgw.cli.credentials import loopback
from llmgw.cli.ctl.cert_live import notes, state
from llmgw.cli.groups import Group
from llmgw.cli.options import api, confirm, example, output, with_list, yes
from llmgw.cli.output import console, day, moment, plain, say, utc
from llmgw.cli.tables import Row, table

WILDCARD = ("0.0.0.0", "::")  # noqa: S104 - addresses that are read, not bound


def adding(kind: str) -> click.Command:
    """The command that lets a node or router join."""

    @click.command("add", epilog=example(f"llmgw ctl {kind}s add {kind}-7"))
    @click.argument("name", metavar="NAME")
    @output
    @api
    def add(client: Client, name: str, form: str) -> None:
        body = {"kind": kind, "name": name}
        made = client.send("POST", "join-tokens", "id", body)
        secret = shown_once(made, "token", "llmgw ctl join-tokens remove")
        if plain(made, form):
            return
        address, note = _reachable(str(made.get("join", "")), client.url)
        hand_over(
            f"A token for {kind} {name}, good once, within 15 minutes. On that machine run\n"
            f"  llmgw join {kind} {address} {name}\n"
            f"{note}and give it this token when it asks.",
            secret,
        )

    add.help = (
        f"Let a {kind} join: print a token with which it gets its certificate.\n\n"
        "The token alone goes to standard output, so that it can be captured; the command to run goes with it."
    )
    return add


def removing(kind: str, completes: Any) -> click.Command:
    """The command that takes a node or router out of the fleet."""

    @click.command("remove", epilog=example(f"llmgw ctl {kind}s remove {kind}-7"))
    @click.argument("name", metavar="NAME", shell_complete=completes)
    @yes
    @output
    @api
    def remove(client: Client, name: str, yes: bool, form: str) -> None:
        runs = "; what runs there is placed elsewhere" if kind == "node" else ""
        confirm(f"Remove the {kind} {name}? Its certificate is refused until it joins anew{runs}.", yes)
        words = f"{name} is removed. It may come back with a token: llmgw ctl {kind}s add {name}"
        take_away(client, f"identities/{kind}/{segment(name)}", form, words, kind=kind, name=name)

    more = " What runs there is placed elsewhere." if kind == "node" else ""
    remove.help = f"Take a {kind} out of the fleet: its certificate is refused until it joins anew.{more}"
    return remove


def _reachable(address: str, url: str) -> tuple[str, str]:
    """The address to join at, and a line on what has to be said of it."""
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    if bare in WILDCARD:
        asked = urlsplit(url).hostname or ""
        if loopback(asked):
            return (
                f"CONTROL-PLANE:{port}",
                "(CONTROL-PLANE stands for a name or address of the control plane's machine)\n",
            )
        return f"{f'[{asked}]' if ':' in asked else asked}:{port}", ""
    if loopback(bare):
        return address, "(which only this machine reaches: the setting join.listen is a loopback address)\n"
    return address, ""


@click.group(
    cls=Group, invoke_without_command=True, epilog=example("llmgw ctl routers", "llmgw ctl routers add edge-1")
)
@output
@api
def routers(client: Client, form: str) -> None:
    """List routers: those that may speak to the control plane, and the processes that report."""
    answer = client.all("identities", "identities", kind="router")
    answer["identities"] = [row for row in answer["identities"] if "removed_at" not in row]
    reporting: dict[str, list[dict[str, Any]]] = {}
    for process in client.get("status", "routers")["routers"]:
        reporting.setdefault(process["id"], []).append(process)
    for row in answer["identities"]:
        row["processes"] = reporting.get(row["name"], [])
    if plain({"routers": answer["identities"]}, form):
        return
    table(
        ["ROUTER", "CERTIFICATE", ">PROCESSES", "VERSION", "EXPIRES", *(["enrolled", "by"] if form == "wide" else [])],
        [
            Row(
                [
                    row["name"],
                    state(row),
                    len(row["processes"]),
                    ", ".join(sorted({process["version"] for process in row["processes"]})),
                    day(row.get("expires_at")),
                    *([day(row["enrolled_at"]), row["enrolled_by"]] if form == "wide" else []),
                ],
                notes(row),
            )
            for row in answer["identities"]
        ],
        "There is no router. Let one join: llmgw ctl routers add NAME",
        console(),
    )


with_list(routers)
routers.add_command(adding("router"))
routers.add_command(removing("router", completion.routers))


# ---------------------------------------------------------------- tokens


@click.group(cls=Group, invoke_without_command=True, epilog=example("llmgw ctl join-tokens"))
@output
@api
def join_tokens(client: Client, form: str) -> None:
    """List the tokens that nodes and routers may join with, or joined with of late."""
    answer = client.all("join-tokens", "join_tokens")
    if plain(answer, form):
        return
    table(
        ["ID", "KIND", "NAME", "STATE", "EXPIRES", "used from", *(["created", "by"] if form == "wide" else [])],
        [
            [
                each["id"],
                each["kind"],
                each["name"],
                each["state"],
                moment(each["expires_at"]),
                each.get("used_from", ""),
                *([moment(each["created_at"]), each["created_by"]] if form == "wide" else []),
            ]
            for each in answer["join_tokens"]
        ],
        "There are no join tokens. Make one: llmgw ctl nodes add NAME",
        console(),
    )


with_list(join_tokens)


@join_tokens.command("show", epilog=example("llmgw ctl join-tokens show 1a2b3c4d5e6f"))
@click.argument("token_id", metavar="ID", shell_complete=completion.join_tokens)
@output
@api
def show_token(client: Client, token_id: str, form: str) -> None:
    """Show whether a join token was used, and from where."""
    found = client.get(f"join-tokens/{segment(token_id)}", "id")
    if plain(found, form):
        return
    used = f", from {found['used_from']} at {utc(found['used_at'])}" if "used_at" in found else ""
    say(f"{found['id']} for {found['kind']} {found['name']} is {found['state']}{used}")
    say(f"made {utc(found['created_at'])} by {found['created_by']}, good until {utc(found['expires_at'])}")


@join_tokens.command("remove", epilog=example("llmgw ctl join-tokens remove 1a2b3c4d5e6f"))
@click.argument("token_id", metavar="ID", shell_complete=completion.join_tokens)
@output
@api
def remove_token(client: Client, token_id: str, form: str) -> None:
    """Take a join token back: nobody can join with it any more."""
    take_away(client, f"join-tokens/{segment(token_id)}", form, f"{token_id} is removed", id=token_id)
