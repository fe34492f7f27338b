"""The simulated world: one seed, one event queue, virtual time, one trace.

Everything that happens is an action on the queue; actions of one moment run in the
order they were added. Nothing here reads a clock or waits.
"""

import hashlib
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

START = 1_000.0
"""Virtual seconds at which a simulation begins."""

WALL_OFFSET = 1_800_000_000.0
"""What turns virtual seconds into a moment people read."""

LAST_LINES = 80
"""Lines of trace that a failure shows."""

MAX_STEPS_PER_SECOND = 20_000
"""More actions than this within one virtual second are a loop without progress."""

TICK = 1e-4
"""Least delay of a clock's alarm: a real timer never rings earlier or more often."""


class Violation(BaseException):
    """An invariant is broken. ``invariant`` is its short name. Not an ``Exception``: no
    handler of the product may swallow it."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.message = message


class Enough(BaseException):
    """As many steps as asked for were taken."""


class Killed(BaseException):
    """Raised inside a simulated process to end it between two of its effects. Not an
    ``Exception``: no handler of the product may catch a death."""


class Trace:
    """What happened, line by line, with a digest of everything."""

    def __init__(self, sink: Callable[[str], None] | None = None) -> None:
        self._sink = sink
        self._digest = hashlib.sha256()
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.lines = 0

    def add(self, now: float, actor: str, text: str) -> None:
        """One line."""
        line = f"{now - START:11.4f}  {actor:<10} {text}"
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        self.last.append(line)
        self.lines += 1
        if self._sink is not None:
            self._sink(line)

    @property
    def digest(self) -> str:
        """SHA-256 over all lines, in hex."""
        return self._digest.hexdigest()


class Timer:
    """An action to come. ``cancel`` it, or let it run once."""

    __slots__ = ("action", "args")

    def __init__(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.action: Callable[..., None] | None = action
        self.args = args

    def cancel(self) -> None:
        """It will not run."""
        self.action = None


class World:
    """Time, chance and order. ``after_step`` is called after each action."""

    def __init__(self, seed: int, sink: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now = START
        self.trace = Trace(sink)
        self.steps = 0
        self.faults: Counter[str] = Counter()
        self.leaders = 0
        """How often somebody began to lead."""
        self.occasions: Counter[str] = Counter()
        """What was met that could have broken an invariant: see ``allegiance.OCCASIONS``."""
        self.after_step: Callable[[], None] | None = None
        self.most_steps: int | None = None
        self._queue: list[tuple[float, int, Timer]] = []
        self._order = 0
        self._second = 0
        self._second_began = 0

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own per purpose, so that one part's draws do not shift another's."""
        return random.Random(f"{self.seed}/{purpose}")  # noqa: S311  (chance, not secrecy)

    def log(self, actor: str, text: str) -> None:
        """Add a line to the trace."""
        self.trace.add(self.now, actor, text)

    def fault(self, kind: str, actor: str, text: str = "") -> None:
        """Count and trace a fault that is injected now."""
        self.faults[kind] += 1
        self.log(actor, f"!! {kind} {text}".rstrip())

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> Timer:
        """Run ``action(*args)`` in ``delay`` seconds."""
        timer = Timer(action, args)
        self._order += 1
        heapq.heappush(self._queue, (self.now + max(0.0, delay), self._order, timer))
        return timer

    def run_until(self, end: float) -> None:
        """Carry out everything up to the moment ``end``."""
        while self._queue and self._queue[0][0] <= end:
            moment, _, timer = heapq.heappop(self._queue)
            action = timer.action
            if action is None:
                continue
            self.now = moment
            timer.action = None
            self._bound()
            action(*timer.args)
            self.steps += 1
            if self.after_step is not None:
                self.after_step()
            if self.steps == self.most_steps:
                raise Enough
        self.now = max(self.now, end)

    def _bound(self) -> None:
        if int(self.now) != self._second:
            self._second = int(self.now)
            self._second_began = self.steps
        elif self.steps - self._second_began > MAX_STEPS_PER_SECOND:
            raise Violation("progress", f"more than {MAX_STEPS_PER_SECOND} steps within one virtual second")


class HostClock:
    """A host's monotonic clock: it starts anywhere and drifts, but never steps."""

    def __init__(self, world: World, origin: float, rate: float) -> None:
        self._world = world
        self._origin = origin
        self.rate = rate

    def monotonic(self) -> float:
        """Seconds by this host's clock."""
        return self._origin + (self._world.now - START) * self.rate

    def until(self, moment: float) -> float:
        """World seconds until this clock shows ``moment``."""
        return max(TICK, (moment - self.monotonic()) / self.rate)

    def restart(self, origin: float) -> None:
        """A reboot: the clock starts anew."""
        self._origin = origin - (self._world.now - START) * self.rate


class Process:
    """A simulated process of ours: it can be paused (SIGSTOP) and killed (SIGKILL).

    Whatever reaches it goes through ``run``: a paused process takes it later, a dead
    one never. A new life is a new object.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused = False
        self.fuse: int | None = None
        """Effects it carries out before it dies between two of them."""
        self.on_death: Callable[[], None] = _nothing
        """Told when it ended, in whatever way but a power loss."""
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def log(self, text: str) -> None:
        """Add a line to the trace in this process's name."""
        self.world.log(self.name, text)

    def run(self, action: Callable[..., None], *args: Any) -> None:
        """Do it now, when the process is resumed, or never."""
        if not self.alive:
            return
        if self.paused or self._waiting:
            self._waiting.append((action, args))
            return
        self._do(action, args)

    def later(self, delay: float, action: Callable[..., None], *args: Any) -> Timer:
        """Do it in ``delay`` world seconds, if the process lives then."""
        return self.world.after(delay, self.run, action, *args)

    def pause(self) -> None:
        """Stop to run; what arrives waits."""
        self.paused = True

    def resume(self) -> None:
        """Go on, with what waited first, in order."""
        self.paused = False
        self.world.after(0.0, self._drain)

    @property
    def busy(self) -> bool:
        """Whether it was stopped and has not caught up yet."""
        return bool(self._waiting)

    def kill(self) -> None:
        """End at once."""
        self.alive = False
        self._waiting.clear()

    def burn(self) -> None:
        """An effect is about to be carried out: the fuse burns down by one."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Killed

    def died(self) -> None:
        """The process was killed between two of its effects."""

    def _drain(self) -> None:
        if self._waiting and self.alive and not self.paused:
            action, args = self._waiting.popleft()
            self._do(action, args)
            self.world.after(0.0, self._drain)

    def _do(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            action(*args)
        except Killed:
            self.died()


def _nothing() -> None:
    """Nobody wants to know."""
