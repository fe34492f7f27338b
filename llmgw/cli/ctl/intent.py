"""What people want of nodes and domains: cordons, labels, holds."""

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, segment
from llmgw.cli.ctl.nodes import OURS, PLACES, location
from llmgw.cli.options import api, example, output
from llmgw.cli.output import console, listed, moment, plain, plural, say
from llmgw.cli.tables import Row, table


@click.command(epilog=example('llmgw ctl cordon node-3 --reason "fan is failing"'))
@click.argument("node", shell_complete=completion.nodes)
@click.option("--reason", default="", help="Why; shown wherever the node is turned down.")
@output
@api
def cordon(client: Client, node: str, reason: str, form: str) -> None:
    """Place nothing new on a node. What runs there goes on."""
    answer = client.send("POST", f"nodes/{segment(node)}/cordon", "id", {"reason": reason})
    if not plain(answer, form):
        say(f"{answer['id']} is cordoned; {plural(len(answer['replicas']), 'replica')} there now")


@click.command(epilog=example("llmgw ctl uncordon node-3"))
@click.argument("node", shell_complete=completion.nodes)
@output
@api
def uncordon(client: Client, node: str, form: str) -> None:
    """Let new replicas on a node again."""
    answer = client.send("POST", f"nodes/{segment(node)}/uncordon", "id")
    if not plain(answer, form):
        say(f"{answer['id']} takes new replicas: no cordon is on it")


@click.command(
    epilog=example(
        "llmgw ctl label node-3",
        "llmgw ctl label node-3 llmgw.io/rack=r12 tier=gold",
        "llmgw ctl label node-3 tier-",
    )
)
@click.argument("node", shell_complete=completion.nodes)
@click.argument("labels", nargs=-1, metavar="[NAME=VALUE | NAME-]...")
@click.option("--replace", is_flag=True, help="Take away every label that is not named here.")
@output
@api
def label(client: Client, node: str, labels: tuple[str, ...], replace: bool, form: str) -> None:
    """Show or change a node's labels. NAME- takes one away.

    Labels given here lie over the agent's own and stay when it registers again.
    """
    path = f"nodes/{segment(node)}/labels"
    changes = _changes(labels)
    if replace:
        if any(value is None for value in changes.values()):
            raise click.UsageError("--replace takes away all others anyway: leave NAME- out")
        answer = client.send("PUT", path, "labels", {"labels": changes})
    elif changes:
        answer = client.send("PATCH", path, "labels", {"labels": changes})
    else:
        answer = client.get(path, "labels")
    if plain(answer, form):
        return
    shown = ", ".join(f"{name}={value}" for name, value in sorted(answer["labels"].items()))
    say(f"{node}: {shown or 'no labels. Set one: llmgw ctl label ' + node + ' NAME=VALUE'}")
    if location(answer):
        say(f"it is at {location(answer)}")
    for name in sorted(set(changes) & set(PLACES)):
        click.echo(f"Note: {name} is a label of your own. Where a node is, says {OURS}{name}", err=True)


def _changes(words: tuple[str, ...]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            changes[name] = value
        elif word.endswith("-"):
            changes[word[:-1]] = None
        else:
            raise click.UsageError(f"{word!r} is neither NAME=VALUE nor NAME-")
    return changes


# ---------------------------------------------------------------- holds


@click.command(epilog=example("llmgw ctl holds", "llmgw ctl holds rack=r12 -o wide"))
@click.argument("domain", required=False)
@output
@api
def holds(client: Client, domain: str | None, form: str) -> None:
    """List the domains in which nothing new is placed, or show the hold on one."""
    one = None if domain is None else client.get(f"holds/{segment(domain)}", "domain")
    answer = client.all("holds", "holds") if one is None else {"holds": [one]}
    if plain(one or answer, form):
        return
    table(
        ["DOMAIN", ">NODES", "SINCE", "reason", "by"],
        [
            Row(
                [hold["domain"], len(hold.get("nodes", [])), moment(hold["at"]), hold["reason"], hold["actor"]],
                [listed(hold["nodes"], 12)] if form == "wide" and hold.get("nodes") else [],
            )
            for hold in answer["holds"]
        ],
        "Nothing is held. Hold a rack: llmgw ctl hold rack=r12 --reason WHY",
        console(),
    )


@click.command(epilog=example('llmgw ctl hold rack=r12 --reason "power work"'))
@click.argument("domain")
@click.option("--reason", default="", help="Why; shown wherever its nodes are turned down.")
@output
@api
def hold(client: Client, domain: str, reason: str, form: str) -> None:
    """Place nothing new in a domain, a label and its value such as rack=r12. What runs there goes on."""
    answer = client.send("PUT", f"holds/{segment(domain)}", "domain", {"reason": reason})
    if not plain(answer, form):
        inside = answer.get("nodes", [])
        say(
            f"{answer['domain']} is held: {plural(len(inside), 'node')} in it"
            + (f" ({listed(inside)})" if inside else "")
        )
        if not inside:
            say("No node carries that label now. Labels: llmgw ctl label NODE; one node alone: llmgw ctl cordon NODE")


@click.command(epilog=example("llmgw ctl release rack=r12"))
@click.argument("domain", shell_complete=completion.holds)
@output
@api
def release(client: Client, domain: str, form: str) -> None:
    """Let new replicas into a domain again."""
    answer = client.send("DELETE", f"holds/{segment(domain)}", "")
    if not plain(answer, form):
        say(f"{answer.get('domain', domain)} is held no longer")
