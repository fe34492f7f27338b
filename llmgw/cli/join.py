"""``llmgw join``: how a machine becomes a node or router of an installation (SEC-02)."""

import os
import sys
from pathlib import Path

import click

from llmgw.cli.ctl.cert import in_words
from llmgw.cli.options import example
from llmgw.cli.output import clean, say

FOLDERS = {"node": "/var/lib/llmgw/agent/identity", "router": "/var/lib/llmgw/router/identity"}
"""Where the parts look unless their setting ``identity`` says otherwise."""

MAX_TOKEN = 4096


@click.command(
    epilog=example(
        "llmgw join node cp1.example.org:7003 gpu-7",
        "llmgw join node cp1.example.org:7003 gpu-7 --token-file - < token",
        "llmgw join router 192.0.2.7:7003 edge-1 --identity /srv/router/identity",
    )
)
@click.argument("kind", metavar="node|router", type=click.Choice(("node", "router")))
@click.argument("address", metavar="HOST:PORT")
@click.argument("name")
@click.option(
    "--identity",
    "folder",
    metavar="DIR",
    help=f"Folder to write. Default: {FOLDERS['node']} or {FOLDERS['router']}.",
)
@click.option(
    "--token-file", metavar="FILE|-", help="Where the token is; - is standard input. Default: it is asked for."
)
@click.option("--force", is_flag=True, help="Replace the identity that is there.")
def join(kind: str, address: str, name: str, *, folder: str | None, token_file: str | None, force: bool) -> None:
    """Get this machine its certificate, with a token of llmgw ctl nodes add or llmgw ctl routers add.

    HOST:PORT is the control plane's join.listen. The key is made here and stays here; the control
    plane is believed only if it is under the authority that the token names.
    """
    from llmgw.identity.folder import Folder  # noqa: PLC0415 - ssl, with the command
    from llmgw.identity.joining import join as ask  # noqa: PLC0415
    from llmgw.identity.joining import parse  # noqa: PLC0415
    from llmgw.identity.names import identity  # noqa: PLC0415
    from llmgw.runtime.kinds import parse_address  # noqa: PLC0415

    with in_words():
        who = identity(kind, name)
        try:
            where = parse_address(address)
        except ValueError as error:
            raise click.BadParameter(f"{address!r} {error}", param_hint="HOST:PORT") from error
        out = Path(folder or FOLDERS[kind])
        if Folder(out).exists() and not force:
            raise click.ClickException(f"{clean(out)} holds an identity already: use --force to replace it")
        _writable(out)
        token = parse(_token(token_file))
        given = ask(where, token, who, out)
    service = "agent" if kind == "node" else "router"
    say(f"{out} holds the {given.identity}, serial {given.serial}. Start it: llmgw {service} --config FILE")


def _writable(out: Path) -> None:
    """A token is good for once: find out beforehand. Raises ``ClickException``."""
    place = out
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise click.ClickException(f"{clean(place)} is no directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise click.ClickException(
            f"{clean(place)} cannot be written by this user: run it as root or as the service's user, or name another "
            "place with --identity"
        )


def _token(file: str | None) -> str:
    """The token; it is never an argument, which everybody on the machine could read."""
    if file is None and sys.stdin.isatty():
        return str(click.prompt("Join token", hide_input=True, err=True))
    if file is None or file == "-":
        return sys.stdin.read(MAX_TOKEN)
    try:
        with Path(file).open(encoding="ascii") as stream:
            return stream.read(MAX_TOKEN)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{clean(file)} holds no join token") from error
    except OSError as error:
        raise click.UsageError(f"cannot read {clean(file)}: {error.strerror or error}") from error
