"""What a node's or router's row becomes, by what its certificates tell and by what people
say; and its audit (SEC-02, REC-13). Nothing here remembers anything."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from controlplane.store.port import Transaction
from controlplane.store.values import AuditEntry, Enrolled
from llmgw.identity.names import Presented

Key = tuple[str, str]
"""Kind and name."""

KINDS = ("node", "router")
"""What can be enrolled. Control planes are trusted by their kind alone."""

BY_CERTIFICATE = "certificate"
"""The actor of an enrolment that nobody asked for: the authority's certificate did."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a certificate told that is not in the store yet. ``first``: also that its holder
    is there at all."""

    presented: Presented
    first: bool


def enrolled(before: Enrolled | None, presented: Presented, now: float, by: str) -> Enrolled:
    """The row of who belongs to the fleet with this certificate. One that it had before may
    be dated later, by a clock that was ahead: a revocation has to reach that one too."""
    if before is None:
        identity = presented.identity
        fresh = Enrolled(identity.kind, identity.name, now, by)
    elif before.removed_at is not None:
        fresh = replace(before, removed_at=None, enrolled_at=now, enrolled_by=by, version=before.version + 1)
    else:
        fresh = before
    issued_at = max(presented.issued_at, fresh.issued_at or 0.0)
    return replace(fresh, serial=presented.serial, issued_at=issued_at, expires_at=presented.expires_at)


def told_of(before: Enrolled | None, told: Told, now: float) -> Enrolled | None:
    """The row that is ``before`` in the store, with what a certificate told; ``None`` if that
    counts no more, for it was revoked since, or its holder is gone."""
    if before is None:
        return enrolled(None, told.presented, now, BY_CERTIFICATE) if told.first else None
    if before.revoked_at is not None and told.presented.issued_at <= before.revoked_at:
        return None
    return enrolled(before, told.presented, now, BY_CERTIFICATE)


def revoked(before: Enrolled, at: float, by: str, reason: str, *, removed: bool) -> Enrolled:
    """The row once every certificate issued until ``at`` is refused."""
    return replace(
        before,
        revoked_at=at,
        revoked_by=by,
        reason=reason,
        removed_at=at if removed else before.removed_at,
        version=before.version + 1,
    )


def write(tx: Transaction, batch: Mapping[Key, Told], now: float) -> None:
    """Write what certificates told. In few statements: thousands may come at once."""
    rows = [row for kind in KINDS for row in tx.identities.named(kind, [name for of, name in batch if of == kind])]
    known = {(row.kind, row.name): row for row in rows}
    changed: list[Enrolled] = []
    audited: list[AuditEntry] = []
    for key, told in batch.items():
        before = known.get(key)
        after = told_of(before, told, now)
        if after is None or after == before:
            continue
        changed.append(after)
        if before is None or before.removed_at is not None:
            by = (BY_CERTIFICATE, told.presented.serial)
            audited.append(entry(now, "identities.enrol", by, before, after))
    tx.identities.put(*changed)
    tx.audit.add(*audited)


def entry(now: float, operation: str, by: tuple[str, str], before: Enrolled | None, after: Enrolled) -> AuditEntry:
    """``by``: the actor in words, and the id of the token or certificate that proved it."""
    return AuditEntry(
        at=now,
        actor=by[0],
        user=BY_CERTIFICATE,
        token=by[1],
        operation=operation,
        kind="identity",
        target="/".join((after.kind, after.name)),
        before=None if before is None else plain(before),
        after=plain(after),
    )


def plain(row: Enrolled) -> dict[str, object]:
    """An identity for the audit."""
    return {
        "serial": row.serial,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
        "reason": row.reason,
        "removed": row.removed_at is not None,
    }
