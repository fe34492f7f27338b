"""Error codes are append-only: clients and scripts match on them."""

from llmgw.wire import errors
from tests.unit.project.tree import ROOT

GOLDEN = ROOT / "tests/unit/project/error_codes.txt"
TABLES = ("ROUTER", "SESSION", "SHARD", "REASON", "ADMIN")


def current() -> list[str]:
    """One line per code; what a client sees of a router's answer is part of it."""
    lines = []
    for table in TABLES:
        for code, entry in getattr(errors, table).items():
            detail = f" {entry.status} {entry.type} retry={entry.retry}" if isinstance(entry, errors.ApiError) else ""
            lines.append(f"{table} {code}{detail}")
    return lines


def test_codes_are_only_added() -> None:
    """A recorded code is never removed, renamed or given another status.

    Record a new code by appending its line to error_codes.txt.
    """
    recorded = GOLDEN.read_text().splitlines()
    now = current()
    assert [line for line in recorded if line not in now] == [], "a released code changed or vanished"
    assert [line for line in now if line not in recorded] == [], "append these lines to error_codes.txt"
    assert len(set(recorded)) == len(recorded)


def test_every_code_is_a_word_with_a_meaning() -> None:
    """Stable words in lower case; the texts end without a full stop, as parts of sentences."""
    for table in TABLES:
        for code, entry in getattr(errors, table).items():
            assert code.replace("_", "").isalnum()
            assert code == code.lower()
            if isinstance(entry, errors.ApiError):
                assert entry.code == code
                assert 400 <= entry.status < 600
            else:
                assert entry
                assert not entry.endswith(".")
