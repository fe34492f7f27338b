"""The first administrator and the first API key, straight into the store: nobody is there
yet who could ask for them over the API (CLI-04)."""

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from controlplane.services import keys, people
from controlplane.store.port import Transaction
from controlplane.store.values import AdminToken, ApiKey, AuditEntry, Grant, User

_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,99}")  # as the API has it

TOKEN_NAME = "llmgw init"  # noqa: S105 - what it is called


@dataclass(frozen=True)
class Known:
    """Who and what is there already: names of administrators, and how many keys."""

    administrators: tuple[str, ...]
    keys: int


def known(tx: Transaction) -> Known:
    """Look."""
    administrators = tuple(
        user.name
        for user in tx.people.users()
        if user.disabled_at is None and any(grant.role == "admin" for grant in user.grants)
    )
    return Known(administrators, len(tx.keys.all()))


def name_fault(name: str) -> str:
    """What is wrong with a user's name; empty if nothing."""
    if name in people.RESERVED:
        return f"must not be {name}, which stands for the control plane's own token"
    if not _NAME.fullmatch(name):
        return (
            "must be 1 to 100 lower-case letters, digits, dots, dashes, underscores, @ or +, beginning with a letter "
            "or digit"
        )
    return ""


def token_file(home: Path, state_dir: Path) -> Path:
    """Where the administrator's token goes: where the command looks by itself, unless
    there is a token already, for another control plane perhaps. Makes the directory."""
    usual = home / ".config" / "llmgw" / "token"
    if not usual.exists():
        usual.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return usual
    return state_dir / "init.token"


def new_token() -> str:
    """A token for the admin API."""
    return people.PREFIX + secrets.token_urlsafe(people.RANDOM_BYTES)


def new_key() -> str:
    """A client's API key."""
    return keys.PREFIX + secrets.token_urlsafe(keys.RANDOM_BYTES)


def add_administrator(tx: Transaction, name: str, token: str, actor: str, now: float) -> None:
    """A user who may do everything, with a token."""
    user = User(name, (Grant("admin"),), now, actor)
    tx.people.put_user(user)
    made = AdminToken(
        id=f"tok-{secrets.token_hex(6)}",
        user=name,
        name=TOKEN_NAME,
        shown=token[: people.SHOWN],
        digest=people.digest(token),
        created_at=now,
        created_by=actor,
    )
    tx.people.add_token(made)
    tx.audit.add(_entry(now, actor, "user", name, people.plain(user)))
    tx.audit.add(_entry(now, actor, "token", made.id, people.plain_token(made)))


def add_key(tx: Transaction, name: str, key: str, actor: str, now: float) -> None:
    """A key for all models."""
    made = ApiKey(
        id=f"key-{secrets.token_hex(6)}",
        name=name,
        shown=key[: keys.SHOWN],
        digest=keys.digest(key),
        created_at=now,
        created_by=actor,
    )
    tx.keys.add(made)
    tx.audit.add(_entry(now, actor, "key", made.id, keys.plain(made)))


def _entry(now: float, actor: str, kind: str, target: str, after: object) -> AuditEntry:
    return AuditEntry(at=now, actor=actor, user="", token="", operation="init", kind=kind, target=target, after=after)
