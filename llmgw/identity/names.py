"""The identity that a certificate of ours carries, and what a peer's certificate says. Pure.

An identity is a kind and a name, such as the node ``gpu-7``. It stands in the
certificate's subject alternative names as the URI ``llmgw:node:gpu-7`` and nowhere else:
the common name is for people.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["node", "router", "controlplane"]

KINDS: tuple[Kind, ...] = ("node", "router", "controlplane")

SCHEME = "llmgw"

BACKDATED = 300.0
"""Seconds by which each certificate we sign is valid before it was made, so that a peer
whose clock is a little behind takes it. Its issue is its ``not before`` plus this."""

MAX_NAME = 253

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")


class IdentityError(Exception):
    """No identity, or one that cannot be read; the message says what is wrong."""


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """Who a certificate says its holder is."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def uri(self) -> str:
        """As it stands in a certificate."""
        return f"{SCHEME}:{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Presented:
    """A peer's certificate, as its verified connection showed it. ``serial`` is upper-case
    hex; moments are Unix time in seconds; ``issuer`` is the common name of who signed it."""

    identity: Identity
    serial: str
    issued_at: float
    expires_at: float
    issuer: str = field(default="", compare=False)


def valid_name(name: str) -> bool:
    """Whether a node, router or control plane may be called that: 1 to 253 letters, digits,
    dots, dashes and underscores, the first a letter or digit."""
    return _NAME.fullmatch(name) is not None


def identity(kind: str, name: str) -> Identity:
    """Raises ``IdentityError`` if there is no such kind or the name will not do."""
    if kind not in KINDS:
        raise IdentityError(f"{kind[:64]!r} is no kind of identity: it must be one of {', '.join(KINDS)}")
    if not valid_name(name):
        raise IdentityError(f"{name[:64]!r} must be 1 to 253 letters, digits, dots, dashes or underscores")
    return Identity(kind, name)


def parse_uri(uri: str) -> Identity:
    """The identity of a URI. Raises ``IdentityError``."""
    scheme, _, rest = uri.partition(":")
    kind, _, name = rest.partition(":")
    if scheme != SCHEME:
        raise IdentityError(f"{uri[:64]!r} does not begin with {SCHEME}:")
    return identity(kind, name)


def of_peer(certificate: Mapping[str, Any] | None, moment: Callable[[str], float]) -> Presented:
    """What a peer presented, from ``SSLSocket.getpeercert()``; ``moment`` reads its dates
    (``ssl.cert_time_to_seconds``). Raises ``IdentityError``."""
    if not certificate:
        raise IdentityError("the peer showed no certificate")
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    ours = [uri for uri in uris if uri.startswith(f"{SCHEME}:")]
    if len(ours) != 1:
        raise IdentityError(f"the peer's certificate must name one identity of llmgw, and names {len(ours)}")
    return Presented(
        parse_uri(ours[0]),
        str(certificate.get("serialNumber", "")),
        moment(certificate["notBefore"]) + BACKDATED,
        moment(certificate["notAfter"]),
        next((value for part in certificate.get("issuer", ()) for kind, value in part if kind == "commonName"), ""),
    )
