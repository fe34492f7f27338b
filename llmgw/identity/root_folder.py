"""The folder of the root authority, on the one machine that holds it (SEC-01, SEC-08).

::

    root.pem, root-key.pem   the root, and its bridge while an older one goes out of use
    authorities.pem          whom all parts are to trust: the root, and the older one
    issued.jsonl             what was issued: at, identity, what (certificate or issuer), serial, not_after

Every function blocks for milliseconds, and holds the folder's lock while it changes it.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from llmgw.identity import authority, pem
from llmgw.identity.folder import Folder
from llmgw.identity.names import Identity, IdentityError, parse_uri
from llmgw.identity.pair import Pair, read_limited, tidy
from llmgw.runtime.files import private_directory, write_atomic

LOCAL_NAMES = ("localhost",)
LOCAL_ADDRESSES = ("127.0.0.1", "::1")
"""Every control plane's certificate holds these too: it is asked on its own machine."""

PATIENCE = 10.0
"""Seconds to wait for another command that changes the folder."""


class _Issued(msgspec.Struct, frozen=True):
    """A line of ``issued.jsonl``, as far as it is read."""

    at: datetime
    identity: str
    what: str


@dataclass(frozen=True, slots=True)
class Retired:
    """What a root was retired from: how many older ones, the control planes whose issuer is
    still under one, as far as is written down, and when (Unix time) the last certificate of
    control planes under the new root was made: who has one from before may be under the old."""

    dropped: int
    behind: tuple[str, ...]
    since: float


class RootFolder:
    """See the module. The constructor reads and makes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path / "root.pem"
        self.key = path / "root-key.pem"
        self.authorities = path / "authorities.pem"
        self.issued = path / "issued.jsonl"
        self._pair = Pair(self.root, self.key)

    def exists(self) -> bool:
        """Whether there is a root."""
        return self.root.exists() or self.key.exists()

    def init(self, name: str, *, replace: bool = False) -> authority.Facts:
        """Make the root. Raises ``IdentityError`` if there is one and it is not to be
        replaced, ``OSError`` if it cannot be written."""
        private_directory(self.path)
        with self.locked():
            if self.exists() and not replace:
                raise IdentityError(
                    f"{self.path} holds a root already: use --rotate to replace it without a gap; --force would throw "
                    "it away, and every certificate with it"
                )
            return self._new_root(name)

    def rotate(self, name: str) -> authority.Facts:
        """Make a new root beside the old, certified by it: both are trusted until ``retire``.
        Raises ``IdentityError``, ``OSError``."""
        with self.locked():
            old, old_key = self._root()
            if len(pem.split(self._authorities())) > 1:
                raise IdentityError("a rotation is under way already: end it first with --retire")
            return self._new_root(name, old, old_key)

    def retire(self) -> Retired:
        """Trust the newest root alone. Raises ``IdentityError``, ``OSError``."""
        with self.locked():
            root, _ = self._root()
            dropped = len(pem.split(self._authorities())) - 1
            if dropped <= 0:
                raise IdentityError("there is no older root to retire: begin with --rotate")
            only = pem.join(pem.split(root)[:1])
            since, issuers = authority.facts(root).issued_at, self._issuers()
            self._pair.write(only)
            write_atomic(self.authorities, only, 0o644)
            behind = tuple(sorted(who for who, at in issuers.items() if at < since))
            return Retired(dropped, behind, max([since, *issuers.values()]))

    def issue(
        self,
        identity: Identity,
        out: Path,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: timedelta = authority.LIFETIME,
        replace: bool = False,
    ) -> authority.Facts:
        """Write the folder of a new identity, key and all; a control plane's can sign.
        Raises ``IdentityError``, ``SettingsError`` or ``OSError``."""
        folder = Folder(out)
        if folder.exists() and not replace:
            raise IdentityError(f"{out} holds a certificate already: use --force to replace it")
        with self.locked():
            return self._issue(identity, folder, dns, ips, lifetime)

    def sign(
        self, csr: bytes, identity: Identity, *, lifetime: timedelta = authority.LIFETIME
    ) -> tuple[bytes, authority.Facts]:
        """The chain for a key that was made elsewhere. Raises ``IdentityError``, ``OSError``."""
        with self.locked():
            root, key = self._root()
            names = (LOCAL_NAMES, LOCAL_ADDRESSES) if identity.kind == "controlplane" else ((), ())
            chain = authority.sign(csr, identity, root, key, _now(), lifetime=lifetime, dns=names[0], ips=names[1])
            self._note(identity, authority.facts(chain))
            return chain, authority.facts(chain)

    def renew(self, out: Path, *, lifetime: timedelta = authority.LIFETIME, replace: bool = False) -> authority.Facts:
        """A new key and certificate of the same identity and addresses, and the authorities as
        they are now; expired ones can be renewed. Raises ``IdentityError`` if the certificate
        is of another authority (unless ``replace``), ``SettingsError`` or ``OSError``."""
        folder = Folder(out)
        chain = folder.chain()
        ours = authority.facts(chain)
        if ours.identity is None:
            raise IdentityError(f"{folder.certificate} names no identity of llmgw: make it with llmgw ctl cert issue")
        with self.locked():
            if not replace:
                try:
                    # As of its own time: it may have expired.
                    authority.anchor(chain, self._authorities(), datetime.fromtimestamp(ours.issued_at, UTC))
                except IdentityError as error:
                    raise IdentityError(
                        f"{folder.certificate} is not of this authority ({error}): use --force if it is to be"
                    ) from error
            return self._issue(ours.identity, folder, ours.dns, ours.ips, lifetime)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among the commands that change the folder. Raises ``OSError``; ``IdentityError``
        if another one goes on for too long, or there is no folder."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self._absent() from error
        try:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise IdentityError(f"another command is changing {self.path}: try again") from None
                    time.sleep(0.05)
            tidy(self.path)
            yield
        finally:
            os.close(descriptor)

    def _new_root(self, name: str, old: bytes | None = None, old_key: bytes | None = None) -> authority.Facts:
        now = _now()
        key = authority.new_key()
        root = authority.new_root(name, key, now)
        trusted, whole = root, root
        if old is not None and old_key is not None:
            trusted = pem.merge(root, pem.join(pem.split(old)[:1]))
            whole = root + authority.bridge(root, old, old_key, now)
        # The bundle first: a root that signs must be one that is handed out.
        write_atomic(self.authorities, trusted, 0o644)
        self._pair.write(whole, key)
        return authority.facts(root)

    def _issue(
        self, identity: Identity, folder: Folder, dns: Sequence[str], ips: Sequence[str], lifetime: timedelta
    ) -> authority.Facts:
        now = _now()
        root, root_key = self._root()
        key = authority.new_key()
        csr = authority.request(identity, key)
        if identity.kind != "controlplane":
            chain = authority.sign(csr, identity, root, root_key, now, lifetime=lifetime)
            facts = authority.facts(chain)
            self._note(identity, facts)
            folder.write(certificate=chain, key=key, authorities=self._authorities())
            return facts
        issuer_key = authority.new_key()
        issuer = authority.new_issuer(f"llmgw issuer of {identity.name}", issuer_key, root, root_key, now)
        names = list(dict.fromkeys([*dns, *LOCAL_NAMES]))
        addresses = list(dict.fromkeys([*ips, *LOCAL_ADDRESSES]))
        chain = authority.sign(csr, identity, issuer, issuer_key, now, lifetime=lifetime, dns=names, ips=addresses)
        facts = authority.facts(chain)
        self._note(identity, authority.facts(issuer), "issuer")
        self._note(identity, facts)
        folder.write(
            certificate=chain,
            key=key,
            authorities=self._authorities(),
            issuer=issuer,
            issuer_key=issuer_key,
        )
        return facts

    def _root(self) -> tuple[bytes, bytes]:
        try:
            self._pair.settle()
            root, key = read_limited(self.root), read_limited(self.key)
        except FileNotFoundError as error:
            raise self._absent() from error
        except PermissionError as error:
            raise IdentityError(f"{error.filename} cannot be read by this user: run this as its owner") from error
        try:
            if self.key.stat().st_mode & 0o077:
                raise IdentityError(f"can be read by others: run chmod 600 {self.key}")
            if not authority.same_key(root, key):
                raise IdentityError("is not the key of root.pem: restore both from a copy")
        except IdentityError as error:
            raise IdentityError(f"{self.key}: {error}") from error
        return root, key

    def _authorities(self) -> bytes:
        try:
            return pem.merge(read_limited(self.authorities))
        except FileNotFoundError as error:
            raise self._absent() from error
        except IdentityError as error:
            raise IdentityError(f"{self.authorities}: {error}") from error

    def _issuers(self) -> dict[str, float]:
        """When each control plane got its newest issuer, as far as is written down."""
        try:
            lines = self.issued.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        found: dict[str, float] = {}
        for line in lines:
            try:
                entry = msgspec.json.decode(line, type=_Issued)
                who = parse_uri(entry.identity).name
            except (msgspec.DecodeError, IdentityError):
                continue  # cut off by a crash, or edited: it says nothing of anybody
            if entry.what == "issuer":
                found[who] = entry.at.timestamp()
        return found

    def _absent(self) -> IdentityError:
        return IdentityError(
            f"there is no authority in {self.path}: make one with llmgw ctl cert init, or name its folder with "
            "--authority"
        )

    def _note(self, identity: Identity, facts: authority.Facts, what: str = "certificate") -> None:
        """Write down what is issued, before it is handed out."""
        entry = {
            "at": f"{datetime.fromtimestamp(facts.issued_at, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "identity": identity.uri,
            "what": what,
            "serial": facts.serial,
            "not_after": f"{datetime.fromtimestamp(facts.expires_at, UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        descriptor = os.open(self.issued, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            data = f"{json.dumps(entry)}\n".encode()
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.issued))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _now() -> datetime:
    return datetime.now(UTC)
