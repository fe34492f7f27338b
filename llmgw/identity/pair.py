"""A certificate and its private key on disk, which change together (SEC-03).

Two files cannot be replaced at once. So both are first written aside as ``next-…``; from
the moment the certificate is there too, they are the pair that counts, and whoever comes
after a crash takes them from there, or finishes the move. They count no more once somebody
put another certificate in the place of the one that they were to replace, which they name.
"""

import contextlib
import errno
import hashlib
import os
import re
import ssl
from pathlib import Path

from llmgw.identity import pem
from llmgw.identity.names import IdentityError
from llmgw.runtime.files import open_regular, sync_directory, write_atomic

MAX_KEY = 64 * 1024
_MAX_MARKED = pem.MAX_BUNDLE + 1024

_MARK = b"# llmgw: in place of sha256:%s\n"
_MARKED = re.compile(_MARK % rb"([0-9a-f]{64})")


class Pair:
    """The two files, in one directory. Whoever writes holds the directory's lock."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate = certificate
        self.key = key
        self._next_certificate = certificate.with_name(f"next-{certificate.name}")
        self._next_key = key.with_name(f"next-{key.name}")

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that may hold a part of it."""
        return (self.certificate, self.key, self._next_certificate, self._next_key)

    @property
    def keys(self) -> tuple[Path, Path]:
        """Every file that may hold a key."""
        return (self.key, self._next_key)

    def current(self) -> tuple[Path, Path]:
        """The files that hold certificate and key just now. Another process may be moving
        them: who finds them gone or of different pairs looks again."""
        if not self._interrupted():
            return self.certificate, self.key
        return self._next_certificate, self._next_key if self._next_key.exists() else self.key

    def exists(self) -> bool:
        """Whether there is a certificate."""
        return self.certificate.is_file() or self._next_certificate.is_file()

    def prepare(self, key: bytes) -> None:
        """Keep a key whose certificate is still to come; the pair in use stays. Raises ``OSError``."""
        self.settle()
        put(self._next_key, key, 0o600)

    def abandon(self) -> None:
        """Drop a prepared key whose certificate will not come. Raises ``OSError``."""
        self.settle()
        self._next_key.unlink(missing_ok=True)

    def write(self, chain: bytes, key: bytes | None = None) -> None:
        """Replace both. Without a key, the certificate is for the prepared one or the one that
        is there. Raises ``IdentityError`` if they do not belong together, ``OSError``; what
        counts is unchanged then."""
        self.settle()
        if key is not None:
            put(self._next_key, key, 0o600)
        if self._fits(chain, self._next_key):
            put(self._next_certificate, _MARK % _digest(self.certificate) + chain, 0o644)
            self._finish()
        elif key is None and self._fits(chain, self.key):
            put(self.certificate, chain, 0o644)  # one file, so one move
        else:
            if key is not None:
                self._next_key.unlink()
            raise IdentityError("the new certificate is not for the key")

    def settle(self) -> None:
        """Finish what a crash interrupted, or drop it if it counts no more. Raises ``OSError``."""
        if self._interrupted():
            self._finish()
        elif self._next_certificate.exists():
            self._next_key.unlink(missing_ok=True)
            self._next_certificate.unlink(missing_ok=True)

    def _interrupted(self) -> bool:
        """Whether a new certificate waits to take the place of the one that is there."""
        try:
            text = read_limited(self._next_certificate, _MAX_MARKED)
            mark = _MARKED.match(text)
            if mark is not None and mark[1] != _digest(self.certificate):
                return False
            _certificates(text)
            return self._next_key.exists() or _paired(self._next_certificate, self.key)
        except (FileNotFoundError, IdentityError):
            return False
        except OSError:
            return True  # who uses it is told why it cannot be read

    def _finish(self) -> None:
        chain = _certificates(read_limited(self._next_certificate, _MAX_MARKED))
        # The key first: while next-certificate is there, it is the one that counts.
        with contextlib.suppress(FileNotFoundError):
            self._next_key.replace(self.key)
        sync_directory(self.key.parent)
        put(self.certificate, chain, 0o644)
        self._next_certificate.unlink()
        sync_directory(self.key.parent)

    @staticmethod
    def _fits(chain: bytes, key: Path) -> bool:
        # TLS reads files alone: this one is in memory, and leaves nothing wherever we end.
        with os.fdopen(os.memfd_create("certificate"), "wb") as trial:
            trial.write(chain)
            trial.flush()
            return _paired(Path(f"/proc/self/fd/{trial.fileno()}"), key)


def _paired(certificate: Path, key: Path) -> bool:
    """Whether they belong together, in the eyes of TLS, which will use them. Raises ``OSError``."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=no_password)
    except (FileNotFoundError, ssl.SSLError, ValueError):
        return False
    return True


def _certificates(text: bytes) -> bytes:
    """Those of a text that may be marked, and nothing else: who owns the directory may have put
    a link there to what only root, who writes here too, can read. Raises ``IdentityError``."""
    return pem.join(pem.split(_MARKED.sub(b"", text, count=1)))


def _digest(file: Path) -> bytes:
    """Of what a file holds; of nothing if it is absent. Raises ``OSError``."""
    try:
        data = read_limited(file, _MAX_MARKED)
    except FileNotFoundError:
        data = b""
    return hashlib.sha256(data).hexdigest().encode()


def no_password() -> str:
    """A key with a password is refused; without this the terminal would be asked for it."""
    return ""


def put(file: Path, data: bytes, mode: int) -> None:
    """Write a file for the owner of its directory: a service must be able to read what root
    gave it. Raises ``OSError``."""
    owner = file.parent.stat()
    others = os.geteuid() == 0 and owner.st_uid != 0
    write_atomic(file, data, mode, (owner.st_uid, owner.st_gid) if others else None)


def tidy(directory: Path) -> None:
    """Remove what writers left that were ended in the middle of a file; whoever calls it holds
    the lock of the directory. What cannot be removed stays: it is in nobody's way."""
    with contextlib.suppress(OSError):
        for leftover in directory.glob(".*.pem.????????"):
            leftover.unlink(missing_ok=True)


def read_limited(file: Path, limit: int = MAX_KEY) -> bytes:
    """A small file. Raises ``OSError``, also if it is longer than such a file can be."""
    with open_regular(file) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is longer than {limit // 1024} KiB", str(file))
    return data
