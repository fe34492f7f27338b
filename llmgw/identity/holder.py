"""A node or a router as the holder of its identity: shows it, renews it, notices that others
replaced it (SEC-01, SEC-08).

Everything here blocks for some milliseconds: call it off the hub. ``cryptography`` is
loaded with the first request for a certificate, not before.
"""

import random
import time
from datetime import UTC, datetime
from pathlib import Path

from llmgw.identity import pem, renewal
from llmgw.identity.folder import Folder, Signature
from llmgw.identity.names import BACKDATED, Identity, IdentityError, Presented
from llmgw.identity.tls import ClientTls
from llmgw.runtime.clock import utc
from llmgw.runtime.faults import Fault, SettingsError


class Holder:
    """The folder of one identity, and connections that show it. ``tls`` is for those;
    ``presented`` and ``authorities`` (the digest of those trusted) are as loaded last."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self.identity = identity
        self.folder = Folder(path, f"make it with {self._join()} --identity {path}")
        self.tls = ClientTls(self.folder)
        self.authorities = ""
        self.due = 0.0
        """When to ask for the next certificate, in Unix time."""
        self._presented: Presented | None = None
        self._seen: Signature | None = None
        self._told: tuple[Signature, str] | None = None
        """What could not be used at the last look, and why."""
        self._asked = b""
        """The key of the last ``request``."""

    def __repr__(self) -> str:
        return f"Holder({self.identity}, {str(self.folder.path)!r})"

    @property
    def loaded(self) -> bool:
        """Whether there is an identity to show."""
        return self._presented is not None

    @property
    def presented(self) -> Presented:
        """What our certificate says. Raises ``SettingsError`` before ``refresh``."""
        if self._presented is None:
            raise SettingsError(str(self.folder.path), [Fault("", "the certificate has not been loaded")])
        return self._presented

    def faults(self) -> list[Fault]:
        """What keeps the folder from being used, with the remedy; an expired certificate
        does not: it may be renewed while the process lives, which is said to a person again
        and again (``warning``)."""
        return self._check()

    def refresh(self) -> bool:
        """Use the files if they are others than those in use; whether they were. Raises
        ``SettingsError`` once for each change, and each reason, that they cannot be used for:
        what is in use stays, and they are looked at again the next time, for the reason may
        have been none of theirs, such as too many open files."""
        signature = self.folder.signature()
        told, self._told = self._told, None
        if signature == self._seen:
            return False
        try:
            self._demand()
            context, ours, roots = self.tls.load(), self.folder.presented(), self.folder.roots()
        except SettingsError as error:
            self._told = (signature, str(error))
            if told == self._told:
                return False
            raise
        if self.loaded and self.folder.signature() != signature:
            return False  # somebody is replacing them: the next look finds all of it
        self._seen = signature
        self.tls.use(context)
        self.authorities = pem.digest(roots)
        if ours != self._presented:
            draw = random.random()  # noqa: S311 - spreads load
            self.due = renewal.due(ours.issued_at, ours.expires_at, time.time(), draw)
        self._presented = ours
        return True

    def warning(self) -> str:
        """What a person should do about the certificate now, empty if nothing."""
        ours, now = self.presented, time.time()
        if now < ours.issued_at - BACKDATED:
            return f"the certificate is valid only from {utc(ours.issued_at)}: is the clock of this machine right?"
        if now >= ours.expires_at:
            return f"the certificate expired at {utc(ours.expires_at)}, no control plane takes it: {self._join()}"
        if renewal.late(ours.issued_at, ours.expires_at, now):
            return f"the certificate expires at {utc(ours.expires_at)} and was not renewed yet"
        return ""

    def request(self) -> str:
        """Make a new key, keep it beside the one in use, and ask for a certificate for it: the
        PEM of the request. Raises ``OSError``, ``SettingsError`` if the folder is open to others."""
        from llmgw.identity import authority  # noqa: PLC0415 - large, and rarely needed

        if faults := self.folder.open_to_others():  # what comes would not be used
            raise SettingsError(str(self.folder.path), faults)
        self._asked = key = authority.new_key()
        self.folder.prepare(key)
        return authority.request(self.identity, key).decode("ascii")

    def install(self, certificate: str, authorities: str) -> None:
        """Take what a control plane sent, either of it empty: a certificate for the last
        ``request``, and whom to trust instead. What would leave us without a connection is
        refused with ``IdentityError``. Raises ``SettingsError`` and ``OSError`` too."""
        chain = certificate.encode("utf-8", "replace")
        roots = authorities.encode("utf-8", "replace")
        try:
            self._judge(chain, roots)
        except ValueError as error:
            raise IdentityError("what came cannot be read as certificates") from error
        self.folder.write(certificate=chain or None, authorities=roots or None)

    def _demand(self) -> None:
        """Raises ``SettingsError`` if what is on disk cannot be used, or would not work in the
        place of what is in use."""
        if faults := self._check():
            raise SettingsError(str(self.folder.path), faults)
        if self.loaded:
            self.tls.prove()

    def _check(self) -> list[Fault]:
        kind, name = self.identity.kind, self.identity.name
        return self.folder.check_against(self._presented, time.time(), kind=kind, name=name)

    def _judge(self, chain: bytes, roots: bytes) -> None:
        from llmgw.identity import authority  # noqa: PLC0415 - large, and rarely needed

        now = datetime.now(UTC)
        if not chain:
            # It comes over a connection that the present ones vouch for, and that must go on.
            authority.anchor(self.folder.chain(), roots, self._valid_now(now))
            return
        facts = authority.facts(chain)
        if facts.identity != self.identity:
            raise IdentityError(f"the certificate that came is that of {facts.identity}, not of {self.identity}")
        if not self._asked or not authority.same_key(chain, self._asked):
            raise IdentityError("the certificate that came is not for the key of our request")
        authority.anchor(chain, roots or self.folder.roots(), now)

    def _valid_now(self, now: datetime) -> datetime:
        """A moment at which our own certificate is valid: who signed it is the question."""
        ours = self.folder.presented()
        return datetime.fromtimestamp(min(max(now.timestamp(), ours.issued_at), ours.expires_at - 1), UTC)

    def _join(self) -> str:
        return f"llmgw join {self.identity.kind} CONTROL-PLANE:7003 {self.identity.name}"
