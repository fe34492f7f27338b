"""``llmgw ctl cert``: the private authority and what it issued (SEC-01, SEC-08).

``init``, ``issue``, ``sign`` and ``renew`` work on the authority's folder, on the machine
that holds it; they ask no control plane.
"""

import contextlib
import ipaddress
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmgw.cli.groups import Group
from llmgw.cli.options import example
from llmgw.cli.output import clean, plural, say
from llmgw.runtime.clock import utc

if TYPE_CHECKING:
    from llmgw.identity.authority import Facts
    from llmgw.identity.root_folder import Retired, RootFolder

Command = TypeVar("Command", bound=Callable[..., Any])

OF_ROOT = Path("/etc/llmgw/authority")
PERSONAL = ".config/llmgw/authority"
MAX_DAYS = 3650

KINDS = ("controlplane", "node", "router")


def default_authority() -> Path:
    """Where the authority is kept unless it is said: for root on the machine, else at home."""
    home = os.environ.get("HOME")
    return OF_ROOT if os.geteuid() == 0 or not home else Path(home) / PERSONAL


def authority_option(command: Command) -> Command:
    """``--authority``: the command gets an ``office``."""
    return click.option(
        "--authority",
        "office",
        metavar="DIR",
        envvar="LLMGW_AUTHORITY",
        callback=_office,
        help=f"Folder of the authority. Default: LLMGW_AUTHORITY, or {OF_ROOT} (of others than root: ~/{PERSONAL}).",
    )(command)


def _office(_context: click.Context, _parameter: click.Parameter, value: str | None) -> "RootFolder":
    from llmgw.identity.root_folder import RootFolder  # noqa: PLC0415 - large

    return RootFolder(Path(value) if value else default_authority())


def _days(command: Command) -> Command:
    return click.option(
        "--days", type=click.IntRange(1, MAX_DAYS), default=30, show_default=True, help="Life of the certificate."
    )(command)


_kind = click.argument("kind", metavar="|".join(KINDS), type=click.Choice(KINDS))
_force = click.option("--force", is_flag=True, help="Replace what is there.")


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """What goes wrong with certificates and their files, for people."""
    from llmgw.identity.names import IdentityError  # noqa: PLC0415 - with the command
    from llmgw.runtime.faults import SettingsError  # noqa: PLC0415

    try:
        yield
    except IdentityError as error:
        raise click.ClickException(clean(error)) from error
    except SettingsError as error:
        raise click.ClickException("; ".join(clean(fault) for fault in error.faults)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        what = "is no directory" if isinstance(error, FileExistsError) else error.strerror or error
        raise click.ClickException(f"{clean(where)}{clean(what)}") from error


LIVE = {
    "list": ("llmgw.cli.ctl.cert_live", "list_certificates"),
    "show": ("llmgw.cli.ctl.cert_live", "show"),
    "revoke": ("llmgw.cli.ctl.cert_live", "revoke"),
}
"""Commands that ask the control plane: the rest must do without one."""


@click.group(
    cls=Group,
    lazy=LIVE,
    epilog=example("llmgw ctl cert init", "llmgw ctl cert issue controlplane cp1 --san cp1.example.org --out cp1"),
)
def cert() -> None:
    """Certificates of control planes, nodes and routers, and the authority that signs them."""


@cert.command(epilog=example("llmgw ctl cert init", "llmgw ctl cert init --rotate", "llmgw ctl cert init --retire"))
@click.option("--name", default="llmgw authority", show_default=True, help="What people call it.")
@click.option("--rotate", is_flag=True, help="Make a new root beside the old; both are trusted until --retire.")
@click.option("--retire", is_flag=True, help="Trust the newest root alone.")
@click.option("--force", is_flag=True, help="Throw the root that is there away: every certificate of it is void.")
@authority_option
def init(office: "RootFolder", name: str, rotate: bool, retire: bool, force: bool) -> None:
    """Make the root of this installation, for ten years.

    Its key can sign anything: keep the folder on one machine that serves nobody, with a copy offline.
    """
    if rotate + retire + force > 1:
        raise click.UsageError("--rotate, --retire and --force exclude each other")
    with in_words():
        if retire:
            _say_retired(office, office.retire())
        elif rotate:
            facts = office.rotate(name)
            say(f"A new root, {facts.subject}, until {utc(facts.expires_at)}; the old one is trusted too.")
            say("Next, for each control plane:\n  llmgw ctl cert renew DIR")
            say("When all nodes and routers have new certificates:\n  llmgw ctl cert init --retire")
        else:
            facts = office.init(name, replace=force)
            say(f"The root {facts.subject} is in {office.path}, until {utc(facts.expires_at)}.")
            say("Next, for each control plane:\n  llmgw ctl cert issue controlplane NAME --san HOST --out DIR")


@cert.command(
    epilog=example(
        "llmgw ctl cert issue controlplane cp1 --san cp1.example.org --san 192.0.2.7 --out cp1",
        "llmgw ctl cert issue node gpu-7 --out gpu-7",
    )
)
@_kind
@click.argument("name")
@click.option("--out", required=True, metavar="DIR", help="Folder to write, for the setting identity of that part.")
@click.option(
    "--san",
    "sans",
    multiple=True,
    metavar="HOST|IP",
    help="A name or bare address at which a control plane is asked; may be repeated. localhost, 127.0.0.1 and ::1 "
    "are always in it.",
)
@_days
@_force
@authority_option
def issue(
    office: "RootFolder", kind: str, name: str, *, out: str, sans: tuple[str, ...], days: int, force: bool
) -> None:
    """Write the whole folder of an identity: key, certificate, and whom it trusts.

    A control plane's also holds an authority of its own, with which it signs joins and renewals.
    A node or router is better joined (llmgw join): then its key never leaves it.
    """
    from llmgw.identity.names import identity  # noqa: PLC0415 - with the command

    if sans and kind != "controlplane":
        raise click.UsageError("--san is for control planes: nodes and routers are asked by nobody")
    with in_words():
        who = identity(kind, name)
        dns = [san for san in sans if not _is_address(san)]
        ips = [san for san in sans if _is_address(san)]
        facts = office.issue(who, Path(out), dns=dns, ips=ips, lifetime=timedelta(days=days), replace=force)
        told = _holds(out, facts)
    say(f"{told}. Move it there by a safe way.")


@cert.command(
    epilog=example(
        "llmgw ctl cert sign gpu-7.csr node gpu-7 > certificate.pem",
        "llmgw ctl cert sign gpu-7.csr node gpu-7 --out certificate.pem",
    )
)
@click.argument("csr", metavar="CSR", type=click.Path(allow_dash=True))
@_kind
@click.argument("name")
@click.option("--out", metavar="FILE", help="File to write. Default: standard output.")
@_days
@_force
@authority_option
def sign(office: "RootFolder", csr: str, kind: str, name: str, *, out: str | None, days: int, force: bool) -> None:
    """Sign a request for a key that was made elsewhere; CSR is a file in PEM, or - for standard input.

    Only its key counts, which must be on the curve P-256 or P-384: who it is, you say.
    """
    from llmgw.identity.authority import MAX_REQUEST  # noqa: PLC0415 - large
    from llmgw.identity.names import identity  # noqa: PLC0415
    from llmgw.identity.pair import read_limited  # noqa: PLC0415
    from llmgw.runtime.files import write_atomic  # noqa: PLC0415

    with in_words():
        who = identity(kind, name)
        if out and Path(out).exists() and not force:
            raise click.ClickException(f"{clean(out)} is there already: use --force to replace it")
        text = sys.stdin.buffer.read(MAX_REQUEST + 1) if csr == "-" else read_limited(Path(csr), MAX_REQUEST)
        chain, facts = office.sign(text, who, lifetime=timedelta(days=days))
        if out:
            write_atomic(Path(out), chain, 0o644)
    if not out:
        click.echo(chain.decode("ascii"), nl=False)
    click.echo(clean(f"The {who}, serial {facts.serial}, until {utc(facts.expires_at)}."), err=True)


@cert.command(
    epilog=example("llmgw ctl cert renew /var/lib/llmgw/controlplane/identity", "llmgw ctl cert renew cp1 --days 90")
)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@_days
@click.option("--force", is_flag=True, help="Also one of another authority: it becomes ours.")
@authority_option
def renew(office: "RootFolder", directory: str, days: int, force: bool) -> None:
    """Give the folder of an identity a new key, a new certificate and the present authorities.

    Also if it has expired. A control plane's gets a new issuer too. A running part takes it up by itself, without a
    restart.
    """
    from llmgw.identity import pem  # noqa: PLC0415 - with the command
    from llmgw.identity.folder import Folder  # noqa: PLC0415

    with in_words():
        facts = office.renew(Path(directory), lifetime=timedelta(days=days), replace=force)
        told = _holds(directory, facts)
        roots = len(pem.split(Folder(Path(directory)).roots()))
    say(f"{told}." + (f" It trusts {roots} roots, until llmgw ctl cert init --retire." if roots > 1 else ""))


def _holds(directory: str, facts: "Facts") -> str:
    """What is new in the folder of an identity. Raises ``SettingsError``."""
    from llmgw.identity import authority  # noqa: PLC0415 - large
    from llmgw.identity.folder import Folder  # noqa: PLC0415

    words = f"{directory} holds the {facts.identity}, serial {facts.serial}, until {utc(facts.expires_at)}"
    if facts.identity is None or facts.identity.kind != "controlplane":
        return words
    issuer = authority.facts(Folder(Path(directory)).signer()[0])
    return f"{words}, with a new issuer that signs joins and renewals until {utc(issuer.expires_at)}"


def _say_retired(office: "RootFolder", retired: "Retired") -> None:
    """Also who would be refused once control planes have the root alone."""
    say(f"{plural(retired.dropped, 'older root')} dropped from {office.authorities}.")
    for name in retired.behind:
        say(f"The control plane {name} still signs under an older root: renew its folder first, unless it is gone.")
    moment = datetime.fromtimestamp(retired.since, UTC)
    say(
        "Who of the nodes and routers still has a certificate under an older root, only a control plane knows. They "
        "must come back before the next step, or join anew after it. If a control plane had its new folder only later, "
        "name that moment:\n"
        f"  llmgw ctl cert list --issued-before {moment:%Y-%m-%dT%H:%M:%SZ}"
    )
    say("Next, for each control plane:\n  llmgw ctl cert renew DIR")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
