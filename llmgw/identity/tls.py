"""TLS between the parts: version 1.3, both sides with a certificate of the authority (SEC-01).

Loading blocks for some milliseconds (files): call ``load`` off the hub.
Sockets work alike in processes patched by gevent and in others.

The client's handshake is over before the server has judged its certificate: the client
reads the verdict instead of the first answer. ``explain`` tells either side what it was.
"""

import contextlib
import select
import socket
import ssl
import time

from llmgw.identity.folder import Folder
from llmgw.identity.names import IdentityError, Kind, Presented, of_peer
from llmgw.identity.words import explain
from llmgw.runtime.faults import Fault, SettingsError

__all__ = ["HANDSHAKE_LIMIT", "ClientTls", "ServerTls", "explain", "peer"]

HANDSHAKE_LIMIT = 10.0
"""Seconds that a handshake may take, all of it."""

_ANY_DATE = 0x200000
"""OpenSSL's ``X509_V_FLAG_NO_CHECK_TIME``, which Python has no name for."""


def peer(connection: ssl.SSLSocket) -> Presented:
    """What the peer of a verified connection showed. Raises ``IdentityError``."""
    return of_peer(connection.getpeercert(), ssl.cert_time_to_seconds)


class _Tls:
    """What both sides share: a context made of a folder, replaced when its files change."""

    serves: bool

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """The one in force. Raises ``SettingsError`` if none was loaded."""
        if self._context is None:
            raise SettingsError(str(self.folder.path), [Fault("", "the certificate has not been loaded")])
        return self._context

    def load(self) -> ssl.SSLContext:
        """A context of what the files hold now; blocks. Raises ``SettingsError``."""
        raise NotImplementedError

    def use(self, context: ssl.SSLContext) -> None:
        """Have new connections use it; those that stand go on."""
        self._context = context

    def prove(self) -> None:
        """Shake hands with ourselves, in memory: whether one who trusts the folder's
        authorities takes its certificate, whatever the date. Raises ``SettingsError``."""
        server, client = _context(ssl.PROTOCOL_TLS_SERVER), client_context()
        client.verify_mode = ssl.CERT_NONE
        shows, judges = (server, client) if self.serves else (client, server)
        self.folder.load_into(server)  # a server shows one always
        if shows is client:
            self.folder.load_into(client)
        self._trusting(judges)
        judges.verify_flags |= _ANY_DATE
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
        try:
            for end in (*ends, ends[0]):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
            ends[1].do_handshake()
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or explain(error)
            words = f"is not taken by one who trusts {self.folder.authorities.name} ({why}): do they belong together?"
            raise SettingsError(str(self.folder.path), [Fault(str(self.folder.certificate), words)]) from error

    def _trusting(self, context: ssl.SSLContext) -> None:
        """Believe the folder's authorities, and no others."""
        try:
            context.load_verify_locations(cadata=self.folder.roots().decode("ascii"))
        except ssl.SSLError as error:
            raise SettingsError(
                str(self.folder.path), [Fault(str(self.folder.authorities), f"cannot be used: {explain(error)}")]
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT


class ServerTls(_Tls):
    """The side that listens. ``clients``: each must show a certificate of the authorities."""

    serves = True

    def __init__(self, folder: Folder, *, clients: bool) -> None:
        super().__init__(folder)
        self.clients = clients

    def load(self) -> ssl.SSLContext:
        """See ``_Tls.load``."""
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        # A resumed session would go on with a certificate that has expired since.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        self.folder.load_into(context)
        if self.clients:
            self._trusting(context)
        return context


class ClientTls(_Tls):
    """The side that connects: to a control plane, whatever its address is."""

    serves = False

    def __init__(self, folder: Folder, *, wanted: Kind = "controlplane") -> None:
        super().__init__(folder)
        self.wanted = wanted

    def load(self) -> ssl.SSLContext:
        """See ``_Tls.load``."""
        context = client_context()
        self._trusting(context)
        self.folder.load_into(context)
        return context

    def connect(self, connection: socket.socket, limit: float = HANDSHAKE_LIMIT) -> tuple[ssl.SSLSocket, Presented]:
        """Shake hands over a connected socket; who the other side is. On any failure the
        socket is closed. Raises ``OSError`` (``explain`` has the words) or
        ``IdentityError`` if it is no control plane. The other side may still refuse our
        certificate: then the first read raises what ``explain`` knows."""
        return greet(self.context, connection, self.wanted, limit)


def client_context() -> ssl.SSLContext:
    """One that checks no host name: who the peer is stands in its certificate's identity."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return context


def greet(
    context: ssl.SSLContext, connection: socket.socket, wanted: Kind, limit: float = HANDSHAKE_LIMIT
) -> tuple[ssl.SSLSocket, Presented]:
    """See ``ClientTls.connect``."""
    secure = _shake(context, connection, limit)
    try:
        other = peer(secure)
        if other.identity.kind != wanted:
            raise IdentityError(
                f"the other side is the {other.identity}, and should be a {wanted}: is the address right?"
            )
    except BaseException:
        secure.close()
        raise
    return secure, other


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _shake(context: ssl.SSLContext, connection: socket.socket, limit: float) -> ssl.SSLSocket:
    """A handshake that ends within ``limit`` seconds: a time limit of the socket would start
    anew with every byte. The socket's own limit is as before afterwards."""
    until = time.monotonic() + limit
    own_limit = connection.gettimeout()
    current: socket.socket = connection
    try:
        connection.setblocking(False)
        current = secure = context.wrap_socket(connection, do_handshake_on_connect=False)
        while True:
            try:
                secure.do_handshake()
                break
            except ssl.SSLWantReadError:
                _wait(secure, select.POLLIN, until)
            except ssl.SSLWantWriteError:
                _wait(secure, select.POLLOUT, until)
        secure.settimeout(own_limit)
    except BaseException as error:
        current.close()
        if isinstance(error, ValueError) and not isinstance(error, OSError):  # the socket was closed under us
            raise OSError(str(error)) from error
        raise
    return secure


def _wait(connection: socket.socket, event: int, until: float) -> None:
    remaining = until - time.monotonic()
    poller = select.poll()
    poller.register(connection.fileno(), event)
    if remaining <= 0 or not poller.poll(remaining * 1000):
        raise TimeoutError("the handshake took too long")
