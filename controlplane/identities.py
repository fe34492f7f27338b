"""What this control plane shows and signs with (SEC-01, SEC-08): its own certificate, whom
it trusts, and the issuing authority that makes certificates for those who join or renew.

One object for the whole life of the process, also while it stands by. The files are looked
at every few seconds: what is replaced counts for connections to come.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore

from controlplane.offhub import off_hub
from llmgw.identity import pem, renewal
from llmgw.identity.folder import Folder, Signature
from llmgw.identity.names import BACKDATED, Identity, IdentityError, Presented
from llmgw.identity.pair import read_limited
from llmgw.identity.tls import ServerTls
from llmgw.runtime.clock import Clock, utc
from llmgw.runtime.faults import Fault, SettingsError
from llmgw.runtime.logs import Logger

log = Logger("llmgw.identity")

EVERY = 5.0
"""Seconds between two looks at the files."""

SIGNERS = 2
"""Certificates that are made at once: each costs a native thread a millisecond or two."""

PAUSE = 0.005
"""Seconds between two certificates of one signer: a fleet that renews leaves others their turn."""

NO_ISSUER = (
    "this control plane cannot sign certificates: give it an issuer with llmgw ctl cert issue controlplane "
    "on the machine that holds the authority"
)


class NoIssuer(IdentityError):
    """There is nothing to sign with."""


@dataclass(frozen=True, slots=True)
class _Issuer:
    """``current``: the names of those whose certificates need not be replaced while a root is
    rotated: this issuer, and the newest root."""

    chain: bytes
    key: bytes
    facts: Any
    current: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Expiry:
    """The life of something of ours: ``server``, ``issuer`` or ``authority``. Unix time."""

    what: str
    issued_at: float
    expires_at: float


class Credentials:
    """The folder of this control plane's identity, in use. Call ``load`` first.

    ``mutual`` is TLS that asks for a certificate of agents and routers, ``plain`` that of
    the join listener, which asks for none.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.folder = Folder(path, "make it with llmgw ctl cert issue controlplane")
        self.mutual = ServerTls(self.folder, clients=True)
        self.plain = ServerTls(self.folder, clients=False)
        self.authorities = b""
        self.digest = ""
        self.failing = ""
        """Why the files cannot be used as they are now; empty if they are in use."""
        self._clock = clock
        self._seen: Signature | None = None
        self._presented: Presented | None = None
        self._issuer: _Issuer | None = None
        self._no_issuer = ""
        self._due: float | None = None
        self._signers = BoundedSemaphore(SIGNERS)
        self._refreshing = BoundedSemaphore()
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._changed: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"Credentials({str(self.folder.path)!r})"

    # ------------------------------------------------------------ life

    def load(self) -> "Credentials":
        """Read the folder. Blocking. Raises ``SettingsError`` with all that is wrong; an
        expired certificate is not: nobody could put a new one in its place otherwise."""
        if faults := self._check():
            raise SettingsError("identity", faults)
        self._read(self.folder.signature())
        return self

    def start(self) -> None:
        """Look at the files from time to time, and renew our own certificate."""
        self._greenlet = gevent.spawn(self._watch)

    def stop(self) -> None:
        """Look no more."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this whenever authorities or issuer are others."""
        self._changed.append(call)

    def off_change(self, call: Callable[[], None]) -> None:
        """Call it no more."""
        if call in self._changed:
            self._changed.remove(call)

    def refresh(self) -> None:
        """Look at the files now (SIGHUP)."""
        with self._refreshing:  # two at once could leave the older one in use
            before = (self.digest, self._issued_at())
            try:
                changed = off_hub(self._refresh)
            except (SettingsError, IdentityError, OSError) as error:
                if str(error) != self.failing:
                    log.error("the identity on disk cannot be used, the one in use stays", why=error)
                self.failing = str(error)
                return
            self.failing = ""
            if changed:
                log.info("identity loaded", serial=self.presented.serial, signs=self._issuer is not None)
        if (self.digest, self._issued_at()) != before:
            for call in list(self._changed):
                call()

    # ------------------------------------------------------------ what we are

    @property
    def presented(self) -> Presented:
        """What our own certificate says."""
        if self._presented is None:
            raise SettingsError(str(self.folder.path), [Fault("", "the certificate has not been loaded")])
        return self._presented

    @property
    def root(self) -> bytes:
        """DER of the authority that our certificate leads to: what a join token names.
        Blocking. Raises ``IdentityError``."""
        from llmgw.identity import authority  # noqa: PLC0415 - large, and only for who signs

        return authority.anchor(self.folder.chain(), self.authorities, self._clock.now())

    @property
    def no_issuer(self) -> str:
        """Why nothing can be signed, with the remedy; empty if something can."""
        return self._no_issuer

    def outdated(self, presented: Presented) -> bool:
        """Whether a certificate is to be replaced by one of ours, for it may be from under an
        authority that is going (SEC-08): it is older than our issuer, or, while there are two
        roots, of another. The age alone would not do: between the moment an issuer is made and
        that at which it is here, the one before goes on signing."""
        ours = self._issuer
        if ours is None:
            return False
        old = len(pem.split(self.authorities)) > 1 and presented.issuer not in {"", *ours.current}
        return old or presented.issued_at < ours.facts.issued_at

    def expiries(self) -> tuple[Expiry, ...]:
        """How long what is on disk is good for. Blocking: read anew, for what was replaced
        and not loaded counts too."""
        found = []
        try:
            own = self.folder.presented()
            found.append(Expiry("server", own.issued_at, own.expires_at))
        except SettingsError:
            pass  # absent is unknown
        for what, file in (("issuer", self.folder.issuer), ("authority", self.folder.authorities)):
            life = _first_to_end(file)
            if life is not None:
                found.append(Expiry(what, *life))
        return tuple(found)

    # ------------------------------------------------------------ signing

    def sign(self, identity: Identity, request: bytes, after: float = 0.0) -> bytes:
        """A certificate chain for a signing request, issued later than ``after`` (Unix time):
        what was revoked then must not be taken for it. Waits its turn. Raises
        ``IdentityError``, ``NoIssuer`` among them."""
        with self._signers:
            chain = off_hub(self._sign, identity, request, after)
            gevent.sleep(PAUSE)
        return chain

    def _sign(self, identity: Identity, request: bytes, after: float, **more: Any) -> bytes:
        from llmgw.identity import authority  # noqa: PLC0415 - large, and only for who signs

        issuer = self._issuer
        if issuer is None:
            raise NoIssuer(self._no_issuer or NO_ISSUER)
        now = self._clock.now()
        if int(now.timestamp()) <= after:  # certificates know whole seconds
            good = datetime.fromtimestamp(int(after) + 1, UTC)
            if (good - now).total_seconds() >= BACKDATED:
                raise IdentityError(
                    f"the certificates of {identity} were revoked as of {utc(after)}, which our clock has yet to "
                    "reach, so none would be good before: if it was ahead then, revoke them once more and try again; "
                    "if the clock was that dated an earlier one, wait until then"
                )
            now = good
        return authority.sign(request, identity, issuer.chain, issuer.key, now, **more)

    # ------------------------------------------------------------ files

    def _watch(self) -> None:
        off_hub(self.folder.tidy)
        while True:
            gevent.sleep(min(EVERY, max(0.1, self._until_due())))
            try:
                self.refresh()
                if self._until_due() <= 0:
                    self._renew()
            except Exception:
                log.exception("our own identity could not be looked after")
                gevent.sleep(EVERY)

    def _until_due(self) -> float:
        """Seconds until our own certificate is to be renewed, if we can."""
        if self._issuer is None or self._due is None or self.failing:
            return EVERY
        return self._due - self._clock.now().timestamp()

    def _renew(self) -> None:
        """Our own certificate, with our own issuer; it keeps its names and addresses."""
        try:
            off_hub(self._renew_blocking)
        except (SettingsError, IdentityError, OSError) as error:
            now = self._clock.now().timestamp()
            self._due = renewal.retry(self.presented.expires_at, now, random.random())  # noqa: S311 - no secret
            log.error("our own certificate could not be renewed", why=error)
            return
        log.info("our own certificate is renewed")
        self.refresh()

    def _renew_blocking(self) -> None:
        from llmgw.identity import authority  # noqa: PLC0415 - large, and only for who signs

        if faults := self.folder.open_to_others():  # the new one would not be used
            raise SettingsError(str(self.folder.path), faults)
        ours = authority.facts(self.folder.chain())
        identity = self.presented.identity
        key = authority.new_key()
        life = timedelta(seconds=ours.expires_at - ours.issued_at)
        chain = self._sign(identity, authority.request(identity, key), 0.0, dns=ours.dns, ips=ours.ips, lifetime=life)
        authority.anchor(chain, self.authorities, self._clock.now())
        self.folder.write(certificate=chain, key=key)

    def _refresh(self) -> bool:
        signature = self.folder.signature()
        if signature == self._seen:
            return False
        if faults := self._check():
            raise SettingsError(str(self.folder.path), faults)
        self.mutual.prove()
        return self._read(signature)

    def _check(self) -> list[Fault]:
        return self.folder.check_against(self._presented, self._clock.now().timestamp(), kind="controlplane")

    def _read(self, signature: Signature) -> bool:
        """Take over what the files hold; all of it or, if something cannot be used or they are
        no longer those of ``signature``, nothing."""
        mutual, plain = self.mutual.load(), self.plain.load()
        presented, authorities = self.folder.presented(), self.folder.roots()
        issuer, why = self._read_issuer()
        if issuer is None and self._issuer is not None and self.folder.issuer.exists():
            raise IdentityError(why)
        if self._presented is not None and self.folder.signature() != signature:
            return False  # somebody is replacing them: the next look finds all of it
        self._seen = signature
        self.mutual.use(mutual)
        self.plain.use(plain)
        if presented != self._presented:
            now = self._clock.now().timestamp()
            draw = random.random()  # noqa: S311 - no secret
            self._due = renewal.due(presented.issued_at, presented.expires_at, now, draw)
        self._presented, self.authorities = presented, authorities
        self.digest = pem.digest(authorities)
        self._issuer, self._no_issuer = issuer, why
        return True

    def _read_issuer(self) -> tuple[_Issuer | None, str]:
        from llmgw.identity import authority  # noqa: PLC0415 - large, and only for who signs

        if not self.folder.issuer.exists():
            return None, NO_ISSUER
        try:
            chain, key = self.folder.signer()
            facts = authority.facts(chain)
            root = authority.facts(pem.join([authority.anchor(chain, self.folder.roots(), self._clock.now())]))
            return _Issuer(chain, key, facts, frozenset((facts.subject, root.subject))), ""
        except (SettingsError, IdentityError) as error:
            return None, f"{error}: {NO_ISSUER}"

    def _issued_at(self) -> float:
        return 0.0 if self._issuer is None else float(self._issuer.facts.issued_at)


def _first_to_end(file: Path) -> tuple[float, float] | None:
    from llmgw.identity import authority  # noqa: PLC0415 - large, and only for who signs

    try:
        ends = [authority.facts(pem.join([der])) for der in pem.split(read_limited(file, pem.MAX_BUNDLE))]
    except (OSError, IdentityError):
        return None
    first = min(ends, key=lambda facts: facts.expires_at)
    return first.issued_at, first.expires_at


def concerns(expiries: Iterable[Expiry], now: float) -> Iterator[tuple[str, str]]:
    """What a person should look at: what it is, and words that follow it."""
    remedy = {
        "server": "it renews itself if there is an issuer; else: llmgw ctl cert renew",
        "issuer": "make a new one with llmgw ctl cert renew on the machine that holds the authority",
        "authority": "begin its rotation with llmgw ctl cert init --rotate on the machine that holds it",
    }
    for life in expiries:
        if now >= life.expires_at:
            yield life.what, f"has expired: {remedy[life.what]}"
        elif now < life.issued_at - BACKDATED:
            yield life.what, f"is valid only from {utc(life.issued_at)}: is the clock of this machine right?"
        elif renewal.late(life.issued_at, life.expires_at, now):
            days = (life.expires_at - now) / 86_400
            yield life.what, f"expires in {days:.1f} days: {remedy[life.what]}"
