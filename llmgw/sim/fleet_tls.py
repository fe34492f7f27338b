"""Identities of simulated nodes, made in memory from the folder of an authority (SEC-01).

All nodes have one key, which nobody can see from outside; each has a certificate and a TLS
context of its own, made before the first connection: to load it anew each time would cost
as much as the rest of a handshake does.
"""

import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from llmgw.identity import authority, pem, tls
from llmgw.identity.names import Identity, IdentityError, identity
from llmgw.runtime.settings import Fault, SettingsError

LIFETIME = timedelta(days=1)


class Identities:
    """Makes certificates that live as long as this process. ``folder`` is that of the
    authority (``llmgw ctl cert init``); ``authorities`` the digest of whom nodes trust.
    Raises ``SettingsError``."""

    def __init__(self, folder: Path) -> None:
        self._root = _read(folder / "root.pem")
        self._root_key = _read(folder / "root-key.pem")
        bundle = _read(folder / "authorities.pem")
        self._now = datetime.now(UTC)
        self._file = os.memfd_create("llmgw-sim-identity", os.MFD_CLOEXEC)
        try:
            self.authorities = pem.digest(bundle)
            self._trusted = bundle.decode("ascii")
            self._key = authority.new_key()
            self._request = authority.request(Identity("node", "simulated"), self._key)
            self.context("simulated")  # faults of the authority are told now
        except (IdentityError, ssl.SSLError, UnicodeDecodeError) as error:
            raise SettingsError(str(folder), [Fault("", str(error))]) from error

    def context(self, node: str) -> ssl.SSLContext:
        """What a node's connections are made with. Takes about two milliseconds and 25 kB."""
        chain = authority.sign(
            self._request, identity("node", node), self._root, self._root_key, self._now, lifetime=LIFETIME
        )
        context = tls.client_context()
        context.load_verify_locations(cadata=self._trusted)
        # ``ssl`` takes certificates from files alone: this one is in memory.
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, chain + self._key, 0)
        context.load_cert_chain(f"/proc/self/fd/{self._file}")
        return context


def connect(context: ssl.SSLContext, connection: socket.socket, limit: float) -> ssl.SSLSocket:
    """Shake hands with a control plane within ``limit`` seconds. On any failure the socket is
    closed. Raises ``OSError`` or ``IdentityError``."""
    return tls.greet(context, connection, "controlplane", limit)[0]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        remedy = "give the folder of the authority, as llmgw ctl cert init or llmgw init made it, with --authority"
        raise SettingsError("llmgw sim-fleet", [Fault(str(file), f"{error.strerror}: {remedy}")]) from error
