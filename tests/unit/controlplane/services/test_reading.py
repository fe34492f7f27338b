"""What is read of the store for a request, and goes wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.journal import Journal
from controlplane.services.audit import Audit, AuditFilter
from controlplane.services.errors import Refused
from controlplane.services.events import EventFilter, EventService
from controlplane.services.paging import encode
from controlplane.services.usage import UsageService
from tests.unit.controlplane.services.harness import World


def _events(world: World, tmp_path: Path) -> Any:
    journal = Journal(tmp_path / "decisions.jsonl", world.clock, lambda batch: None)
    service = EventService(journal, world.store, world.clock)
    return service.page(EventFilter(), 10, encode(5.0, "half a pair: \ud800"))


def _audit(world: World, _: Path) -> Any:
    return Audit(world.store, world.clock).page(AuditFilter(), 10, "garbage")


def _requests(world: World, _: Path) -> Any:
    return UsageService(world.store, world.clock).requests(10, "garbage")


@pytest.mark.parametrize("page", [_events, _audit, _requests])
def test_cursors_that_only_the_store_can_tell(world: World, tmp_path: Path, page: Callable[..., Any]) -> None:
    """API-04: one that is none of ours is a fault of the request; a store that is away is not."""
    with pytest.raises(Refused) as refused:
        page(world, tmp_path)
    assert [fault.path for fault in refused.value.faults] == ["cursor"]
    world.store.away = True
    with pytest.raises(Refused) as refused:
        page(world, tmp_path)
    assert refused.value.code == "store_unavailable"
