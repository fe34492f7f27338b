"""The folder of one identity: a key, its certificate, and whom it trusts (SEC-01, SEC-03).

::

    certificate.pem   the certificate, then what lies between it and a root
    key.pem           its private key
    authorities.pem   the roots that are trusted; two while the root is rotated
    issuer.pem, issuer-key.pem   of a control plane: the authority that it signs with

A key and its certificate change together, see ``pair``. All of it blocks for some milliseconds: call it off the hub.
"""

import contextlib
import fcntl
import os
import ssl
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from llmgw.identity import pem
from llmgw.identity.names import BACKDATED, Identity, IdentityError, Kind, Presented
from llmgw.identity.pair import Pair, no_password, put, read_limited
from llmgw.runtime.faults import Fault, SettingsError

T = TypeVar("T")

Stamp = tuple[int, int, int, int]

Signature = tuple[Stamp | None, ...]
"""What tells that a file of the folder is another than before, or is somebody else's: one
that could not be read may be given to us as it is."""

_TRIES = 5
"""So often a pair is read again that another process is replacing at that moment."""

REMEDY = "make it with llmgw join or llmgw ctl cert issue"


class Folder:
    """One identity on disk. Nothing is read or made by the constructor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.certificate = path / "certificate.pem"
        self.key = path / "key.pem"
        self.authorities = path / "authorities.pem"
        self.issuer = path / "issuer.pem"
        self.issuer_key = path / "issuer-key.pem"
        self._own = Pair(self.certificate, self.key)
        self._issuer = Pair(self.issuer, self.issuer_key)

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r})"

    def exists(self) -> bool:
        """Whether there is a certificate."""
        return self._own.exists()

    def signature(self) -> Signature:
        """Changes whenever a file of the folder does."""
        return tuple([_stamp(file) for file in (self.authorities, *self._own.files, *self._issuer.files)])

    def pair(self) -> tuple[Path, Path]:
        """The files that hold the certificate and its key just now."""
        return self._own.current()

    def presented(self) -> Presented:
        """What our own certificate says. Raises ``SettingsError``."""
        return self._read_own(pem.presented)

    def roots(self) -> bytes:
        """The trusted authorities, in PEM. Raises ``SettingsError``."""
        return self._read(self.authorities, lambda text: pem.join(pem.split(text)))

    def chain(self) -> bytes:
        """The certificate and what lies between it and a root, in PEM. Raises ``SettingsError``."""
        return self._read_own(lambda text: pem.join(pem.split(text)))

    def signer(self) -> tuple[bytes, bytes]:
        """Chain and key of the authority of this control plane, in PEM. Raises
        ``SettingsError`` if it has none or they do not belong together."""
        from llmgw.identity import authority  # noqa: PLC0415 - large, and only for who signs

        for left in reversed(range(_TRIES)):
            before = self.signature()
            certificate, key = self._issuer.current()
            try:
                chain, private = read_limited(certificate, pem.MAX_BUNDLE), read_limited(key)
                if authority.same_key(chain, private):
                    return chain, private
                error: Exception = IdentityError("is not that of issuer-key.pem: run llmgw ctl cert renew")
            except (OSError, IdentityError) as fault:
                error = fault
            if not left or self.signature() == before:
                break
        if isinstance(error, FileNotFoundError):
            absent = certificate if not certificate.exists() else key
            raise self._fault(absent, IdentityError("does not exist: this control plane cannot sign certificates"))
        raise self._fault(certificate, error)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have ``context`` show our certificate. Raises ``SettingsError``."""
        for left in reversed(range(_TRIES)):
            before = self.signature()
            certificate, key = self.pair()
            try:
                context.load_cert_chain(certificate, key, password=no_password)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                if left and self.signature() != before:
                    continue  # another process is replacing the pair
                raise SettingsError(str(self.path), self._unpaired(certificate, key, error)) from error
            else:
                return

    def check(
        self, *, kind: Kind | None = None, name: str | None = None, needs_issuer: bool = False, now: float | None = None
    ) -> list[Fault]:
        """All that is wrong with the folder, each with its remedy: what is missing, open to
        others, unreadable, expired, or of another ``kind`` or ``name`` than should be.
        ``needs_issuer``: also that a control plane's issuer can sign, which loads
        ``cryptography``."""
        moment = datetime.now(UTC).timestamp() if now is None else now
        if not self.path.is_dir():
            return [Fault(str(self.path), f"is no directory: it should hold a certificate and its key; {REMEDY}")]
        faults = [*_open_to_others(self.path)]
        for key in (*self._own.keys, *self._issuer.keys):
            faults.extend(_open_to_others(key))
        faults.extend(self._check_own(kind, name, moment))
        faults.extend(self._check_roots(moment))
        if needs_issuer and not faults:
            faults.extend(self._check_issuer(moment))
        return faults

    def prepare(self, key: bytes) -> None:
        """Keep a new key, of which a certificate is asked for: a later ``write`` of that
        certificate alone takes it. The pair in use is untouched. Raises ``OSError``."""
        self._make()
        with self.locked():
            self._own.prepare(key)

    def abandon(self) -> None:
        """Drop the key of ``prepare``: its certificate will not come. A directory that holds
        nothing then goes too. Raises ``OSError``."""
        with self.locked():
            self._own.abandon()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write(
        self,
        *,
        certificate: bytes | None = None,
        key: bytes | None = None,
        authorities: bytes | None = None,
        issuer: bytes | None = None,
        issuer_key: bytes | None = None,
    ) -> None:
        """Replace what is given; all of it outlives a crash at any moment, and readers see
        a key with its own certificate always. A certificate without a key is for the one of
        ``prepare``, or for the key that is there.

        Raises ``SettingsError`` if a certificate and its key do not belong together or
        something cannot be read, ``OSError`` if it cannot be written. Nothing but
        ``authorities`` may have changed then.
        """
        trusted, chain, signing = (
            None if text is None else self._accept(file, text)
            for file, text in ((self.authorities, authorities), (self.certificate, certificate), (self.issuer, issuer))
        )
        self._make()
        with self.locked():
            # Whom to trust comes first: what is signed by a new root is shown to who knows it.
            if trusted is not None:
                put(self.authorities, trusted, 0o644)
            for pair, text, private in ((self._issuer, signing, issuer_key), (self._own, chain, key)):
                if text is None:
                    continue
                try:
                    pair.write(text, private)
                except IdentityError as error:
                    raise self._fault(pair.certificate, error) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among those who write into the folder, also of other processes."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make(self) -> None:
        """Make the directory. Made by root in another's directory, it is that other's: a
        service must be able to read what an administrator gave it."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            owner = self.path.parent.stat()
            if os.geteuid() == 0 and owner.st_uid != 0:
                os.chown(self.path, owner.st_uid, owner.st_gid)

    def _accept(self, file: Path, text: bytes) -> bytes:
        """The certificates of ``text`` alone, in PEM, for what else is in it is nobody's
        business. Raises ``SettingsError``."""
        try:
            return pem.join(pem.split(text))
        except IdentityError as error:
            raise self._fault(file, error) from error

    def _read(self, file: Path, take: Callable[[bytes], T]) -> T:
        try:
            return take(read_limited(file, pem.MAX_BUNDLE))
        except (OSError, IdentityError) as error:
            raise self._fault(file, error) from error

    def _read_own(self, take: Callable[[bytes], T]) -> T:
        """Our certificate, wherever another process is moving it."""
        for _ in range(_TRIES - 1):
            before = self.signature()
            try:
                return self._read(self.pair()[0], take)
            except SettingsError:
                if self.signature() == before:
                    raise
        return self._read(self.pair()[0], take)

    def _fault(self, file: Path, error: Exception) -> SettingsError:
        return SettingsError(str(self.path), [Fault(str(file), _words(error))])

    def _unpaired(self, certificate: Path, key: Path, error: Exception) -> list[Fault]:
        """Why TLS does not take the pair."""
        faults = []
        for file in (certificate, key):
            try:
                read_limited(file, pem.MAX_BUNDLE)
            except OSError as fault:
                faults.append(Fault(str(file), _words(fault)))
        if faults:
            return faults
        if "KEY_VALUES_MISMATCH" in str(error):
            return [Fault(str(key), f"is not the key of {certificate.name}: {REMEDY} anew")]
        try:
            pem.split(read_limited(certificate, pem.MAX_BUNDLE))
        except (OSError, IdentityError) as fault:
            return [Fault(str(certificate), _words(fault))]
        return [Fault(str(key), "cannot be read as a private key in PEM without a password")]

    def _check_own(self, kind: Kind | None, name: str | None, now: float) -> list[Fault]:
        try:
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            ours = self.presented()
        except SettingsError as error:
            return error.faults
        wanted = Identity(kind or ours.identity.kind, name or ours.identity.name)
        faults = []
        if ours.identity != wanted:
            faults.append(Fault(str(self.certificate), f"is that of {ours.identity}, not of {wanted}"))
        if ours.expires_at <= now:
            faults.append(
                Fault(
                    str(self.certificate),
                    f"expired at {_day(ours.expires_at)}: renew it with llmgw ctl cert renew {self.path}, or join anew",
                )
            )
        elif ours.issued_at - BACKDATED > now:
            faults.append(
                Fault(str(self.certificate), f"is valid only from {_day(ours.issued_at)}: is the clock right?")
            )
        return faults

    def _check_roots(self, now: float) -> list[Fault]:
        try:
            ends = [pem.expires_at(der) for der in pem.split(self.roots())]
        except SettingsError as error:
            return error.faults
        except IdentityError as error:
            return [Fault(str(self.authorities), _words(error))]
        if max(ends) <= now:
            return [Fault(str(self.authorities), f"expired at {_day(max(ends))}: a new root is needed, see the docs")]
        return []

    def _check_issuer(self, now: float) -> list[Fault]:
        from llmgw.identity import authority  # noqa: PLC0415 - large, and only for who signs

        moment = datetime.fromtimestamp(now, UTC)
        faults = []
        for file, chain in ((self.certificate, self.chain), (self.issuer, lambda: self.signer()[0])):
            try:
                authority.anchor(chain(), self.roots(), moment)
            except SettingsError as error:
                faults.extend(error.faults)
            except IdentityError as error:
                faults.append(Fault(str(file), f"{error}; renew it with llmgw ctl cert renew {self.path}"))
        return faults


def _stamp(file: Path) -> Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _open_to_others(file: Path) -> list[Fault]:
    """Whether others can read a key, or write to a directory."""
    try:
        status = file.stat()
    except OSError:
        return []
    forbidden, remedy = (0o022, "chmod 700") if stat.S_ISDIR(status.st_mode) else (0o077, "chmod 600")
    if status.st_mode & forbidden:
        what = "written to" if stat.S_ISDIR(status.st_mode) else "read"
        return [Fault(str(file), f"can be {what} by others: run {remedy} {file}")]
    return []


def _words(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"does not exist: {REMEDY}"
    if isinstance(error, PermissionError):
        return "cannot be read by this user: give it the owner that this service runs as"
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _day(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"
