"""Joining: how a node or router gets its first certificate (SEC-02).

A join token is made by an administrator, for one node or router, once. It holds a secret
and the digest of the root that the control plane stands under::

    llmgw-join-<id>.<secret>.<base64url SHA-256 of the root's DER>

The node asks the join listener twice. ``GET /join/v1/authorities`` goes over a connection
to whoever answers; of what comes only the root that the token names is believed. Over a
second connection, to a control plane under that root, ``POST /join/v1/certificate`` hands
over the token and a signing request. The key is made on the node and stays there.
"""

import contextlib
import hashlib
import http.client
import re
import secrets
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from llmgw.identity import pem
from llmgw.identity.folder import Folder
from llmgw.identity.names import Identity, IdentityError, Presented
from llmgw.identity.tls import HANDSHAKE_LIMIT, client_context, explain, greet
from llmgw.runtime.kinds import Address, parse_address

AUTHORITIES_PATH = "/join/v1/authorities"
CERTIFICATE_PATH = "/join/v1/certificate"

MAX_BODY = 512 * 1024
"""Longest answer of the join listener, in bytes."""

LIMIT = 30.0
"""Seconds that each answer may take."""

MAX_LEADERS = 3
"""So many times the way to the leading control plane is followed."""

_PREFIX = "llmgw-join-"
_SECRET_BYTES = 32
_TOKEN = re.compile(r"llmgw-join-([A-Za-z0-9]{4,64})\.([A-Za-z0-9_-]{22,128})\.([A-Za-z0-9_-]{43})")

_Body = TypeVar("_Body", bound=msgspec.Struct)


class Authorities(msgspec.Struct, frozen=True):
    """Answer to the first question: a bundle in PEM."""

    authorities: str


class JoinRequest(msgspec.Struct, frozen=True):
    """The second question; ``request`` is a signing request in PEM."""

    token: str
    kind: str
    name: str
    request: str

    def __repr__(self) -> str:
        return f"JoinRequest({self.kind} {self.name})"  # without the token


class JoinAnswer(msgspec.Struct, frozen=True):
    """What was asked for, in PEM: the chain of the certificate, and whom to trust."""

    certificate: str
    authorities: str


class JoinRefusal(msgspec.Struct, frozen=True):
    """Why not, as a code of ``llmgw.wire.errors`` and in words. ``leader`` is the address
    of the join listener of the control plane that leads, if it was not the one asked."""

    code: str
    message: str
    leader: str = ""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token; its secret never shows in what is printed of it by accident."""

    id: str
    secret: str = field(repr=False)
    pin: str

    @property
    def text(self) -> str:
        """As it is handed over."""
        return f"{_PREFIX}{self.id}.{self.secret}.{self.pin}"


def new_token(root: bytes) -> JoinToken:
    """A token for those who are to trust this root, one certificate in DER."""
    return JoinToken(secrets.token_hex(6), secrets.token_urlsafe(_SECRET_BYTES), pem.pin(root))


def parse(text: str) -> JoinToken:
    """Read a token. Raises ``IdentityError``, which does not repeat it."""
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise IdentityError(
            "that is no join token: one looks like llmgw-join-ID.SECRET.DIGEST; is it whole, and on one line?"
        )
    return JoinToken(match[1], match[2], match[3])


def digest(token: JoinToken) -> str:
    """What is kept of a token: hex SHA-256 of its id and secret. Compare it in constant time."""
    return hashlib.sha256(f"{token.id}.{token.secret}".encode()).hexdigest()


def pinned(authorities: bytes, token: JoinToken) -> bytes:
    """Those of the bundle, in PEM, that the token names. Raises ``IdentityError``."""
    found = [der for der in pem.split(authorities) if secrets.compare_digest(pem.pin(der), token.pin)]
    if not found:
        raise IdentityError(
            "whoever answers there is not under the authority that the token names: is the address right, and the "
            "token of this installation? If its root was rotated since, a new token is needed: llmgw ctl nodes add or "
            "llmgw ctl routers add. The token was not sent"
        )
    return pem.join(found)


def join(
    address: Address, token: JoinToken, identity: Identity, folder_path: Path, *, limit: float = LIMIT
) -> Presented:
    """Get a certificate and write the identity's folder; what is there is replaced only once
    the new one has come. Blocks for as long as the control plane takes. Raises
    ``IdentityError`` in words, ``SettingsError`` or ``OSError`` if the folder cannot be
    written."""
    from llmgw.identity import authority  # noqa: PLC0415 - large

    folder = Folder(folder_path)
    key = authority.new_key()
    body = JoinRequest(token.text, identity.kind, identity.name, authority.request(identity, key).decode())
    try:
        answer = _asked(address, token, body, folder, key, limit=limit)
        certificate, trusted = answer.certificate.encode(), answer.authorities.encode()
        try:
            given = pem.presented(certificate)
            authority.anchor(certificate, trusted, datetime.now(UTC))
            if given.identity != identity:
                raise IdentityError(f"is that of {given.identity}")
            if not authority.same_key(certificate, key):
                raise IdentityError("is not for the key")
        except IdentityError as error:
            raise IdentityError(f"the certificate that {address} sent cannot be used: {error}") from error
        folder.write(certificate=certificate, authorities=trusted)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.abandon()
        raise
    return given


def _asked(
    address: Address, token: JoinToken, body: JoinRequest, folder: Folder, key: bytes, *, limit: float
) -> JoinAnswer:
    """What the control plane that leads gives for the token."""
    for _ in range(MAX_LEADERS):
        try:
            roots = _roots(address, token, limit)
            folder.prepare(key)
            return _certificate(address, roots, body, limit)
        except _Elsewhere as elsewhere:
            address = elsewhere.address
    raise IdentityError("the control planes name each other as the one that leads: try again in a minute")


class _Elsewhere(Exception):
    """Another control plane leads."""

    def __init__(self, address: Address) -> None:
        super().__init__(str(address))
        self.address = address


def _roots(address: Address, token: JoinToken, limit: float) -> bytes:
    """Of what anybody says, what the token proves."""
    anybody = client_context()
    anybody.verify_mode = ssl.CERT_NONE
    with _connected(address, limit) as plain, _within(address, plain, limit):
        try:
            secure = anybody.wrap_socket(plain)
        except OSError as error:
            raise _failed(address, error) from error
        with secure:
            status, text = _exchange(address, secure, "GET", AUTHORITIES_PATH, None)
    answer = _read(address, status, text, Authorities)
    try:
        return pinned(answer.authorities.encode(), token)
    except IdentityError as error:
        raise IdentityError(f"{address}: {error}") from error


def _certificate(address: Address, roots: bytes, body: JoinRequest, limit: float) -> JoinAnswer:
    """Hand over the token, to a control plane under these roots alone."""
    context = client_context()
    try:
        context.load_verify_locations(cadata=roots.decode("ascii"))
    except ssl.SSLError as error:
        raise _failed(address, error) from error
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    plain = _connected(address, limit)
    with _within(address, plain, limit):
        try:
            secure, _ = greet(context, plain, "controlplane", min(limit, HANDSHAKE_LIMIT))
        except (OSError, IdentityError) as error:
            raise _failed(address, error) from error
    try:
        with secure, _within(address, secure, limit):
            status, text = _exchange(address, secure, "POST", CERTIFICATE_PATH, msgspec.json.encode(body))
    except IdentityError as error:
        raise IdentityError(f"{error}; the token may be used up: if it is refused now, make a new one") from error
    return _read(address, status, text, JoinAnswer)


def _connected(address: Address, limit: float) -> socket.socket:
    try:
        return socket.create_connection((address.host, address.port), timeout=limit)
    except OSError as error:
        raise _failed(address, error) from error


@contextlib.contextmanager
def _within(address: Address, connection: socket.socket, limit: float) -> Iterator[None]:
    """End a connection after ``limit`` seconds under whoever waits for it: its own limit starts
    anew with every byte. Raises ``IdentityError`` then."""
    twin = socket.fromfd(connection.fileno(), connection.family, connection.type)
    over = threading.Event()

    def end() -> None:
        over.set()
        with contextlib.suppress(OSError):
            twin.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit, end)
    timer.daemon = True
    timer.start()
    try:
        yield
        if over.is_set():
            raise IdentityError("what came ended in the middle")
    except IdentityError as error:
        if over.is_set():
            raise _failed(address, TimeoutError()) from error
        raise
    finally:
        timer.cancel()
        timer.join()
        twin.close()


def _exchange(address: Address, secure: ssl.SSLSocket, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address.host, address.port)
    connection.sock = secure
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        text = response.read(MAX_BODY + 1)
    except (OSError, http.client.HTTPException) as error:
        raise _failed(address, error) from error
    if len(text) > MAX_BODY:
        raise IdentityError(f"{address} answers more than it should: is it a join listener of llmgw?")
    return response.status, text


def _read(address: Address, status: int, text: bytes, kind: type[_Body]) -> _Body:
    """The answer, if it is one. Raises ``IdentityError`` or ``_Elsewhere``."""
    try:
        if status == http.HTTPStatus.OK:
            return msgspec.json.decode(text, type=kind)
        refusal = msgspec.json.decode(text, type=JoinRefusal)
    except (msgspec.DecodeError, RecursionError) as error:
        raise IdentityError(f"{address} answers {status} and no JSON of ours: is it a join listener?") from error
    if refusal.code == "not_leader" and refusal.leader:
        try:
            raise _Elsewhere(parse_address(refusal.leader))
        except ValueError:
            pass
    raise IdentityError(f"{address} refuses: {refusal.message[:500]} ({refusal.code[:64]})")


def _failed(address: Address, error: Exception) -> IdentityError:
    words = str(error) if isinstance(error, http.client.HTTPException) else explain(error)
    if "CERTIFICATE_REQUIRED" in str(error):
        words = "that is no join listener, it demands a certificate: use the address of join.listen"
    return IdentityError(f"{address}: {words or type(error).__name__}")
