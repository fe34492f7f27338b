"""Who may connect: the tokens of nodes and routers, until certificates replace them."""

import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgw.runtime.settings import Fault, SettingsError, read_yaml

MIN_TOKEN = 16
MAX_TOKEN = 4096
_ABSENT = "-" * 32


@dataclass(frozen=True)
class FleetTokens:
    """Tokens by node id and by router id. Shows neither in its ``repr``."""

    nodes: dict[str, str] = field(default_factory=dict, repr=False)
    routers: dict[str, str] = field(default_factory=dict, repr=False)

    def node(self, node_id: str, token: str) -> bool:
        """Whether this is the node's token, in constant time."""
        return _matches(self.nodes.get(node_id), token)

    def router(self, router_id: str, token: str) -> bool:
        """Whether this is the router's token, in constant time."""
        return _matches(self.routers.get(router_id), token)


def _matches(known: str | None, given: str) -> bool:
    same = hmac.compare_digest((known or _ABSENT).encode(), given.encode("utf-8", "surrogateescape"))
    return same and known is not None


def load_tokens(file: Path) -> FleetTokens:
    """Read the file of ``nodes:`` and ``routers:``.

    Raises ``SettingsError`` with all faults; no message holds a token.
    """
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise SettingsError(
            str(file), [Fault("", f"cannot be read: {error.strerror} (setting fleet_tokens)")]
        ) from error
    if mode & 0o077:
        raise SettingsError(str(file), [Fault("", f"holds secrets and can be read by others: run chmod 600 {file}")])
    tree = read_yaml(file)
    faults = [Fault(name, "is not known here; the sections are nodes and routers") for name in tree.keys() - _SECTIONS]
    nodes, routers = (_section(tree.get(name), name, faults) for name in ("nodes", "routers"))
    if faults:
        raise SettingsError(str(file), faults)
    return FleetTokens(nodes, routers)


_SECTIONS = {"nodes", "routers"}


def _section(tree: Any, name: str, faults: list[Fault]) -> dict[str, str]:
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        faults.append(Fault(name, "must be a mapping of ids to tokens"))
        return {}
    tokens: dict[str, str] = {}
    owners: dict[str, str] = {}
    for key, token in tree.items():
        place = f"{name}.{key}"
        if not isinstance(key, str) or not valid_id(key):
            faults.append(
                Fault(place, "an id is 1 to 253 letters, digits, dots, dashes and underscores (quote numbers)")
            )
        elif not isinstance(token, str) or not MIN_TOKEN <= len(token) <= MAX_TOKEN or not _plain(token):
            faults.append(
                Fault(place, f"a token is text of at least {MIN_TOKEN} printable ASCII characters, no spaces")
            )
        elif token in owners:
            faults.append(Fault(place, f"has the same token as {owners[token]}: give each its own"))
        else:
            tokens[key] = token
            owners[token] = place
    return tokens


def valid_id(name: str) -> bool:
    """Whether ``name`` can be a node's or router's id."""
    return 0 < len(name) <= 253 and name.isascii() and all(c.isalnum() or c in "._-" for c in name)


def _plain(token: str) -> bool:
    return token.isascii() and token.isprintable() and " " not in token
