"""What becomes of a loop's effects outside it."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from controlplane.carriers import Carriers
from controlplane.events import Decision, Note


def test_a_lease_in_doubt_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """HA-01: what somebody should look at stands out from what goes on all day."""
    caplog.set_level("INFO", "llmgw.decision")
    anything: dict[str, Any] = dict.fromkeys(
        ("agents", "publisher", "providers", "leadership", "drop_keys"), MagicMock()
    )
    carry = Carriers(journal=MagicMock(), **anything).by_effect[Note]
    for kind in ("lease-in-doubt", "lease-sure"):
        carry(Note(Decision(kind, "why")))
    assert [(record.message, record.levelname) for record in caplog.records] == [
        ("lease-in-doubt", "WARNING"),
        ("lease-sure", "INFO"),
    ]
