"""Users of the admin API, their roles and their tokens (API-08), read from memory;
changes go through the store first."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gevent.lock import RLock

from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import Refused, conflict, invalid, not_found
from controlplane.services.moments import moment
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import AdminToken, Grant, User
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Fault, did_you_mean

log = Logger("llmgw.people")

T = TypeVar("T")

PREFIX = "adm-llmgw-"
RANDOM_BYTES = 24
SHOWN = len(PREFIX) + 4
RESERVED = ("local",)
"""Names that stand for no user of the store."""


def digest(token: str) -> str:
    """What is kept of a token: its SHA-256 in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Known:
    """Everybody and every token."""

    users: tuple[User, ...] = ()
    tokens: tuple[AdminToken, ...] = ()


def read(tx: Transaction) -> Known:
    """What the store has."""
    return Known(tx.people.users(), tx.people.tokens())


class People:
    """The users and tokens in memory, and their changes."""

    def __init__(self, store: StoreAccess, changes: Changes, clock: Clock, known: Known) -> None:
        self._store = store
        self._changes = changes
        self._clock = clock
        self._lock = RLock()
        self._users: dict[str, User] = {}
        self._tokens: dict[str, AdminToken] = {}
        self._by_digest: dict[str, str] = {}
        self._learn(known)

    # ------------------------------------------------------------ reads

    def users(self) -> tuple[User, ...]:
        """Every user, by name."""
        return tuple(self._users[name] for name in sorted(self._users))

    def tokens(self) -> tuple[AdminToken, ...]:
        """Every token, revoked ones too, oldest first."""
        return tuple(self._tokens.values())

    def user(self, name: str) -> User:
        """One user. Raises ``Refused``."""
        if name not in self._users:
            raise not_found("user", name, did_you_mean(name, self._users))
        return self._users[name]

    def by_id(self, token_id: str) -> AdminToken | None:
        """One token, by its id."""
        return self._tokens.get(token_id)

    def one_token(self, token_id: str) -> AdminToken:
        """One token, by its id. Raises ``Refused``."""
        if token_id not in self._tokens:
            raise not_found("token", token_id, did_you_mean(token_id, self._tokens))
        return self._tokens[token_id]

    def token(self, presented: str) -> AdminToken | None:
        """The token whose digest this is."""
        token_id = self._by_digest.get(presented)
        return None if token_id is None else self._tokens.get(token_id)

    def why_not(self, token: AdminToken) -> str:
        """Why a token is good for nothing now, in words; empty if it is good."""
        if token.revoked_at is not None:
            return "the token was revoked"
        if token.expires_at is not None and token.expires_at <= self._clock.now().timestamp():
            return "the token has expired"
        user = self._users.get(token.user)
        if user is None:
            return "the token's user was removed"
        return "the token's user is disabled" if user.disabled_at is not None else ""

    # ------------------------------------------------------------ users

    def add_user(self, asked: Asked, name: str, grants: Sequence[Grant]) -> User:
        """Add somebody. Raises ``Refused``."""
        now = self._clock.now().timestamp()
        user = User(name, _sorted(grants), now, asked.actor)
        _check_grants(grants)
        if name in RESERVED:
            raise invalid("name", f"{name} is the user of the control plane's own token: take another name")

        def work(tx: Transaction) -> Changed[User]:
            if _find(tx, name) is not None:
                raise conflict(f"there is a user {name!r} already: change it with PUT")
            _scopes_exist(tx, grants)
            tx.people.put_user(user)
            return Changed(user, "user", name, None, plain(user))

        made = self._make(asked, work, self._keep_user)
        log.info("user added", user=name, actor=asked.actor)
        return made

    def change_user(self, asked: Asked, name: str, grants: Sequence[Grant], disabled: bool) -> User:
        """Replace somebody's roles, and disable or enable them. Raises ``Refused``."""
        now = self._clock.now().timestamp()
        _check_grants(grants)

        def work(tx: Transaction) -> Changed[User]:
            before = self._found(tx, name)
            asked.expect(before.version)
            _scopes_exist(tx, grants)
            since = (before.disabled_at or now) if disabled else None
            after = replace(before, grants=_sorted(grants), disabled_at=since, version=before.version + 1)
            if not _administers(after):
                _keep_one(tx, before)
            tx.people.put_user(after)
            return Changed(after, "user", name, plain(before), plain(after))

        changed = self._make(asked, work, self._keep_user)
        log.info("user changed", user=name, actor=asked.actor)
        return changed

    def remove_user(self, asked: Asked, name: str) -> None:
        """Remove somebody with all their tokens. Raises ``Refused``."""

        def work(tx: Transaction) -> Changed[User]:
            before = self._found(tx, name)
            asked.expect(before.version)
            _keep_one(tx, before)
            tx.people.remove_user(name)
            return Changed(before, "user", name, plain(before), None)

        self._make(asked, work, self._drop_user)
        log.info("user removed", user=name, actor=asked.actor)

    # ------------------------------------------------------------ tokens

    def add_token(self, asked: Asked, user: str, name: str, expires: str | None) -> tuple[AdminToken, str]:
        """Make a token for somebody; the second value is the token itself, which is kept
        nowhere. Raises ``Refused``."""
        now = self._clock.now()
        text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        token = AdminToken(
            id=f"tok-{secrets.token_hex(6)}",
            user=user,
            name=name,
            shown=text[:SHOWN],
            digest=digest(text),
            created_at=now.timestamp(),
            created_by=asked.actor,
            expires_at=None if expires is None else moment("expires", expires, now),
        )

        def work(tx: Transaction) -> Changed[AdminToken]:
            if _find(tx, user) is None:
                hint = did_you_mean(user, [known.name for known in tx.people.users()])
                raise invalid("user", f"there is no user {user!r}{hint}")
            tx.people.add_token(token)
            return Changed(token, "token", token.id, None, plain_token(token))

        made = self._make(asked, work, self._keep_token)
        log.info("admin token created", token=token.id, user=user, actor=asked.actor)
        return made, text

    def revoke_token(self, asked: Asked, token_id: str) -> AdminToken:
        """Revoke a token; it is refused from the next request on. Raises ``Refused``."""
        now = self._clock.now().timestamp()

        def work(tx: Transaction) -> Changed[AdminToken]:
            before = next((token for token in tx.people.tokens() if token.id == token_id), None)
            revoked = tx.people.revoke_token(token_id, now, asked.actor)
            if before is None or revoked is None:
                raise not_found("token", token_id, did_you_mean(token_id, self._tokens))
            return Changed(revoked, "token", token_id, plain_token(before), plain_token(revoked))

        revoked = self._make(asked, work, self._keep_token)
        log.info("admin token revoked", token=token_id, actor=asked.actor)
        return revoked

    # ------------------------------------------------------------ memory

    def _make(self, asked: Asked, work: Callable[[Transaction], Changed[T]], keep: Callable[[T], None]) -> T:
        with self._lock:  # memory changes in the order of the commits
            try:
                result = self._changes.make(asked, work)
            except Refused as error:
                learn_if_uncertain(error, self._store, read, self._learn)
                raise
            keep(result)
            return result

    def _learn(self, known: Known) -> None:
        """What the store has, as after a commit of unknown outcome."""
        self._users = {user.name: user for user in known.users}
        self._tokens = {token.id: token for token in known.tokens}
        self._by_digest = {token.digest: token.id for token in known.tokens}

    def _keep_user(self, user: User) -> None:
        self._users[user.name] = user

    def _drop_user(self, user: User) -> None:
        self._users.pop(user.name, None)
        self._learn(Known(tuple(self._users.values()), tuple(t for t in self._tokens.values() if t.user != user.name)))

    def _keep_token(self, token: AdminToken) -> None:
        self._tokens[token.id] = token
        self._by_digest[token.digest] = token.id

    def _found(self, tx: Transaction, name: str) -> User:
        user = _find(tx, name)
        if user is None:
            raise not_found("user", name, did_you_mean(name, self._users))
        return user


def plain(user: User) -> dict[str, object]:
    """A user for the audit."""
    return {
        "roles": [{"role": grant.role, "scope": grant.scope} for grant in user.grants],
        "disabled": user.disabled_at is not None,
    }


def plain_token(token: AdminToken) -> dict[str, object]:
    """A token for the audit: neither the token nor its digest."""
    return {
        "user": token.user,
        "name": token.name,
        "expires_at": token.expires_at,
        "revoked": token.revoked_at is not None,
    }


def _sorted(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    return tuple(sorted(set(grants), key=lambda grant: (grant.role, grant.scope)))


def _check_grants(grants: Sequence[Grant]) -> None:
    faults = [
        Fault(
            f"roles[{index}].scope",
            "is missing: name the scope that is owned"
            if grant.role == "owner"
            else f"is for the role owner alone: {grant.role} is good for everything",
        )
        for index, grant in enumerate(grants)
        if (grant.role == "owner") != bool(grant.scope)
    ]
    if faults:
        raise Refused("validation_failed", "the request has faults", status=422, faults=faults)


def _scopes_exist(tx: Transaction, grants: Sequence[Grant]) -> None:
    wanted = [(index, grant.scope) for index, grant in enumerate(grants) if grant.scope]
    if not wanted:
        return
    known = [scope.path for scope in tx.scopes.all()]
    faults = [
        Fault(f"roles[{index}].scope", f"there is no scope {scope!r}{did_you_mean(scope, known)}")
        for index, scope in wanted
        if scope not in known
    ]
    if faults:
        raise Refused("validation_failed", "the request has faults", status=422, faults=faults)


def _find(tx: Transaction, name: str) -> User | None:
    return next((user for user in tx.people.users() if user.name == name), None)


def _administers(user: User) -> bool:
    return user.disabled_at is None and any(grant.role == "admin" for grant in user.grants)


def _keep_one(tx: Transaction, leaving: User) -> None:
    """Somebody with a name must be able to administer: the local token is for emergencies,
    and nobody can be told from the audit who used it."""
    if not _administers(leaving):
        return
    if not any(_administers(user) for user in tx.people.users() if user.name != leaving.name):
        raise conflict(f"{leaving.name} is the last administrator: make another user an administrator first")
