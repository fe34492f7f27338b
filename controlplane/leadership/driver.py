"""Asks the store what the lease machine wants to know, off the hub, and tells who leads.

Decides nothing: ``lease.Lease`` does, or ``alone.Alone`` where there is no standby.
"""

import secrets
from collections.abc import Callable

import gevent
from gevent.event import Event as Signal

from controlplane.leadership.lease import (
    Answered,
    Candidate,
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
from controlplane.leadership.onlooker import Onlooker
from controlplane.leadership.predecessor import Predecessor
from controlplane.store.access import StoreAccess
from controlplane.store.errors import StoreUnavailable
from controlplane.store.port import Transaction
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.repeated import Repeated

log = Logger("llmgw.leadership")

NAMESAKE = "another control plane bears the same name: give each an ha.name of its own"


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
        make: Callable[[str, float], Candidate],
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
        self._silence = Repeated(log.warning, "the store does not answer for the lease")
        self._claim_failed = False
        self._told_overdue = False
        self._predecessor = Predecessor(holder)
        self.before: Holder | None = None
        """Who had the lease before us, maybe ourselves; ``None`` if nobody is known."""
        self.why_won = ""
        self.why_lost = ""
        """Why the last term began and ended, in words; what we end ourselves has no reason here."""
        self.unable = ""
        """What keeps us from leading, in words; empty if nothing is known."""
        self.asked = 0
        self.unanswered = 0

    def stand_by(self, unable: str = "") -> None:
        """Be a candidate from now on; if something (in words) makes us ``unable`` to lead, only look
        who does. We must not be a candidate, nor lead."""
        self.won.clear()
        self.lost.clear()
        self.why_lost = ""
        self.unable = unable
        machine = self._make(secrets.token_hex(16), self._clock.monotonic())
        if unable:
            machine = Onlooker(machine.owner, self._clock.monotonic(), renew=machine.renew)
        self._machine = machine
        self._told_overdue = False
        self._greenlet = gevent.spawn(self._run)

    def want_epoch(self, above: int) -> None:
        """See ``Lease.want_epoch``."""
        self._machine.want_epoch(above, self._clock.monotonic())
        self._poke.set()

    def superseded(self, epoch: int, name: str) -> bool:
        """See ``Lease.superseded``. Whether we lead nevertheless."""
        for effect in self._machine.superseded(epoch, name, self._clock.monotonic()):
            self._tell(effect)
        return self.leading

    def stop(self, timeout: float = 1.0) -> None:
        """Be a candidate no more. If we lead, or a claim is under way, let go of the lease: the
        next one takes over at once. Everything must have been let go before."""
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is None:
            return
        greenlet.kill()
        self.won.clear()
        if not self._machine.may_hold:
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
        return self._machine.sure(self._clock.monotonic())

    @property
    def remaining(self) -> float:
        """Seconds for which we are sure to lead without another renewal; negative since then."""
        return self._machine.until - self._clock.monotonic()

    @property
    def takes_in(self) -> float | None:
        """Seconds until we may lead at the earliest, if the leader renews no more; ``None`` if
        that cannot be told."""
        at = self._machine.takes_at
        return None if at is None else max(0.0, at - self._clock.monotonic())

    @property
    def unrenewed(self) -> float | None:
        """Seconds, at least, since the ``leader`` renewed its lease; ``None`` if that cannot be told."""
        since = self._machine.unrenewed_since
        return None if since is None or self.leader is None else self._clock.monotonic() - since

    @property
    def overdue(self) -> bool:
        """Whether that is longer than it should be."""
        return self.leader is not None and self._machine.overdue(self._clock.monotonic())

    @property
    def renew(self) -> float:
        """Seconds between two renewals."""
        return self._machine.renew

    @property
    def leader(self) -> Holder | None:
        """Which other control plane leads, as far as the store has told. Never ourselves: while the
        store is away, the row it told of last may be that of a term of ours that is over."""
        row = self._machine.row
        return row.holder if row is not None and row.owner and row.holder != self.holder else None

    @property
    def replaced(self) -> Holder | None:
        """Whom we took the lease from, if it may not know; not ourselves before a crash."""
        before = self._machine.replaced
        return before if before != self.holder else None

    @property
    def namesake(self) -> Holder | None:
        """See ``Predecessor``."""
        return self._predecessor.namesake

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
            while effects and not self.lost.is_set():  # it may be set while the store is asked
                effect = effects.pop(0)
                if isinstance(effect, Look | Claim):
                    effects += self._ask(machine, effect)
                else:
                    self._tell(effect)
            wake = machine.next_wake
            if wake is not None and not self.lost.is_set():
                self._poke.wait(max(0.001, wake - self._clock.monotonic()))
                self._poke.clear()

    def _ask(self, machine: Candidate, question: Look | Claim) -> list[Effect]:
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
            self._claim_failed = isinstance(question, Claim)
            self._silence.happened(asked, event.why, leading=machine.leading)
        elif (isinstance(question, Claim) or not self._claim_failed) and self._silence.over():
            # A store that can only be read answers looks all the time, and no claim.
            log.info("the store answers for the lease again", leading=machine.leading)
        if isinstance(event, Answered) and isinstance(question, Look) and not machine.leading:
            self._saw(event.row)
        effects = machine.handle(event, self._clock.monotonic())
        self._tell_overdue()
        return effects

    def _saw(self, row: Row | None) -> None:
        known = self.namesake
        self._predecessor.saw(row)
        if self.namesake is not None and known is None:
            log.warning(NAMESAKE, name=self.holder.name, admin=self.namesake.addresses.get("admin", ""))

    def _tell_overdue(self) -> None:
        """Once, until it is renewed or another has it."""
        holder, unrenewed = self.leader, self.unrenewed
        if unrenewed is None or holder is None or self.overdue == self._told_overdue:
            return
        self._told_overdue = not self._told_overdue
        if not self._told_overdue:
            log.info("the lease is renewed again", leader=holder.name)
            return
        log.warning(
            "the leader did not renew its lease when it should have: it is down, or does not reach the store",
            leader=holder.name,
            unrenewed_seconds=round(unrenewed, 1),
            takes_in_seconds=None if self.takes_in is None else round(self.takes_in, 1),
        )

    def _tell(self, effect: Effect) -> None:
        if isinstance(effect, Won):
            self.before, self.why_won = self._predecessor.holder, self._predecessor.words
            self._predecessor.won(self._machine.row)
            log.info(
                "this control plane leads",
                name=self.holder.name,
                epoch=effect.epoch,
                leader=self.owner,
                why=self.why_won,
            )
            self.won.set()
        elif isinstance(effect, Extended):
            self.on_extended(effect.until, effect.epoch)
        elif isinstance(effect, Lost):
            log.warning("this control plane leads no more", name=self.holder.name, why=effect.why)
            self.why_lost = effect.why
            self.lost.set()


def ignore(_until: float, _epoch: int) -> None:
    """Nobody wants to know yet."""
