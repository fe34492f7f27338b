"""How the loop behaves in time: intervals, graces and limits, all in seconds.

The defaults are those of ``controlplane.settings``; the composition root fills this
from them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of the loop. Times are seconds; names follow the settings file
    (``agents.heartbeat`` is ``heartbeat``, ``drain.grace`` is ``drain_grace``)."""

    interval: float = 5.0
    heartbeat: float = 10.0
    silence: float = 30.0
    unreachable_after: float = 30.0
    lost_after: float = 300.0
    settling_steady: float = 40.0
    settling_limit: float = 90.0
    drain_grace: float = 300.0
    stop_grace: float = 10.0
    backoff_first: float = 5.0
    backoff_limit: float = 300.0
    parking_failures: int = 5
    stable_after: float = 60.0
    """A replica that was ready this long ends a model's row of failures."""
    resend_after: float = 30.0
    """A command that got no answer in this time is sent again (it is idempotent)."""
    startup_margin: float = 30.0
    """Time beyond ``startup_timeout`` before the control plane gives up on a start
    that the agent should have ended itself."""
    router_poll: float = 2.0
    """Time after which every live router has seen a new route table."""
    router_silence: float = 3.0
    """A router whose last report is older is no witness of a drain."""
    port_rest: float = 600.0
    """Time a port is avoided on a node after it was found in use."""
    repeat_refusal: float = 600.0
    """A refusal that stands is noted again after this time (REC-05)."""
    max_actions: int = 200
    """Most actions of one pass; the next pass follows at once."""
