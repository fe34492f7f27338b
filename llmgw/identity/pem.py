"""Certificates as text: bundles, their digests, and what a certificate of ours says. Pure.

It reads what our own files hold without a library for cryptography, which an agent or a
router would carry in memory for nothing. It verifies nothing: TLS does (``tls``), and
``authority`` does before anything is signed.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from llmgw.identity.names import BACKDATED, SCHEME, IdentityError, Presented, parse_uri

MAX_BUNDLE = 256 * 1024
"""Longest text that is read as certificates, in bytes."""

MAX_CERTIFICATES = 32

_BEGIN = b"-----BEGIN CERTIFICATE-----"
_BLOCK = re.compile(_BEGIN + rb"([A-Za-z0-9+/=\s]{1,65536})-----END CERTIFICATE-----")
_DAMAGED = "holds a certificate that is cut off or damaged"

_SEQUENCE, _INTEGER, _OID, _OCTETS, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0x02, 0x06, 0x04, 0x17, 0x18
_VERSION, _EXTENSIONS, _URI = 0xA0, 0xA3, 0x86
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")
_COMMON_NAME = bytes.fromhex("550403")


def split(text: bytes) -> list[bytes]:
    """The certificates of a PEM text, as DER, in their order. Raises ``IdentityError`` if
    there is none, one is cut off, or the text is no such thing."""
    if len(text) > MAX_BUNDLE:
        raise IdentityError(f"holds more than {MAX_BUNDLE // 1024} KiB: that is no file of certificates")
    found = _BLOCK.findall(text)
    if text.count(_BEGIN) != len(found) or text.count(b"-----BEGIN") != text.count(b"-----END"):
        raise IdentityError(_DAMAGED)
    if not found:
        raise IdentityError("holds no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    if len(found) > MAX_CERTIFICATES:
        raise IdentityError(f"holds more than {MAX_CERTIFICATES} certificates")
    try:
        return [base64.b64decode(b"".join(block.split()), validate=True) for block in found]
    except binascii.Error as error:
        raise IdentityError(_DAMAGED) from error


def join(ders: list[bytes]) -> bytes:
    """PEM of these certificates, in their order, each once."""
    return b"".join(_armour(der) for der in dict.fromkeys(ders))


def merge(*bundles: bytes) -> bytes:
    """One bundle of all their certificates. Raises ``IdentityError``."""
    return join([der for bundle in bundles for der in split(bundle)])


def digest(bundle: bytes) -> str:
    """Hex SHA-256 of the certificates of a bundle as a set: neither their order nor how
    the text is written counts. Raises ``IdentityError``."""
    return hashlib.sha256(b"".join(hashlib.sha256(der).digest() for der in sorted(set(split(bundle))))).hexdigest()


def pin(der: bytes) -> str:
    """What a join token says of its authority: base64url SHA-256 of the certificate."""
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).decode().rstrip("=")


def presented(text: bytes) -> Presented:
    """What the first certificate of a PEM text says of its holder; nothing is verified.
    Raises ``IdentityError``."""
    try:
        serial, begins, ends, uris, issuer = _facts(split(text)[0])
    except (IndexError, ValueError) as error:
        raise IdentityError("holds a certificate that cannot be read") from error
    ours = [uri for uri in uris if uri.startswith(f"{SCHEME}:")]
    if len(ours) != 1:
        raise IdentityError(f"holds a certificate that must name one identity of llmgw, and names {len(ours)}")
    return Presented(parse_uri(ours[0]), serial, begins + BACKDATED, ends, issuer)


def expires_at(der: bytes) -> float:
    """The end of a certificate's life, in Unix time. Raises ``IdentityError``."""
    try:
        return _facts(der)[2]
    except (IndexError, ValueError) as error:
        raise IdentityError("holds a certificate that cannot be read") from error


def hex_serial(number: int) -> str:
    """A serial number as ``SSLSocket.getpeercert`` writes it."""
    digits = f"{number:X}"
    return digits if len(digits) % 2 == 0 else f"0{digits}"


def _armour(der: bytes) -> bytes:
    text = base64.b64encode(der)
    lines = b"\n".join(text[start : start + 64] for start in range(0, len(text), 64))
    return b"-----BEGIN CERTIFICATE-----\n" + lines + b"\n-----END CERTIFICATE-----\n"


def _facts(der: bytes) -> tuple[str, float, float, list[str], str]:
    """Serial, first and last moment, the URIs and who signed a certificate (RFC 5280, 4.1)."""
    certificate = _only(der)
    if certificate[0] != _SEQUENCE:
        raise ValueError("no certificate")
    fields = list(_elements(_only(certificate[1])[1]))
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    serial, _algorithm, issuer, validity = fields[:4]
    if serial[0] != _INTEGER:
        raise ValueError("no serial number")
    begins, ends = (_moment(tag, value) for tag, value in _elements(validity[1]))
    uris = [
        uri.decode("ascii")
        for tag, value in fields
        if tag == _EXTENSIONS
        for extension in _elements(_only(value)[1])
        for uri in _uris(extension[1])
    ]
    return hex_serial(int.from_bytes(serial[1], "big")), begins, ends, uris, _common_name(issuer[1])


def _common_name(name: bytes) -> str:
    """The common name in a distinguished one; empty if it has none."""
    for _, part in _elements(name):
        (_, kind), (_, value) = _elements(_only(part)[1])
        if kind == _COMMON_NAME:
            return value.decode("utf-8")
    return ""


def _uris(extension: bytes) -> Iterator[bytes]:
    parts = list(_elements(extension))
    if parts[0] == (_OID, _ALTERNATIVE_NAMES) and parts[-1][0] == _OCTETS:
        yield from (value for tag, value in _elements(_only(parts[-1][1])[1]) if tag == _URI)


def _moment(tag: int, value: bytes) -> float:
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(tag)
    if form is None:
        raise ValueError("no moment")
    return datetime.strptime(value.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _only(data: bytes) -> tuple[int, bytes]:
    """The first element. Raises ``ValueError`` or ``IndexError``."""
    first, *_ = _elements(data)
    return first


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each DER element. Raises ``ValueError`` or ``IndexError``."""
    place = 0
    while place < len(data):
        tag, length = data[place], data[place + 1]
        place += 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("a length that is not DER")
            length = int.from_bytes(data[place : place + count], "big")
            place += count
        if place + length > len(data):
            raise ValueError("cut off")
        yield tag, data[place : place + length]
        place += length
