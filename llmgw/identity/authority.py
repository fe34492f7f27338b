"""The private authority: keys, certificates and what they say (SEC-01).

Everything is PEM in bytes, and moments are passed in. Keys are on the curve P-256. It
loads ``cryptography``, ten megabytes, so import it where something is signed. Blocking
for under a millisecond each.

A root that replaces another is also certified by that other: the *bridge*, which goes
along in every chain. Whoever trusts the old root alone believes the new one by it, so
that the order in which parts learn of the new root does not matter (SEC-08).
"""

import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from llmgw.identity import pem
from llmgw.identity.names import BACKDATED, SCHEME, Identity, IdentityError, parse_uri

LIFETIME = timedelta(days=30)
ISSUER_LIFETIME = timedelta(days=730)
ROOT_LIFETIME = timedelta(days=3650)

MAX_REQUEST = 16 * 1024
"""Longest certificate signing request, in bytes."""

MAX_ADDRESSES = 64
"""So many names and addresses go into a certificate."""

_COMMON_NAME = 64
"""Longest common name that X.509 allows, in characters."""

_CURVES = (ec.SECP256R1, ec.SECP384R1)

_HOST = re.compile(r"(?=.{1,253}\Z)(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*")

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a certificate says. ``serial`` is upper-case hex; moments are Unix time in
    seconds; ``identity`` is ``None`` for an authority."""

    identity: Identity | None
    serial: str
    issued_at: float
    expires_at: float
    subject: str
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()


def new_key() -> bytes:
    """A new private key."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def new_root(name: str, key: bytes, now: datetime) -> bytes:
    """A root that signs itself. Its subject is unique, so that two roots of one name are
    never taken for each other."""
    private = _private(key)
    subject = _unique(name)
    until = _second(now) + ROOT_LIFETIME
    return _made(subject, subject, private.public_key(), private, now=now, until=until, extensions=_authority(None))


def bridge(root: bytes, old_root: bytes, old_key: bytes, now: datetime) -> bytes:
    """``root`` as certified by ``old_root``: see the module. Raises ``IdentityError``."""
    new, (old, signer) = _first(root), _signer(old_root, old_key, now)
    until = min(old.not_valid_after_utc, new.not_valid_after_utc)
    return _made(new.subject, old.subject, _public(new), signer, now=now, until=until, extensions=_authority(1))


def new_issuer(
    name: str, key: bytes, root: bytes, root_key: bytes, now: datetime, *, lifetime: timedelta = ISSUER_LIFETIME
) -> bytes:
    """The chain of an authority under the root that signs leaves only. ``root`` may be
    followed by its bridge. Raises ``IdentityError`` if the root is not valid now."""
    parent, signer = _signer(root, root_key, now)
    until = min(_second(now) + lifetime, parent.not_valid_after_utc)
    public = _private(key).public_key()
    made = _made(_unique(name), parent.subject, public, signer, now=now, until=until, extensions=_authority(0))
    return made + _intermediates(root)


def request(identity: Identity, key: bytes) -> bytes:
    """A signing request of the holder of ``key``."""
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)])
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_common(identity.name))
        .add_extension(names, critical=False)
        .sign(_private(key), hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def sign(
    csr: bytes,
    identity: Identity,
    signer_cert: bytes,
    signer_key: bytes,
    now: datetime,
    *,
    lifetime: timedelta = LIFETIME,
    dns: Sequence[str] = (),
    ips: Sequence[str] = (),
) -> bytes:
    """The chain of a new certificate: the leaf, then what lies between it and the root.

    Of the request only the key counts, which it must prove to have: who it is, the caller
    says. It never outlives its signer. Raises ``IdentityError``.
    """
    public = check_request(csr)
    parent, signer = _signer(signer_cert, signer_key, now)
    if lifetime <= timedelta(0):
        raise IdentityError("a certificate must live longer than nothing")
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.kind == "controlplane":
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    until = min(_second(now) + lifetime, parent.not_valid_after_utc)
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage(purposes), False),
        (x509.SubjectAlternativeName(_names(identity, dns, ips)), False),
    ]
    subject = _common(identity.name)
    leaf = _made(subject, parent.subject, public, signer, now=now, until=until, extensions=extensions)
    return leaf + _intermediates(signer_cert)


def check_request(csr: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a signing request that proves to have it. Raises ``IdentityError``."""
    if len(csr) > MAX_REQUEST:
        raise IdentityError(f"the signing request is longer than {MAX_REQUEST // 1024} KiB")
    try:
        asked = x509.load_pem_x509_csr(csr)
        public = asked.public_key()
    except Exception as error:  # the parser has many ways to say no; all of them mean this
        raise IdentityError("the signing request cannot be read: it must be a PKCS #10 request in PEM") from error
    # The kind of key first: the proof of a huge one would take us seconds to verify.
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, _CURVES):
        raise IdentityError("the signing request's key must be on the curve P-256 or P-384")
    if not _proved(asked):
        raise IdentityError("the signing request's signature is wrong: whoever made it does not have the key")
    return public


def facts(text: bytes) -> Facts:
    """What the first certificate of a PEM text says; nothing is verified. Raises
    ``IdentityError``."""
    return _facts(_first(text))


def anchor(chain: bytes, authorities: bytes, now: datetime) -> bytes:
    """DER of the root, one of ``authorities``, that the chain's first certificate leads to.
    Raises ``IdentityError`` with what is wrong on the way: each certificate must be signed
    by the next and valid now. What purpose they may serve is TLS's to judge."""
    roots = _all(authorities)
    current, *rest = _all(chain)
    for _ in range(pem.MAX_CERTIFICATES):
        _valid(current, now)
        root = next((root for root in roots if _issued(current, root)), None)
        if root is not None:
            _valid(root, now)
            return root.public_bytes(serialization.Encoding.DER)
        parent = next((other for other in rest if _issued(current, other)), None)
        if parent is None:
            raise IdentityError(
                f"{_words(current)} is signed by {_text(current.issuer)!r}, which is none of the authorities"
            )
        rest.remove(parent)
        current = parent
    raise IdentityError("the chain of certificates has no end")


def same_key(certificate: bytes, key: bytes) -> bool:
    """Whether the first certificate is for this private key. Raises ``IdentityError`` if
    either cannot be read."""
    return bool(_first(certificate).public_key() == _private(key).public_key())


def _facts(certificate: x509.Certificate) -> Facts:
    names = _extension(certificate, x509.SubjectAlternativeName)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names else []
    ours = [uri for uri in uris if uri.startswith(f"{SCHEME}:")]
    return Facts(
        parse_uri(ours[0]) if len(ours) == 1 else None,
        pem.hex_serial(certificate.serial_number),
        certificate.not_valid_before_utc.timestamp() + BACKDATED,
        certificate.not_valid_after_utc.timestamp(),
        _text(certificate.subject),
        tuple(names.get_values_for_type(x509.DNSName)) if names else (),
        tuple(str(address) for address in names.get_values_for_type(x509.IPAddress)) if names else (),
    )


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _made(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    now: datetime,
    until: datetime,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> bytes:
    """The signed certificate, with the key identifiers that strict verifiers demand."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_second(now) - timedelta(seconds=BACKDATED))
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _authority(path_length: int | None) -> list[tuple[x509.ExtensionType, bool]]:
    """What makes an authority; ``path_length`` authorities may stand below it."""
    return [
        (x509.BasicConstraints(ca=True, path_length=path_length), True),
        (_usage(key_cert_sign=True, crl_sign=True), True),
    ]


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _public(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise IdentityError(f"{_words(certificate)} has a key that is not on an elliptic curve")
    return public


def _private(key: bytes) -> ec.EllipticCurvePrivateKey:
    """Raises ``IdentityError``; what it says never holds anything of the key."""
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise IdentityError("holds no private key in PEM without a password") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, _CURVES):
        raise IdentityError("the private key must be on the curve P-256 or P-384")
    return private


def _signer(text: bytes, key: bytes, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """An authority that may sign now, and its key. Raises ``IdentityError``."""
    parent, private = _first(text), _private(key)
    constraints = _extension(parent, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        raise IdentityError(f"{_words(parent)} is no authority: it cannot sign certificates")
    if parent.public_key() != private.public_key():
        raise IdentityError(f"the key is not that of {_words(parent)}")
    _valid(parent, now)
    return parent, private


def _valid(certificate: x509.Certificate, now: datetime) -> None:
    if now >= certificate.not_valid_after_utc:
        raise IdentityError(f"{_words(certificate)} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if now < certificate.not_valid_before_utc:
        raise IdentityError(
            f"{_words(certificate)} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: "
            "is the clock of this machine right?"
        )


def _issued(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    constraints = _extension(by, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def _proved(asked: x509.CertificateSigningRequest) -> bool:
    try:
        return asked.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        return False


def _all(text: bytes) -> list[x509.Certificate]:
    try:
        return [_loaded(der) for der in pem.split(text)]
    except IdentityError:
        raise
    except Exception as error:  # the parser has many ways to say no; all of them mean this
        raise IdentityError("holds a certificate that cannot be read") from error


def _loaded(der: bytes) -> x509.Certificate:
    """A certificate of which every part that counts here can be read: they are parsed when
    they are asked for, and a damaged one must not be found out in the middle of something."""
    certificate = x509.load_der_x509_certificate(der)
    certificate.public_key()
    for part in (certificate.extensions, certificate.subject, certificate.issuer):
        tuple(part)
    _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc, certificate.signature_hash_algorithm
    return certificate


def _first(text: bytes) -> x509.Certificate:
    return _all(text)[0]


def _intermediates(signer: bytes) -> bytes:
    """What goes along below a leaf: a root does not, whoever trusts it has it."""
    return b"".join(
        certificate.public_bytes(serialization.Encoding.PEM)
        for certificate in _all(signer)
        if certificate.subject != certificate.issuer
    )


def _names(identity: Identity, dns: Sequence[str], ips: Sequence[str]) -> list[x509.GeneralName]:
    if len(dns) + len(ips) > MAX_ADDRESSES:
        raise IdentityError(f"more than {MAX_ADDRESSES} names and addresses are too many for a certificate")
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    for name in dict.fromkeys(dns):
        if not _HOST.fullmatch(name):
            raise IdentityError(f"{name[:64]!r} is no host name that a certificate can hold")
        names.append(x509.DNSName(name))
    for address in dict.fromkeys(ips):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError as error:
            raise IdentityError(f"{address[:64]!r} is no IP address") from error
    return names


def _unique(name: str) -> x509.Name:
    return _common(f"{name[: _COMMON_NAME - 9]} {secrets.token_hex(4)}")


def _common(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_COMMON_NAME])])


def _text(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value)[:_COMMON_NAME] if found else name.rfc4514_string()[:200]


def _words(certificate: x509.Certificate) -> str:
    return f"the certificate of {_text(certificate.subject)!r}"


def _second(now: datetime) -> datetime:
    """Certificates know whole seconds."""
    return now.astimezone(UTC).replace(microsecond=0)
