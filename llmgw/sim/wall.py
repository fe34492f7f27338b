"""The clocks of a control plane's host, as ``runtime.clock.Clock``."""

from dataclasses import dataclass
from datetime import UTC, datetime

from llmgw.sim.world import WALL_OFFSET, HostClock, World


@dataclass
class Wall:
    """``ahead`` is how far people's time is off on the host, which may change at any moment;
    its monotonic clock never steps."""

    world: World
    clock: HostClock
    ahead: float = 0.0

    def monotonic(self) -> float:
        """Seconds by the host's clock that never steps."""
        return self.clock.monotonic()

    def now(self) -> datetime:
        """The host's idea of the time of day."""
        return datetime.fromtimestamp(self.world.now + WALL_OFFSET + self.ahead, UTC)
