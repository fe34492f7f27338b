"""Where the command finds its token for the admin API (SEC-03).

There is no option that takes a token itself: arguments are seen by everybody on the
machine. A token is sent over TLS, or to this machine; and the local one, which is the
control plane's own file, to this machine alone.
"""

import ipaddress
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

LOCAL = Path("/var/lib/llmgw/controlplane/admin.token")
"""Made by the control plane at its start, for its owner's eyes only."""

PERSONAL = ".config/llmgw/token"
MAX_TOKEN = 4096

WAYS = (
    "give one with --token-file FILE, LLMGW_TOKEN_FILE or LLMGW_TOKEN, or put it into ~/.config/llmgw/token; on the "
    f"control plane's own machine, use its file: --token-file STATE_DIR/admin.token (root finds {LOCAL} by itself)"
)


class Credential(NamedTuple):
    """A token, and where it came from in words. An empty token: there is none."""

    token: str
    origin: str

    def __repr__(self) -> str:
        return f"Credential({self.origin})"


def loopback(host: str | None) -> bool:
    """Whether the name or address is this machine."""
    if host is None:
        return False
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find(token_file: str | None, url: str, *, quiet: bool = False) -> Credential:
    """The token to send to ``url``; ``quiet``: without a warning that others can read
    its file. Raises ``UsageError`` if the one that was named
    cannot be used."""
    parts = urlsplit(url)
    here = loopback(parts.hostname)
    found = _named(token_file, quiet) or (_local(quiet) if here else None) or Credential("", "")
    if found.token and parts.scheme != "https" and not here:
        raise click.UsageError(
            f"the token of {found.origin} is not sent to {url}, where everybody on the way could read it: "
            "use an https:// address"
        )
    return found


def _named(token_file: str | None, quiet: bool) -> Credential | None:
    environment = os.environ
    if token_file:
        return _read(Path(token_file), "--token-file", quiet)
    if environment.get("LLMGW_TOKEN_FILE"):
        return _read(Path(environment["LLMGW_TOKEN_FILE"]), "LLMGW_TOKEN_FILE", quiet)
    if environment.get("LLMGW_TOKEN"):
        return Credential(_checked(environment["LLMGW_TOKEN"], "LLMGW_TOKEN"), "LLMGW_TOKEN")
    home = environment.get("HOME")
    file = Path(home) / PERSONAL if home else None
    return _read(file, str(file), quiet) if file is not None and _there(file) else None


def _local(quiet: bool) -> Credential | None:
    return _read(LOCAL, str(LOCAL), quiet) if os.access(LOCAL, os.R_OK) else None


def _there(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:
        return False


def _read(file: Path, named: str, quiet: bool) -> Credential:
    origin = named if named == str(file) else f"{named} ({file})"
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(MAX_TOKEN + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read the token of {origin}: {error.strerror or error}") from error
    if stat.S_ISREG(mode) and mode & 0o077 and not quiet:
        click.echo(f"Warning: {file} can be read by others; close it with: chmod 600 {file}", err=True)
    return Credential(_checked(content.decode("latin-1"), origin), origin)


def _checked(text: str, origin: str) -> str:
    token = text.strip()
    if not re.fullmatch(rf"[\x21-\x7e]{{1,{MAX_TOKEN}}}", token):
        raise click.UsageError(f"{origin} holds no token: one line such as adm-llmgw-… is expected")
    return token
