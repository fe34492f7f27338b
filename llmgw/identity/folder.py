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

from llmgw.identity import directory, pem
from llmgw.identity.names import BACKDATED, Identity, IdentityError, Kind, Presented
from llmgw.identity.pair import Pair, no_password, put, read_limited, tidy
from llmgw.runtime.clock import utc
from llmgw.runtime.faults import Fault, SettingsError

T = TypeVar("T")

Stamp = tuple[int, int, int, int]

Signature = tuple[Stamp | None, ...]
"""What tells that a file of the folder is another than before, or is somebody else's: one
that could not be read may be given to us as it is."""

_READ, _WRITE = 0o077, 0o022
"""What others must not be allowed: anything with a key, to write elsewhere."""

_TRIES = 5
"""So often a pair is read again that another process is replacing at that moment."""

REMEDY = "make it with llmgw join or llmgw ctl cert issue"


class Folder:
    """One identity on disk. Nothing is read or made by the constructor. ``remedy`` is what
    gives it an identity that can be used, as its faults say."""

    def __init__(self, path: Path, remedy: str = REMEDY) -> None:
        self.path = path
        self._remedy = remedy
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
        """Changes whenever a file of the folder does, or who may change what is in it."""
        return (_access(self.path), *map(_stamp, (self.authorities, *self._own.files, *self._issuer.files)))

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
                error: OSError | IdentityError = IdentityError(
                    "is not that of issuer-key.pem: run llmgw ctl cert renew"
                )
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
        should = f"it should hold a certificate and its key; {self._remedy}"
        if not self.path.is_dir():
            return [Fault(str(self.path), f"is no directory: {should}")]
        if os.access(self.path, os.X_OK) and not any(map(_stamp, (*self._own.files, self.authorities))):
            return [Fault(str(self.path), f"holds nothing of an identity: {should}")]
        faults = self.open_to_others()
        faults.extend(self._check_own(kind, name, moment))
        faults.extend(self._check_roots(moment))
        if needs_issuer and not faults:
            faults.extend(self._check_issuer(moment))
        return faults

    def check_against(
        self, shown: Presented | None, now: float, *, kind: Kind | None = None, name: str | None = None
    ) -> list[Fault]:
        """``check`` for who shows ``shown``, ``None`` at the start. Only a certificate that is to
        take its place must be good now: it may have expired in use and be renewed yet, and
        at the start our clock may be wrong."""
        try:
            ours = self.presented()
        except SettingsError:
            return self.check(kind=kind, name=name, now=now)
        return self.check(kind=kind, name=name, now=ours.issued_at if shown in {None, ours} else now)

    def open_to_others(self) -> list[Fault]:
        """Which keys others can read, and where others can put something of theirs (SEC-03)."""
        keys = (*self._own.keys, *self._issuer.keys)
        files = [(self.path, _WRITE), (self.authorities, _WRITE), *((key, _READ) for key in keys)]
        return [fault for file, forbidden in files for fault in _open_to_others(file, forbidden)]

    def prepare(self, key: bytes) -> None:
        """Keep a new key, of which a certificate is asked for: a later ``write`` of that
        certificate alone takes it. The pair in use is untouched. Raises ``OSError``,
        ``SettingsError`` if others can write to the directory."""
        with self._writing() as inside:
            inside._own.prepare(key)

    def abandon(self) -> None:
        """Drop the key of ``prepare``: its certificate will not come. A directory that holds
        nothing then goes too. Raises ``OSError``."""
        with self.locked() as inside:
            inside._own.abandon()
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

        Raises ``SettingsError`` if a certificate and its key do not belong together, something
        cannot be read, or others can write to the directory; ``OSError`` if it cannot be
        written. Nothing but ``authorities`` may have changed then.
        """
        trusted, chain, signing = (
            None if text is None else self._accept(file, text)
            for file, text in ((self.authorities, authorities), (self.certificate, certificate), (self.issuer, issuer))
        )
        with self._writing() as inside:
            # Whom to trust comes first: what is signed by a new root is shown to who knows it.
            if trusted is not None:
                put(inside.authorities, trusted, 0o644)
            for pair, text, private in ((inside._issuer, signing, issuer_key), (inside._own, chain, key)):
                if text is None:
                    continue
                try:
                    pair.write(text, private)
                except IdentityError as error:
                    raise self._fault(self.path / pair.certificate.name, error) from error

    def tidy(self) -> None:
        """Remove what writers left that were ended in the middle of a file, if we can."""
        with contextlib.suppress(OSError), self.locked() as inside:
            tidy(inside.path)

    @contextlib.contextmanager
    def locked(self, *, make: bool = False) -> Iterator["Folder"]:
        """Alone among those who write into the folder, also of other processes. Gives the
        folder by its descriptor: nobody can put another in its place meanwhile."""
        descriptor = directory.opened(self.path, make=make)
        inside = f"/proc/self/fd/{descriptor}"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Folder(Path(inside))
        except OSError as error:
            if isinstance(error.filename, str):
                error.filename = error.filename.replace(inside, str(self.path), 1)
            raise
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _writing(self) -> Iterator["Folder"]:
        """``locked``; made if it is not there, refused if others could change what we write."""
        with self.locked(make=True) as inside:
            if faults := _open_to_others(self.path, _WRITE):
                raise SettingsError(str(self.path), faults)
            yield inside

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
            raise SettingsError(str(self.path), [self._unread(file, error)]) from error

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

    def _fault(self, file: Path, error: OSError | IdentityError) -> SettingsError:
        words = self._unread(file, error).message if isinstance(error, OSError) else str(error)
        return SettingsError(str(self.path), [Fault(str(file), words)])

    def _unread(self, file: Path, error: OSError | IdentityError) -> Fault:
        """What of ours is not there or cannot be read, and the remedy."""
        if isinstance(error, FileNotFoundError):
            words = f"does not exist: {self._remedy}"
        elif isinstance(error, PermissionError):
            words = "cannot be read by this user: give it the owner that this service runs as"
        elif isinstance(error, OSError):
            words = f"cannot be read: {error.strerror}"
        else:
            words = f"{error}: {self._remedy} anew"
        return Fault(str(file), words)

    def _unpaired(self, certificate: Path, key: Path, error: Exception) -> list[Fault]:
        """Why TLS does not take the pair."""
        faults = []
        for file in (certificate, key):
            try:
                read_limited(file, pem.MAX_BUNDLE)
            except OSError as fault:
                faults.append(self._unread(file, fault))
        if faults:
            return faults
        if "KEY_VALUES_MISMATCH" in str(error):
            return [Fault(str(key), f"is not the key of {certificate.name}: {self._remedy} anew")]
        try:
            pem.split(read_limited(certificate, pem.MAX_BUNDLE))
        except (OSError, IdentityError) as fault:
            return [self._unread(certificate, fault)]
        return [Fault(str(key), f"cannot be read as a private key in PEM without a password: {self._remedy} anew")]

    def _check_own(self, kind: Kind | None, name: str | None, now: float) -> list[Fault]:
        try:
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            ours = self.presented()
        except SettingsError as error:
            return error.faults
        wanted = Identity(kind or ours.identity.kind, name or ours.identity.name)
        faults = []
        if ours.identity != wanted:
            faults.append(Fault(str(self.certificate), f"is that of {ours.identity}, not of {wanted}: {self._remedy}"))
        if ours.expires_at <= now:
            faults.append(
                Fault(
                    str(self.certificate),
                    f"expired at {utc(ours.expires_at)}: renew it with llmgw ctl cert renew {self.path}, or join anew",
                )
            )
        elif ours.issued_at - BACKDATED > now:
            faults.append(
                Fault(str(self.certificate), f"is valid only from {utc(ours.issued_at)}: is the clock right?")
            )
        return faults

    def _check_roots(self, now: float) -> list[Fault]:
        try:
            ends = [pem.expires_at(der) for der in pem.split(self.roots())]
        except SettingsError as error:
            return error.faults
        except IdentityError as error:
            return [self._unread(self.authorities, error)]
        if max(ends) <= now:
            return [Fault(str(self.authorities), f"expired at {utc(max(ends))}: a new root is needed, see the docs")]
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


def _access(path: Path) -> Stamp | None:
    """Who may change what is in a directory; not when it was done last, for other files count nothing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mode, status.st_uid, status.st_gid


def _open_to_others(file: Path, forbidden: int) -> list[Fault]:
    try:
        mode = file.stat().st_mode
    except OSError:
        return []
    if mode & forbidden:
        what, good = ("read", "600") if forbidden == _READ else ("written to", "700" if stat.S_ISDIR(mode) else "644")
        return [Fault(str(file), f"can be {what} by others: run chmod {good} {file}")]
    return []
