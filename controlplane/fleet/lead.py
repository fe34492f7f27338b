"""What leading allows: the lease beyond doubt or in doubt, and whose epoch counts (HA-01,
AGT-04).

The lease is beyond doubt until a moment that ``LeaseExtended`` gives, its margin taken off.
Past it another may be about to lead: nothing is placed, drained or stopped any more, and
nothing is declared lost; only what failed may start again where it was, on nodes that are
in session with us, which is where no other leader can be. Time decides, not an event: a
process that slept past the moment must not act when it wakes up.

The epoch is never raised by what a peer says. A leader that was replaced would learn of
its successor's epoch that way and outbid it, so the store is asked first whether we lead.
"""

from controlplane.events import EpochSeen, EpochWanted
from controlplane.fleet import dispatch
from controlplane.fleet.context import Fleet
from controlplane.planning.plan import Action, Place
from controlplane.planning.view import Ahead, FleetView
from controlplane.planning.words import plural

MAX_EPOCH = 2**62
"""The highest epoch that a peer may claim to have obeyed. Frames, tables and the store's
column hold up to 2**63 - 1, so that changes of leader never use up what is above."""

MAX_EPOCH_STEP = 1_000_000
"""How far the store is asked to raise our epoch at once on a peer's word. A fleet may truly
be further than that, where an older store was put in place: it takes several steps."""

ASK_AGAIN = 1.0
"""Seconds from one question to the store to the next, whatever peers say: each answer is a
table for every router. At this rate, of a million a second, ``MAX_EPOCH`` is 146,000 years
away."""

LONGEST_PAUSE = 64.0
"""Seconds: the most between two questions on one peer's word. The pause doubles each time,
from ``ASK_AGAIN``: one that lies gets a step a minute, whereas many that tell the truth get
as many more together."""

FORGET = 300.0
"""Seconds after which a peer is forgotten that said nothing of a higher epoch any more."""


def extended(fleet: Fleet, until: float, now: float) -> None:
    """The store says that we lead until then."""
    fleet.view.lease.until = until
    look(fleet, now)


def look(fleet: Fleet, now: float) -> None:
    """Bring what is known of the lease up to now. Cheap: to be called before anything is
    decided or done."""
    lease = fleet.view.lease
    doubtful = now >= lease.until
    if doubtful == lease.doubtful:
        return
    lease.doubtful = doubtful
    lease.since = now
    if doubtful:
        fleet.note("lease-in-doubt", "the store has not renewed the lease in time: only what failed starts again")
    elif lease.doubted:
        waiting = plural(len(fleet.waiting), "decision")
        fleet.note("lease-sure", f"the store renewed the lease: everything goes on ({waiting} waited)")
    lease.doubted = True
    if not doubtful:
        waited, fleet.waiting = fleet.waiting, []
        for action in waited:
            dispatch.dispatch(fleet, action, now)
    fleet.touch()
    fleet.routes_dirty = True


def committed(fleet: Fleet, actions: tuple[Action, ...], now: float) -> None:
    """These actions are durable. What was decided while the lease was beyond doubt waits
    until it is so again."""
    for action in actions:
        if fleet.view.lease.doubtful and not (isinstance(action, Place) and action.heals):
            fleet.waiting.append(action)
        else:
            dispatch.dispatch(fleet, action, now)


def absurd(epoch: int) -> bool:
    """Whether no fleet gets as far as a peer says."""
    return epoch > MAX_EPOCH


def unproven(fleet: Fleet, epoch: int, leader: str, who: str, now: float, *, node: str | None = None) -> bool:
    """Whether a peer has obeyed a leader that came after us, for all we know. The store is
    asked then, for ``MAX_EPOCH_STEP`` more at most and not too often; until ours is above
    the peer's, such a peer is none of ours."""
    if epoch < fleet.epoch or (epoch == fleet.epoch and leader in ("", fleet.leader)):
        return False
    known = fleet.view.ahead.get(who)
    if known is None or _forgotten(known, now):
        known = fleet.view.ahead[who] = Ahead(epoch, now, ask_at=now, pause=ASK_AGAIN)
    known.epoch, known.heard = epoch, now
    if now < max(known.ask_at, fleet.epoch_asked + ASK_AGAIN):
        return True
    wanted = min(epoch, fleet.epoch + MAX_EPOCH_STEP)
    if wanted > fleet.epoch_wanted:
        words = f"{who} has obeyed epoch {epoch}" + (f" of leader {leader}" if leader else "")
        fleet.note("epoch-unproven", f"{words}, ours is {fleet.epoch}: the store is asked who leads", node=node)
    known.ask_at, known.pause = now + known.pause, min(2 * known.pause, LONGEST_PAUSE)
    fleet.epoch_wanted = wanted
    fleet.epoch_asked = now
    fleet.out.append(EpochWanted(wanted))
    return True


def seen(fleet: Fleet, event: EpochSeen, now: float) -> None:
    """A router has a table that may not be ours. One that claims what no fleet gets to is not
    believed."""
    if not absurd(event.epoch):
        unproven(fleet, event.epoch, event.leader, f"router {event.router}", now)


def ahead(view: FleetView, epoch: int, now: float) -> dict[str, int]:
    """The peers that ``epoch``, which is ours, does not count for, and which they have obeyed."""
    return {
        who: known.epoch for who, known in view.ahead.items() if known.epoch >= epoch and not _forgotten(known, now)
    }


def _forgotten(known: Ahead, now: float) -> bool:
    return now >= known.heard + FORGET


def granted(fleet: Fleet, epoch: int) -> None:
    """The store says that we lead, with this epoch."""
    if epoch <= fleet.epoch:
        return
    fleet.epoch = epoch
    fleet.note("epoch-raised", "the store says that we lead: commands and tables carry a higher epoch", epoch=epoch)
    fleet.routes_dirty = fleet.dirty = True
