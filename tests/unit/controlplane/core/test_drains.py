"""The routers' word on a drain, case by case (REC-06)."""

import pytest

from controlplane.planning.drains import RouterSeen, idle
from controlplane.planning.policy import LoopSettings
from llmgw.wire.routing import EndpointLoad

NOW = 100.0


def router(name, at, inflight, current=True):
    loads = {} if inflight is None else {"e": EndpointLoad(id="e", inflight=inflight)}
    return (name, "boot"), RouterSeen(name, "boot", at, 1, loads, current=current)


@pytest.mark.parametrize(
    ("routers", "unrouted", "verdict"),
    [
        ([], 0.0, False),  # nobody says so
        ([router("a", NOW, 0)], 0.0, True),
        ([router("a", NOW, None)], 0.0, True),  # it left the router's table and nothing runs
        ([router("a", NOW, 1)], 0.0, False),
        ([router("a", NOW, 0), router("b", NOW, 1)], 0.0, False),
        ([router("a", NOW - 5, 0)], 0.0, False),  # no live witness
        ([router("a", NOW, 0), router("b", NOW - 5, 0)], 0.0, True),
        ([router("a", NOW, 0), router("b", NOW - 5, 2)], 0.0, False),  # silent with requests
        ([router("a", NOW, 0), router("b", NOW - 31, 2)], 0.0, True),  # silent for long
        ([router("a", NOW, 0)], NOW - 1, False),  # it may not have the new table yet
        ([router("a", NOW - 2.5, 0)], NOW - 3, False),  # its report is from before
        ([router("a", NOW, 0, current=False)], 0.0, False),  # it may route by the table on its disk
        ([router("a", NOW, 0), router("b", NOW, 0, current=False)], 0.0, False),
        ([router("a", NOW, 0), router("b", NOW - 5, 0)], NOW - 6, False),  # fell silent before it confirmed
        ([router("a", NOW, 0), router("b", NOW - 31, 0)], NOW - 32, True),  # silent for long
    ],
)
def test_when_a_drain_may_end(routers, unrouted, verdict):
    """Unknown is never idle; every live router must agree, after it saw the table."""
    assert idle(dict(routers), "e", unrouted, LoopSettings(), NOW) is verdict
