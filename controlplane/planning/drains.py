"""When a draining replica has nothing left to do, by what the routers say (REC-06)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.planning.policy import LoopSettings
from llmgw.wire.routing import EndpointLoad

MEMORY = 30.0
"""A router that went silent with requests in flight is waited for this long."""


@dataclass(slots=True)
class RouterSeen:
    """The last report of one router process."""

    router_id: str
    boot: str
    at: float
    sequence: int
    loads: dict[str, EndpointLoad] = field(default_factory=dict)
    version: str = ""


Routers = Mapping[tuple[str, str], RouterSeen]
"""Router processes by (router id, boot)."""


def idle(routers: Routers, endpoint: str, unrouted: float, settings: LoopSettings, now: float) -> bool:
    """Whether every live router says that nothing is in flight on an endpoint.

    True only if at least one router reported within ``router_silence``, each of those
    after it must have seen the endpoint go (``router_poll`` after ``unrouted``), and
    none has requests on it. A router lists every endpoint it has requests on, also
    one that left its table; one that it does not list has none. A router that fell
    silent a moment ago with requests in flight is not taken for idle.
    """
    if now - unrouted < settings.router_poll:
        return False
    witnesses = 0
    for router in routers.values():
        age = now - router.at
        load = router.loads.get(endpoint)
        if load is not None and load.inflight > 0 and age <= MEMORY:
            return False
        if age <= settings.router_silence:
            if router.at - unrouted < settings.router_poll:
                return False
            witnesses += 1
    return witnesses > 0
