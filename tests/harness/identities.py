"""Identities for tests: one authority for a test run, folders as the parts read them, and wrong ones (SEC-01)."""

import functools
import os
import shutil
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import requests

from llmgw.identity import authority
from llmgw.identity.names import identity

LOOPBACK = ("127.0.0.1", "::1")


class Authority:
    """A root of its own, in memory, and what it signs. ``root`` is its certificate (PEM)."""

    def __init__(self, name: str = "tests") -> None:
        self.made_at = datetime.now(UTC) - timedelta(days=2)  # so that what it signed can have expired
        self._key = authority.new_key()
        self.root = authority.new_root(name, self._key, self.made_at)

    def folder(
        self,
        path: Path,
        kind: str,
        name: str,
        *,
        issuer: bool = False,
        now: datetime | None = None,
        lifetime: timedelta = timedelta(days=30),
        trusts: Iterable[bytes] = (),
    ) -> Path:
        """An identity folder; what is there is replaced. ``issuer``: with an authority of its own, for a
        control plane that is to sign. ``trusts``: the roots in its bundle instead of ours."""
        who = identity(kind, name)
        key = authority.new_key()
        certificate = authority.sign(
            authority.request(who, key),
            who,
            self.root,
            self._key,
            now or datetime.now(UTC),
            lifetime=lifetime,
            dns=("localhost",) if kind == "controlplane" else (),
            ips=LOOPBACK if kind == "controlplane" else (),
        )
        files = {"certificate.pem": certificate, "key.pem": key, "authorities.pem": b"".join(trusts) or self.root}
        if issuer:
            issuer_key = authority.new_key()
            # As old as the root, so that no certificate in a test is older than its issuer by chance.
            issuer_pem = authority.new_issuer(name, issuer_key, self.root, self._key, self.made_at)
            files |= {"issuer.pem": issuer_pem, "issuer-key.pem": issuer_key}
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, content in files.items():
            private(path / file, content)
        return path

    def controlplane(self, path: Path, name: str = "controlplane") -> Path:
        """A control plane's folder, with an issuer."""
        return self.folder(path, "controlplane", name, issuer=True)

    def node(self, path: Path, name: str) -> Path:
        """A node's folder."""
        return self.folder(path, "node", name)

    def router(self, path: Path, name: str) -> Path:
        """A router's folder."""
        return self.folder(path, "router", name)

    def expired(self, path: Path, kind: str, name: str) -> Path:
        """A folder whose certificate ended an hour ago."""
        hour = timedelta(hours=1)
        return self.folder(path, kind, name, now=datetime.now(UTC) - 25 * hour, lifetime=24 * hour)

    def sign(self, request: str, kind: str, name: str) -> str:
        """A certificate for somebody's own key (PEM)."""
        who = identity(kind, name)
        return authority.sign(request.encode(), who, self.root, self._key, datetime.now(UTC)).decode()

    def authority_folder(self, path: Path) -> Path:
        """The folder that holds this root, for ``llmgw ctl cert`` and ``llmgw sim-fleet``."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, content in (("root.pem", self.root), ("root-key.pem", self._key), ("authorities.pem", self.root)):
            private(path / file, content)
        return path


@functools.cache
def ours() -> Authority:
    """The authority of this test run."""
    return Authority()


@functools.cache
def strangers() -> Authority:
    """Another one, which nobody here trusts."""
    return Authority("strangers")


def without_key(folder: Path) -> Path:
    """Take the key away from a folder."""
    (folder / "key.pem").unlink()
    return folder


def replaced(folder: Path, other: Path) -> Path:
    """What ``other`` shows, from now on in ``folder``: certificate and key, the bundle stays."""
    for name in ("key.pem", "certificate.pem"):
        shutil.copyfile(other / name, folder / f".{name}")
        (folder / f".{name}").chmod(0o600)
        (folder / f".{name}").replace(folder / name)
    return folder


def session(folder: Path) -> requests.Session:
    """HTTPS as a node or router speaks it. Only what is in ``folder`` counts, not the environment's authorities."""
    made = requests.Session()
    made.trust_env = False
    made.cert = (str(folder / "certificate.pem"), str(folder / "key.pem"))
    made.verify = str(folder / "authorities.pem")
    return made


def client(folder: Path, *, shown: bool = True) -> ssl.SSLContext:
    """TLS as a node or router speaks it, by the standard library alone. ``shown``: with its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # an identity is no address
    context.load_verify_locations(folder / "authorities.pem")
    if shown:
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def server(folder: Path) -> ssl.SSLContext:
    """TLS as a control plane speaks it to nodes and routers: each must show a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / "authorities.pem")
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def answered(context: ssl.SSLContext, plain: socket.socket) -> ssl.SSLSocket:
    """The server's end of a handshake. Raises ``OSError``; who was refused has read why by then."""
    secure = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
    try:
        secure.do_handshake()
    except ssl.SSLError:
        # To close on what it has sent would reset the connection, and the alert would be lost.
        with suppress(OSError), socket.socket(fileno=socket.dup(secure.fileno())) as twin:
            twin.settimeout(2)
            twin.shutdown(socket.SHUT_WR)
            while twin.recv(4096):
                continue
        secure.close()
        raise
    return secure


def uri_of(connection: ssl.SSLSocket) -> str:
    """The identity that the other end of a connection has shown: ``llmgw:node:gpu-7``."""
    names = (connection.getpeercert() or {}).get("subjectAltName", ())
    (uri,) = [str(name[1]) for name in names if isinstance(name, tuple) and name[0] == "URI"]
    return uri


def private(file: Path, content: bytes | str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
