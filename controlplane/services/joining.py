"""Join tokens, and first certificates for them (SEC-02).

A token is for one node or router, once, for a quarter of an hour. It is shown once; the
store keeps a digest.
"""

import secrets
from dataclasses import dataclass

from controlplane.identities import Credentials
from controlplane.offhub import off_hub
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import conflict, not_found
from controlplane.services.identities import Identities, NotAdmitted
from controlplane.services.reading import read
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import Enrolled, JoinToken
from llmgw.identity import joining
from llmgw.identity.names import Identity, IdentityError
from llmgw.identity.pem import presented as presented_in
from llmgw.runtime.clock import Clock
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.logs import Logger

log = Logger("llmgw.join")

LIFE = 900.0
"""Seconds for which a token is good."""

MAX_WRONG = 10
"""Wrong secrets for one token, after which it is good for nothing."""

MAX_COUNTED = 10_000
"""Tokens of which wrong secrets are counted."""


class JoinRefused(NotAdmitted):
    """No certificate for a join token. ``reason`` tells apart for our log what the code does not,
    and ``own`` is what the log says, where the peer must not learn it."""

    def __init__(self, code: str, message: str, reason: str = "", own: str = "") -> None:
        super().__init__(code, message)
        self.reason = reason or code
        self.own = own or message


@dataclass(frozen=True, slots=True)
class Joined:
    """A first certificate: its chain, and whom to trust, in PEM."""

    certificate: bytes
    authorities: bytes


class Joining:
    """Makes join tokens, and certificates for those who have one. ``address`` is where."""

    def __init__(
        self,
        store: StoreAccess,
        changes: Changes,
        clock: Clock,
        *,
        credentials: Credentials,
        identities: Identities,
        address: str,
    ) -> None:
        self.address = address
        self._store = store
        self._changes = changes
        self._clock = clock
        self._credentials = credentials
        self._identities = identities
        self._wrong: dict[str, int] = {}

    # ------------------------------------------------------------ tokens

    def tokens(self) -> tuple[JoinToken, ...]:
        """Tokens that were made of late, used ones too, oldest first. Raises ``Refused``."""
        return read(self._store, lambda tx: tx.identities.tokens())

    def one(self, token_id: str) -> JoinToken:
        """One token's record. Raises ``Refused``."""
        found = {token.id: token for token in self.tokens()}
        if token_id not in found:
            raise not_found("join token", token_id, did_you_mean(token_id, found))
        return found[token_id]

    def state(self, token: JoinToken) -> str:
        """``unused``, ``used``, ``expired`` or ``void``: too many wrong secrets were tried."""
        if token.used_at is not None:
            return "used"
        if token.expires_at <= self._clock.now().timestamp():
            return "expired"
        return "void" if self._wrong.get(token.id, 0) >= MAX_WRONG else "unused"

    def add(self, asked: Asked, identity: Identity) -> tuple[JoinToken, str]:
        """Make a token; the second value is the token itself, which is kept nowhere. Raises
        ``Refused``: a token that could not be used is not made."""
        self._changes.recall(asked)
        if self._credentials.no_issuer:
            raise conflict(self._credentials.no_issuer)
        try:
            made = joining.new_token(off_hub(lambda: self._credentials.root))
        except IdentityError as error:
            raise conflict(f"a token could not name the authority: {error}") from error
        now = self._clock.now().timestamp()
        token = JoinToken(
            id=made.id,
            digest=joining.digest(made),
            kind=identity.kind,
            name=identity.name,
            created_at=now,
            created_by=asked.actor,
            expires_at=now + LIFE,
        )

        def work(tx: Transaction) -> Changed[JoinToken]:
            tx.identities.add_token(token)
            return Changed(token, "join token", token.id, None, plain(token))

        kept = self._changes.make(asked, work)
        log.info("join token created", token=token.id, kind=token.kind, name=token.name, actor=asked.actor)
        return kept, made.text

    def remove(self, asked: Asked, token_id: str) -> None:
        """Take a token back. Raises ``Refused``."""

        def work(tx: Transaction) -> Changed[None]:
            gone = tx.identities.remove_token(token_id)
            if gone is None:
                raise not_found("join token", token_id)
            return Changed(None, "join token", token_id, plain(gone), None)

        self._changes.make(asked, work)
        log.info("join token removed", token=token_id, actor=asked.actor)

    # ------------------------------------------------------------ joining

    def join(self, text: str, identity: Identity, request: bytes, peer: str) -> Joined:
        """A certificate for who has the token of this identity. Raises ``JoinRefused``,
        ``StoreUnavailable``.

        It is made before the token is used up: a request that cannot be signed costs none.
        """
        if identity.kind == "controlplane":
            words = "a control plane does not join: make its identity with llmgw ctl cert issue controlplane NAME"
            raise JoinRefused("join_refused", words, "controlplane")
        try:
            presented = joining.parse(text)
        except IdentityError as error:
            raise JoinRefused("join_refused", str(error), "unreadable") from error
        digest = joining.digest(presented)
        self._check(presented.id, digest, self._store.read(lambda tx: tx.identities.token(presented.id)), identity)
        try:
            chain = self._credentials.sign(identity, request, self._identities.revoked_until(identity))
        except IdentityError as error:
            code = "no_issuer" if self._credentials.no_issuer else "bad_request"
            raise JoinRefused(code, str(error)) from error
        certificate = presented_in(chain)

        def work(tx: Transaction) -> Enrolled | None:
            used = tx.identities.use_token(presented.id, digest, self._clock.now().timestamp(), peer)
            if used is None or (used.kind, used.name) != (identity.kind, identity.name):
                return None
            return self._identities.joined(tx, certificate, used.id, f"join token of {used.created_by}")

        with self._identities.lock:
            row = self._store.write(work)
            if row is None:
                raise JoinRefused("join_refused", "the join token was used or taken back at this moment: make another")
            self._identities.keep(row)
        log.info("joined", kind=identity.kind, name=identity.name, token=presented.id, peer=peer)
        return Joined(chain, self._credentials.authorities)

    def _check(self, token_id: str, digest: str, token: JoinToken | None, identity: Identity) -> None:
        """Raises ``JoinRefused``. Who does not have the secret learns nothing of the token."""
        kept = "-" * 64 if token is None else token.digest
        right = secrets.compare_digest(digest, kept)
        unknown = f"there is no such join token: make one with llmgw ctl {identity.kind}s add NAME"
        if token is None:
            raise JoinRefused("join_refused", unknown, "unknown")
        command = f"make another with llmgw ctl {token.kind}s add {token.name}"
        wrong = self._wrong.get(token_id, 0)
        if not right or wrong >= MAX_WRONG:
            self._wrong.pop(token_id, None)
            self._wrong[token_id] = wrong + 1
            while len(self._wrong) > MAX_COUNTED:
                del self._wrong[next(iter(self._wrong))]
            own = f"a wrong secret for join token {token_id}, {wrong + 1} of {MAX_WRONG} that make it void"
            if wrong >= MAX_WRONG:
                own = f"join token {token_id} is void, for {MAX_WRONG} wrong secrets were tried: {command}"
            raise JoinRefused("join_refused", unknown, "wrong" if wrong < MAX_WRONG else "void", own)
        if token.used_at is not None:
            words = f"the join token was used already, from {token.used_from}: {command}"
            raise JoinRefused("join_refused", words, "used")
        if token.expires_at <= self._clock.now().timestamp():
            words = f"the join token has expired (it is good for 15 minutes): {command}"
            raise JoinRefused("join_refused", words, "expired")
        if (token.kind, token.name) != (identity.kind, identity.name):
            words = (
                f"the join token is for {token.kind} {token.name}, not for {identity}: use it there, or make one with "
                f"llmgw ctl {identity.kind}s add {identity.name}"
            )
            raise JoinRefused("join_refused", words, "other")


def plain(token: JoinToken) -> dict[str, object]:
    """A token for the audit: neither the token nor its digest."""
    return {"kind": token.kind, "name": token.name, "expires_at": token.expires_at}
