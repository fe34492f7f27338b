"""What a person should look at about certificates (SEC-01, SEC-06)."""

from collections.abc import Iterator

from controlplane.identities import Credentials, concerns
from controlplane.offhub import off_hub
from controlplane.planning.words import listing
from controlplane.services.identities import Identities
from controlplane.services.status import TOLD, Problem
from controlplane.store.values import Enrolled
from llmgw.identity import renewal
from llmgw.runtime.clock import utc


def problems(credentials: Credentials, identities: Identities, now: float) -> Iterator[Problem]:
    """``now`` is Unix time. Reads our own files, off the hub."""
    if credentials.failing:
        yield Problem("certificate", "identity", f"on disk cannot be used, the one before stays: {credentials.failing}")
    for what, words in concerns(off_hub(credentials.expiries), now):
        yield Problem("certificate", what, words)
    if credentials.no_issuer:
        yield Problem("certificate", "issuer", f"is missing, so nobody can join or renew: {credentials.no_issuer}")
    yield from _of_peers(identities, now)


def _of_peers(identities: Identities, now: float) -> Iterator[Problem]:
    late: dict[str, list[Enrolled]] = {}
    for row in identities.all():
        if row.removed_at is not None:
            continue
        if _refused(row):
            told = f"was revoked at {utc(row.revoked_at or 0.0)}{f' ({row.reason})' if row.reason else ''}"
            command = f"llmgw ctl {row.kind}s"
            words = f"{told} and did not join anew: {command} add {row.name}, or {command} remove {row.name}"
            yield Problem("certificate", f"{row.kind} {row.name}", words)
        elif row.expires_at is not None and renewal.late(row.issued_at or 0.0, row.expires_at, now):
            late.setdefault(row.kind, []).append(row)
    for kind, rows in late.items():
        gone = [row for row in rows if (row.expires_at or 0.0) <= now]
        first = min(row.expires_at or 0.0 for row in rows)
        words = f"{len(rows)} {kind} certificates were not renewed in time, the first ends at {utc(first)}"
        if gone:
            words += f", {len(gone)} ended and are refused (join anew: llmgw ctl {kind}s add NAME)"
        names = listing([row.name for row in sorted(rows, key=lambda row: row.expires_at or 0.0)], TOLD)
        yield Problem("certificate", names, f"{words}: see the log there")


def _refused(row: Enrolled) -> bool:
    return row.revoked_at is not None and (row.issued_at or 0.0) <= row.revoked_at
