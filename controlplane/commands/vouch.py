"""Who the parts of one machine are: ``llmgw init`` makes an authority and their identities (CLI-04, SEC-01)."""

import ipaddress
import socket
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from controlplane.commands.shared import say
from controlplane.commands.site import WILDCARDS, Site
from llmgw.identity import authority
from llmgw.identity.folder import Folder
from llmgw.identity.names import Identity, IdentityError
from llmgw.identity.root_folder import RootFolder
from llmgw.runtime.settings import Fault, SettingsError


def lacking(site: Site) -> dict[Path, Identity]:
    """Who has no identity yet, by folder. Raises ``SettingsError`` if another authority is needed for them."""
    missing = {path: who for path, who in site.identities.items() if not Folder(path).exists()}
    if 0 < len(missing) < len(site.identities) and not RootFolder(site.authority).exists():
        raise SettingsError(str(site.authority), [Fault("", _elsewhere(site, missing.values()))])
    return missing


def vouch(site: Site) -> None:
    """Make what is missing, keep what is there, and say what is wrong with that. Raises
    ``SettingsError`` or ``OSError``."""
    root = RootFolder(site.authority)
    missing = lacking(site)
    try:
        if missing and not root.exists():
            root.init(f"llmgw {site.answers.node}")
            say(f"made an authority in {root.path}")
        dns, ips = _names(site)
        for path, who in site.identities.items():
            if path not in missing:
                say(f"the identity of the {who} is there already")
                continue
            serves = who.kind == "controlplane"
            root.issue(who, path, dns=dns if serves else (), ips=ips if serves else ())
            say(f"made the identity of the {who} in {path}")
    except IdentityError as error:
        raise SettingsError(str(root.path), [Fault("", str(error))]) from error
    for fault in _faults(site):
        say(f"  {fault}")


def _elsewhere(site: Site, missing: Collection[Identity]) -> str:
    there = ", ".join(str(path) for path in site.identities if Folder(path).exists())
    return (
        f"there is no authority here, and another has made {there}; {' and '.join(map(str, missing))} cannot be made "
        "without it: bring its folder here, make them with llmgw ctl cert issue where it is, or do without llmgw init, "
        "as docs/howto/certificates.md tells"
    )


def _names(site: Site) -> tuple[list[str], list[str]]:
    """As what clients that compare the name that they asked for with the certificate may
    reach the control plane: its listeners' addresses, or this machine's name for those
    that listen everywhere."""
    dns: list[str] = []
    ips: list[str] = []
    for host in dict.fromkeys(address.host for address in site.served()):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            dns.append(host)
        else:
            (dns if host in WILDCARDS else ips).append(socket.gethostname() if host in WILDCARDS else host)
    return list(dict.fromkeys(dns)), ips


def _faults(site: Site) -> list[Fault]:
    """What keeps the identities, some of which may have been there, from working together."""
    found = []
    folders = {path: (Folder(path), who) for path, who in site.identities.items()}
    for folder, who in folders.values():
        found += folder.check(kind=who.kind, name=who.name, needs_issuer=who.kind == "controlplane")
    if found:
        return found
    now = datetime.now(UTC)
    server, *clients = (folder for folder, _ in folders.values())
    for one, other in ((one, other) for client in clients for one, other in ((client, server), (server, client))):
        try:
            authority.anchor(one.chain(), other.roots(), now)
        except IdentityError as error:
            found.append(Fault(str(other.authorities), f"does not hold the authority of {one.certificate}: {error}"))
    return found
