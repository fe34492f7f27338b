"""Connections to external providers, and where connections to anybody come from (CAT-10).

A provider has a name that must be looked up, and speaks TLS. Above the socket everything is
as for an engine: the same pool, the same reading, the same relaying.
"""

import _socket
import socket
import ssl
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import gevent.socket
from gevent.event import AsyncResult

from llmgw.runtime.logs import Logger
from llmgw.wire.routing import Endpoint
from router.errors import Refused
from router.link import READ_SIZE, Expired, Reactor
from router.upstream import Pool, Unreachable, UpstreamLink, own_shortage

log = Logger("router.external")

NAME_SECONDS = 60.0
"""How long a name's addresses are used before it is looked up again."""
IDLE_SECONDS = 20.0
"""A connection that cost a handshake is kept for longer than one to an engine."""
SEALED = 65536
"""Bytes encrypted at a stretch."""


class TlsLink(UpstreamLink):
    """A connection to a provider through TLS, not usable before ``shake``.

    ``recv`` gives plain bytes, all that one read of the socket held, so that nothing is left
    over that no watcher would tell of.
    """

    __slots__ = ("_ended", "_incoming", "_late", "_outgoing", "_tls")

    def __init__(self, reactor: Reactor, sock: _socket.socket, pool: Pool, context: ssl.SSLContext) -> None:
        super().__init__(reactor, sock, pool)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=pool.host)
        self._late = b""
        self._ended = False

    def shake(self, until: float) -> None:
        """Agree on keys and see that the provider is who it should be. Raises ``Expired``,
        ``OSError`` (``ssl.SSLError`` too)."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                super().send_all(self._outgoing.read(), until)
                data = self.receive(until)
                if not data:
                    raise ConnectionResetError("it closed the connection during the handshake") from None
                self._incoming.write(data)
        super().send_all(self._outgoing.read(), until)
        self.begun = False
        self.recv = self._plain

    def send_all(self, data: bytes, until: float) -> None:
        """All of ``data``, encrypted. Raises ``Expired``, ``OSError``."""
        rest = memoryview(data)
        while rest:
            self._tls.write(rest[:SEALED])
            rest = rest[SEALED:]
            late, self._late = self._late, b""
            super().send_all(late + self._outgoing.read(), until)

    def _plain(self, size: int, flags: int = 0) -> bytes:
        """Some plain bytes (more than ``size`` if they came together), ``b""`` after a proper
        end. Raises ``BlockingIOError``; ``OSError`` also for an end that is none in TLS: a
        network that cuts an answer must not look like its end."""
        data = self.sock.recv(size, flags)
        if data:
            self._incoming.write(data)
        elif not self._ended:
            raise ConnectionResetError("it ended the connection without saying so")
        parts = []
        while not self._ended:
            try:
                part = self._tls.read(READ_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                part = b""
            if part:
                parts.append(part)
            else:
                self._end()
        if self._outgoing.pending:
            self._answer_late()
        if not parts and not self._ended:
            raise BlockingIOError
        return b"".join(parts)

    def _end(self) -> None:
        """The provider said that nothing more comes; have the socket say so as well, whether
        or not the provider closes it."""
        self._ended = True
        try:
            self.sock.shutdown(socket.SHUT_RD)
        except OSError:
            self.pause()  # it is closed already, which says the same

    def _answer_late(self) -> None:
        """Send what TLS itself has to say, such as new keys: now or before the next request."""
        self._late += self._outgoing.read()
        try:
            self._late = self._late[self.send(self._late) :]
        except BlockingIOError:
            return

    def idle_readable(self) -> None:
        """In the pool: TLS may have something to say to itself, such as a session's ticket."""
        if not self.idle:
            super().idle_readable()
            return
        try:
            self.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("an idle connection to a provider ended", host=self._pool.host, why=error)
        self._pool.drop(self)

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        self.recv = self.sock.recv  # or the link would hold itself
        super().close()


class ProviderPool(Pool):
    """Idle connections to one provider, and its addresses. ``context`` is ``None`` for
    plain HTTP."""

    __slots__ = ("_addresses", "_context", "_lookup", "_stale_at", "_timeout")

    def __init__(self, reactor: Reactor, host: str, port: int, context: ssl.SSLContext | None, timeout: float) -> None:
        super().__init__(reactor, host, port)
        self.idle = IDLE_SECONDS
        self._context = context
        self._timeout = timeout
        self._addresses: list[Any] = []
        self._stale_at = 0.0
        self._lookup: AsyncResult | None = None

    def connect(self, seconds: float) -> UpstreamLink:
        """A new connection, its handshake done. ``seconds`` is the bound for engines, which
        have neither a name to look up nor a handshake; a provider has its own."""
        del seconds
        until = monotonic() + self._timeout
        raw = self._dial(until)
        if self._context is None:
            return UpstreamLink(self._reactor, raw, self)
        link = TlsLink(self._reactor, raw, self, self._context)
        try:
            link.shake(until)
        except Expired as error:
            link.close()
            raise Unreachable("the provider did not answer the TLS handshake in time", timeout=True) from error
        except ssl.SSLCertVerificationError as error:
            link.close()
            raise Unreachable(f"the provider's certificate was not accepted: {error.verify_message}") from error
        except OSError as error:
            link.close()
            raise Unreachable("the provider does not agree on TLS") from error
        except BaseException:
            link.close()
            raise
        return link

    def _dial(self, until: float) -> _socket.socket:
        addresses = self._resolve(until)
        slow = False
        for nth, (family, kind, proto, _, address) in enumerate(addresses):
            left = max(0.05, (until - monotonic()) / (len(addresses) - nth))
            sock = None
            try:
                sock = gevent.socket.socket(family, kind, proto)
                sock.settimeout(left)
                sock.connect(address)
                raw = _socket.socket(family, socket.SOCK_STREAM, proto, sock.detach())
            except OSError as error:
                if own_shortage(error):
                    raise Refused("overloaded", "The router has no connection left.") from error
                slow = isinstance(error, TimeoutError)
            else:
                raw.setblocking(False)
                return raw
            finally:
                if sock is not None:
                    sock.close()
        self._addresses = []  # it may have moved
        if slow:
            raise Unreachable("the provider did not accept a connection in time", timeout=True)
        raise Unreachable("the provider does not accept connections")

    def _resolve(self, until: float) -> list[Any]:
        """The provider's addresses. One lookup at a time, off the hub; the addresses known
        from before serve meanwhile."""
        if self._addresses and monotonic() < self._stale_at:
            return self._addresses
        lookup = self._lookup
        if lookup is None:
            lookup = self._lookup = AsyncResult()
            gevent.spawn(self._look_up, lookup)
        if not self._addresses:
            # A lookup that nobody answers lasts for longer than a request may wait.
            lookup.wait(timeout=max(0.05, (until - monotonic()) / 2))
        if self._addresses:
            return self._addresses
        if lookup.ready():
            raise Unreachable("the provider's name cannot be looked up")
        raise Unreachable("the provider's name was not looked up in time", timeout=True)

    def _look_up(self, lookup: AsyncResult) -> None:
        try:
            found = gevent.socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            if found:
                self._addresses = found
                self._stale_at = monotonic() + NAME_SECONDS
        except (OSError, UnicodeError) as error:
            lookup.set(error)
        else:
            lookup.set(None)
        finally:
            self._lookup = None


def trust(ca_file: Path | None) -> ssl.SSLContext:
    """What providers' certificates are held against: the system's authorities, and those in
    ``ca_file`` as well. Raises ``OSError`` (``ssl.SSLError`` too)."""
    # By way of the module: what was there before gevent patched it cannot set its versions.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


class Pools:
    """The pools of all addresses a process talks to. ``timeout`` is the bound on a new
    connection to a provider, in seconds."""

    def __init__(self, reactor: Reactor, ca_file: Path | None, timeout: float) -> None:
        self._reactor = reactor
        self._ca_file = ca_file
        self._timeout = timeout
        self._context: ssl.SSLContext | None = None
        self._pools: dict[tuple[str, int, bool], Pool] = {}

    def get(self, endpoint: Endpoint) -> Pool:
        """The pool of an endpoint's address. Raises ``Unreachable``."""
        key = (endpoint.host, endpoint.port, endpoint.tls)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = self._make(endpoint)
        return pool

    def _make(self, endpoint: Endpoint) -> Pool:
        host, port = endpoint.host, endpoint.port
        if not endpoint.external:
            return Pool(self._reactor, host, port)
        if not endpoint.tls:
            return ProviderPool(self._reactor, host, port, None, self._timeout)
        if self._context is None:
            try:
                self._context = trust(self._ca_file)
            except OSError as error:
                raise Unreachable("the router cannot read the authorities of upstream.ca_file") from error
        return ProviderPool(self._reactor, host, port, self._context, self._timeout)

    def retain(self, endpoints: list[Endpoint]) -> None:
        """Forget addresses that left the table; idle connections expire by themselves."""
        addresses = {(endpoint.host, endpoint.port, endpoint.tls) for endpoint in endpoints}
        for key in [key for key in self._pools if key not in addresses]:
            del self._pools[key]
