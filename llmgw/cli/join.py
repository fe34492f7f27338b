"""``llmgw join``: how a machine becomes a node or router of an installation (SEC-02)."""

import os
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import click

from llmgw.cli.credentials import loopback
from llmgw.cli.ctl.cert import in_words
from llmgw.cli.options import example
from llmgw.cli.output import as_yaml, clean, say

FOLDERS = {"node": "/var/lib/llmgw/agent/identity", "router": "/var/lib/llmgw/router/identity"}
"""Where the parts look unless their setting ``identity`` says otherwise."""

PORTS = {"node": 7001, "router": 7002}
"""Where control planes listen for them unless their settings say otherwise."""

LISTEN = "0.0.0.0:8080"
"""Where a router on a machine of its own serves clients; it listens on loopback unless its settings say so."""

MAX_TOKEN = 4096

_ORDER = "the order is llmgw join node|router HOST:PORT NAME"


class _Kind(click.Choice[str]):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            swapped = "are the arguments swapped? " if ":" in str(value) else ""
            self.fail(f"{error.message.rstrip('.')}: {swapped}{_ORDER}", param, ctx)


@click.command(
    epilog=example(
        "llmgw join node cp1.example.org:7003 gpu-7",
        "llmgw join node cp1.example.org:7003 gpu-7 --token-file - < token",
        "llmgw join router 192.0.2.7:7003 edge-1 --identity /srv/router/identity",
    )
)
@click.argument("kind", metavar="node|router", type=_Kind(("node", "router")))
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

    if ":" in name:
        raise click.UsageError(f"NAME {clean(name)!r} looks like an address, swapped with the name: {_ORDER}")
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
    settings = _settings(kind, name, where.host, folder)
    say(f"{out} holds the {given.identity}, serial {given.serial}. Start it: llmgw {service} --config FILE")
    reached = {
        "address": "; address is where routers reach this machine",
        "listen": "; listen is where clients reach it",
    }
    say(f"Its settings say at least this{''.join(words for key, words in reached.items() if key in settings)}:")
    click.echo(textwrap.indent(as_yaml(settings), "  "), nl=False)


def _settings(kind: str, name: str, control_plane: str, folder: str | None) -> dict[str, Any]:
    """What the part's settings must say: to come to this control plane, and others to it."""
    host = f"[{control_plane}]" if ":" in control_plane else control_plane
    settings: dict[str, Any] = {f"{kind}_id": name, "control_planes": [f"{host}:{PORTS[kind]}"]}
    if folder is not None:
        settings["identity"] = str(Path(folder).absolute())
    ours = _address_towards(control_plane)
    if not loopback(ours):
        settings |= {"address": ours} if kind == "node" else {"listen": LISTEN}
    return settings


def _address_towards(host: str) -> str:
    """Our own address on the way to ``host``, to which nothing is sent; our name if there is no telling."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, PORTS["node"], type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


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
