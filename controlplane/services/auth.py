"""Who asks: a bearer token against the digests in memory (API-08, SEC-03).

Beside the users' tokens there is a *local* one, in a file that only the service's own
user and root can read. It is made at the first start, is never in the store, and works
when the store is away.
"""

import errno
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from controlplane.services.changes import Principal
from controlplane.services.errors import Refused
from controlplane.services.people import PREFIX, RANDOM_BYTES, People, digest
from controlplane.store.values import Grant, Role
from llmgw.runtime.clock import Clock
from llmgw.runtime.files import open_regular, write_atomic
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Fault, SettingsError

log = Logger("llmgw.auth")

LOCAL = "local"
"""The user of the local token, and the token's id."""

LOCAL_FILE = "admin.token"
MAX_TOKEN = 200

REMEDY = (
    "send a token as 'Authorization: Bearer TOKEN'; an administrator makes one with POST /api/v1/tokens, "
    f"and the control plane's own is in the file {LOCAL_FILE} of its state_dir"
)

TOLD, PER = 20, 60.0
"""So many refused tokens are logged in so many seconds; the others are counted."""


def load_local_token(state_dir: Path) -> str:
    """The digest of the local token, whose file is made if it is not there. Blocking.

    Raises ``SettingsError`` if the file is not ours alone: others could have read the
    token, or put one there.
    """
    file = state_dir / LOCAL_FILE
    try:
        try:
            return _read_local_token(file)
        except FileNotFoundError:
            text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
            write_atomic(file, f"{text}\n".encode())
            return digest(text)
    except OSError as error:
        raise _unusable(file, f"cannot be used: {error.strerror}") from error


def _read_local_token(file: Path) -> str:
    if file.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(file))
    with open_regular(file) as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid not in (os.geteuid(), 0):
            raise _unusable(file, f"belongs to another user (uid {status.st_uid}): remove it, a new one is made")
        if status.st_mode & 0o077:
            raise _unusable(file, f"could be read by others: remove it (a new one is made) or run chmod 600 {file}")
        text = stream.read(MAX_TOKEN + 2).decode("ascii", "replace").strip()
    if not text.startswith(PREFIX) or not len(PREFIX) + 22 <= len(text) <= MAX_TOKEN or not text.isprintable():
        raise _unusable(file, "holds no token of ours: remove it, a new one is made")
    return digest(text)


def _unusable(file: Path, words: str) -> SettingsError:
    return SettingsError("llmgw server", [Fault("state_dir", f"{file} {words}")])


class Authenticator:
    """Turns what a request presents into a ``Principal``.

    Tokens are looked up by their digest, so the time that takes tells nothing about any
    token. ``refused`` counts what was turned away.
    """

    def __init__(self, people: People, local: Callable[[], str], clock: Clock) -> None:
        self._people = people
        self._local = local
        self._clock = clock
        self._window = 0.0
        self._told = 0
        self.refused = 0

    def principal(self, header: str | None, peer: str) -> Principal:
        """Who sent this ``Authorization`` header. ``peer`` is for the log. Raises
        ``Refused`` (401)."""
        scheme, _, token = (header or "").strip().partition(" ")
        token = token.strip()
        if not header:
            raise self._refuse("the request carries no token", peer, "")
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN or not token.isascii() or " " in token:
            raise self._refuse("the Authorization header holds no bearer token", peer, "")
        presented = digest(token)
        if secrets.compare_digest(presented, self._local()):
            return Principal(LOCAL, LOCAL, (Grant("admin"),))
        known = self._people.token(presented)
        if known is None:
            raise self._refuse("the token is not valid", peer, "")
        why = self._people.why_not(known)
        if why:
            raise self._refuse(why, peer, known.id)
        user = self._people.user(known.user)
        return Principal(user.name, known.id, user.grants)

    def still(self, principal: Principal) -> Principal | None:
        """The principal as it is by now; ``None`` if its token is good for nothing any more.
        For what goes on longer than a request, such as a stream."""
        if principal.token == LOCAL:
            return principal
        known = self._people.by_id(principal.token)
        if known is None or self._people.why_not(known):
            return None
        return Principal(principal.user, principal.token, self._people.user(known.user).grants)

    def _refuse(self, why: str, peer: str, token: str) -> Refused:
        self.refused += 1
        now = self._clock.monotonic()
        if now - self._window >= PER:
            if self._told > TOLD:
                log.warning("more requests without a valid token were refused", count=self._told - TOLD)
            self._window, self._told = now, 0
        self._told += 1
        if self._told <= TOLD:
            log.warning("a request without a valid token was refused", why=why, peer=peer, token=token or None)
        return Refused(
            "unauthenticated",
            f"{why}: {REMEDY}",
            status=401,
            headers={"WWW-Authenticate": 'Bearer realm="llmgw"' + (', error="invalid_token"' if token else "")},
        )


def require(principal: Principal, needed: Sequence[Role]) -> None:
    """Raise ``Refused`` (403) unless it has one of the roles."""
    if not principal.has(*needed):
        raise Refused(
            "forbidden",
            f"this needs the role {alternatives(needed)}; {principal.user} has {described(principal.grants)}: "
            "an administrator can change that with PUT /api/v1/users/NAME",
            status=403,
        )


def alternatives(words: Sequence[str]) -> str:
    """Words of which one will do, such as ``admin, operator or auditor``."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def described(grants: Sequence[Grant]) -> str:
    """Roles in words, such as ``auditor and owner of acme/ml``."""
    words = [f"{grant.role} of {grant.scope}" if grant.scope else grant.role for grant in grants]
    return " and ".join(words) if words else "no role"
