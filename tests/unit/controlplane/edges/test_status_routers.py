"""What status says of routers, by the age of the control plane."""

from types import SimpleNamespace
from typing import Any, cast

from controlplane.catalog.model import Catalog
from controlplane.planning.view import FleetView
from controlplane.services.status import FIRST_REPORTS, Identity, Status
from llmgw.runtime.clock import ManualClock


def problems(age: float) -> list[str]:
    """Problems about routers of a control plane of that age to which none has reported."""
    clock = ManualClock()
    identity = Identity("1", boot="b", started=clock.monotonic(), epoch=lambda: 1)
    clock.advance(age)
    quiet: Any = SimpleNamespace(refusal=None, failing=None, view=FleetView(catalog=Catalog()), models=list)
    status = Status(
        identity,
        fleet=cast(Any, quiet),
        catalog=cast(Any, quiet),
        store=cast(Any, quiet),
        clock=clock,
        routers=tuple,
        journal=cast(Any, quiet),
    )
    return [problem["message"] for problem in status.read()["problems"] if problem["kind"] == "routers"]


def test_silence_is_a_problem_only_once_it_means_something() -> None:
    """CLI-02, rule 2: a control plane that has just started does not know of routers yet, and never
    claims a longer silence than it has lived."""
    assert problems(FIRST_REPORTS / 2) == []
    assert problems(20)[0].startswith("no router has reported for 20 s")
    assert problems(4000)[0].startswith("no router has reported for 60 s")
