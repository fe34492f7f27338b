"""When a draining replica has nothing left to do, by what the routers say (REC-06)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.planning.policy import LoopSettings
from llmgw.wire.routing import EndpointLoad

MEMORY = 30.0
"""A router that went silent before it could confirm, or with requests in flight, is waited
for this long."""


@dataclass(slots=True)
class RouterSeen:
    """The last report of one router process."""

    router_id: str
    boot: str
    at: float
    sequence: int
    loads: dict[str, EndpointLoad] = field(default_factory=dict)
    version: str = ""
    current: bool = True
    """Whether the table it works by came from this control plane process, not from its
    disk or from an earlier one."""


Routers = Mapping[tuple[str, str], RouterSeen]
"""Router processes by (router id, boot)."""


def idle(routers: Routers, endpoint: str, unrouted: float, settings: LoopSettings, now: float) -> bool:
    """Whether every live router says that nothing is in flight on an endpoint.

    True only if at least one router reported within ``router_silence`` and none of the
    last ``MEMORY`` seconds has requests on it, each by a report from after it must have
    seen the endpoint go (``router_poll`` after ``unrouted``) and with a table of ours: a
    router that has just started may still route by the table on its disk. A router
    lists every endpoint it has requests on, also one that left its table; one that it
    does not list has none.
    """
    if now - unrouted < settings.router_poll:
        return False
    witnesses = 0
    for router in routers.values():
        age = now - router.at
        if age > MEMORY:
            continue
        load = router.loads.get(endpoint)
        if load is not None and load.inflight > 0:
            return False
        if not router.current or router.at - unrouted < settings.router_poll:
            return False
        if age <= settings.router_silence:
            witnesses += 1
    return witnesses > 0
