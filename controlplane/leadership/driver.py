"""Asks the store what the lease machine wants to know, off the hub, and tells who leads.

Decides nothing: ``lease.Lease`` does, or ``alone.Alone`` where there is no standby.
"""

import secrets
from collections.abc import Callable
from typing import Protocol

import gevent
from gevent.event import Event as Signal

from controlplane.leadership.lease import (
    Answered,
    Claim,
    Effect,
    Event,
    Extended,
    Holder,
    Look,
    Lost,
    Row,
    Unanswered,
    Won,
)
from controlplane.store.access import StoreAccess
from controlplane.store.errors import StoreUnavailable
from controlplane.store.port import Transaction
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.leadership")


class Machine(Protocol):
    """See ``lease.Lease``."""

    owner: str
    ttl: float
    row: Row | None
    leading: bool
    epoch: int
    until: float
    failing: str
    next_wake: float | None

    def want_epoch(self, above: int, now: float) -> None:
        """Raise our epoch."""
        ...

    def wake(self, now: float) -> list[Effect]:
        """Ask what is due."""
        ...

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in an answer."""
        ...


class Leadership:
    """This process's part in who leads.

    ``make(owner, now)`` makes a machine for each candidacy, with an id of its own. ``limit``
    is the seconds that one question may take; ``holder`` is what others are told of us.
    ``won`` is set while we lead, ``lost`` once we did and do no more: then everything is to
    be let go before ``stand_by`` is called again. ``on_extended(until, epoch)`` hears of
    each renewal. ``asked`` and ``unanswered`` count questions.
    """

    def __init__(
        self,
        make: Callable[[str, float], Machine],
        store: StoreAccess,
        clock: Clock,
        *,
        holder: Holder,
        limit: float,
    ) -> None:
        self._make = make
        self._store = store
        self._clock = clock
        self._limit = limit
        self._machine = make("", clock.monotonic())
        self._poke = Signal()
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self.holder = holder
        self.won = Signal()
        self.lost = Signal()
        self.on_extended: Callable[[float, int], None] = ignore
        self.asked = 0
        self.unanswered = 0

    def stand_by(self) -> None:
        """Be a candidate from now on. We must not be one, nor lead."""
        self.won.clear()
        self.lost.clear()
        self._machine = self._make(secrets.token_hex(16), self._clock.monotonic())
        self._greenlet = gevent.spawn(self._run)

    def want_epoch(self, above: int) -> None:
        """See ``Lease.want_epoch``."""
        self._machine.want_epoch(above, self._clock.monotonic())
        self._poke.set()

    def stop(self, timeout: float = 1.0) -> None:
        """Be a candidate no more. If we lead, let go of the lease: the next one takes over
        at once. Everything must have been let go before."""
        if self._greenlet is not None:
            self._greenlet.kill()
        self.won.clear()
        if not self._machine.leading:
            return
        self._machine.leading = False
        owner = self._machine.owner
        try:
            self._store.write(lambda tx: tx.leadership.release(owner), timeout)
        except StoreUnavailable as error:
            log.warning("the lease could not be released: another takes over once it has run out", why=error)

    # ------------------------------------------------------------ what is so

    @property
    def owner(self) -> str:
        """The random id of this candidacy."""
        return self._machine.owner

    @property
    def leading(self) -> bool:
        """Whether we lead, sure or not."""
        return self._machine.leading

    @property
    def epoch(self) -> int:
        """Ours while we lead."""
        return self._machine.epoch

    @property
    def until(self) -> float:
        """Until when we are sure to lead (monotonic)."""
        return self._machine.until

    @property
    def sure(self) -> bool:
        """Whether we lead beyond doubt."""
        return self._machine.leading and self._clock.monotonic() < self._machine.until

    @property
    def remaining(self) -> float:
        """Seconds for which we are sure to lead without another renewal; negative since then."""
        return self._machine.until - self._clock.monotonic()

    @property
    def row(self) -> Row | None:
        """What the store said last."""
        return self._machine.row

    @property
    def ttl(self) -> float:
        """Seconds that a claim lasts; 0 without a standby."""
        return self._machine.ttl

    @property
    def failing(self) -> str:
        """Why the store did not answer the last question; empty if it did."""
        return self._machine.failing

    def guard(self) -> Callable[[Transaction], None]:
        """For every transaction of this candidacy that writes: it must be the lease's owner."""
        owner = self._machine.owner
        return lambda tx: tx.leadership.require(owner)

    # ------------------------------------------------------------ the greenlet

    def _run(self) -> None:
        machine = self._machine
        while not self.lost.is_set():
            effects = machine.wake(self._clock.monotonic())
            while effects:
                effect = effects.pop(0)
                if isinstance(effect, Look | Claim):
                    effects += self._ask(machine, effect)
                else:
                    self._tell(effect)
            wake = machine.next_wake
            if wake is not None and not self.lost.is_set():
                self._poke.wait(max(0.001, wake - self._clock.monotonic()))
                self._poke.clear()

    def _ask(self, machine: Machine, question: Look | Claim) -> list[Effect]:
        def work(tx: Transaction) -> Row | None:
            if isinstance(question, Look):
                return tx.leadership.read()
            return tx.leadership.claim(machine.owner, question, ttl=machine.ttl, holder=self.holder)

        asked = self._clock.monotonic()
        self.asked += 1
        try:
            event: Event = Answered(asked, self._store.write(work, self._limit))
        except StoreUnavailable as error:
            event = Unanswered(str(error))
        except Exception as error:
            log.exception("the lease could not be asked for")
            event = Unanswered(f"an error of our own ({type(error).__name__}): see the log")
        if isinstance(event, Unanswered):
            self.unanswered += 1
            if not machine.failing:
                log.warning("the store does not answer for the lease", leading=machine.leading, why=event.why)
        elif machine.failing:
            log.info("the store answers for the lease again", leading=machine.leading)
        return machine.handle(event, self._clock.monotonic())

    def _tell(self, effect: Effect) -> None:
        if isinstance(effect, Won):
            log.info("this control plane leads", name=self.holder.name, epoch=effect.epoch, leader=self.owner)
            self.won.set()
        elif isinstance(effect, Extended):
            self.on_extended(effect.until, effect.epoch)
        elif isinstance(effect, Lost):
            log.warning("this control plane leads no more", name=self.holder.name, why=effect.why)
            self.lost.set()


def ignore(_until: float, _epoch: int) -> None:
    """Nobody wants to know yet."""
