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

from controlplane.events import EpochWanted
from controlplane.fleet import dispatch
from controlplane.fleet.context import Fleet
from controlplane.planning.plan import Action, Place
from controlplane.planning.words import plural

MAX_EPOCH_STEP = 1_000_000
"""How far above ours an epoch may be that a peer claims to have obeyed. One change of
leader takes one; without a bound one node could push the whole fleet's out of what a
frame can hold."""

ASK_AGAIN = 1.0
"""Seconds after which the store is asked for a higher epoch again. Each answer is a table for
every router, so that one peer must not have us ask for ever more in a rush."""


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


def absurd(fleet: Fleet, epoch: int) -> bool:
    """Whether no fleet gets as far as a peer says."""
    return epoch > fleet.epoch + MAX_EPOCH_STEP


def unproven(fleet: Fleet, epoch: int, leader: str, who: str, now: float, *, node: str | None = None) -> bool:
    """Whether a peer has obeyed a leader that came after us, for all we know. The store is
    asked then, not more often than once in ``ASK_AGAIN`` whatever peers say; until it has
    answered, such a peer is none of ours."""
    if epoch < fleet.epoch or (epoch == fleet.epoch and leader in ("", fleet.leader)):
        return False
    if now < fleet.epoch_asked + ASK_AGAIN:
        return True
    if epoch > fleet.epoch_wanted:
        words = f"{who} has obeyed epoch {epoch}" + (f" of leader {leader}" if leader else "")
        fleet.note("epoch-unproven", f"{words}, ours is {fleet.epoch}: the store is asked who leads", node=node)
    fleet.epoch_wanted = max(fleet.epoch_wanted, epoch)
    fleet.epoch_asked = now
    fleet.out.append(EpochWanted(epoch))
    return True


def seen(fleet: Fleet, epoch: int, leader: str, now: float) -> None:
    """A router has a table that may not be ours (``EpochSeen``). One that claims what no
    fleet gets to is not believed."""
    if not absurd(fleet, epoch):
        unproven(fleet, epoch, leader, "a router", now)


def granted(fleet: Fleet, epoch: int) -> None:
    """The store says that we lead, with this epoch."""
    if epoch <= fleet.epoch:
        return
    fleet.epoch = epoch
    fleet.note("epoch-raised", "the store says that we lead: commands and tables carry a higher epoch", epoch=epoch)
    fleet.routes_dirty = fleet.dirty = True
