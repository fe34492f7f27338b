"""What people want of each model, and which replicas count towards it. Pure."""

from dataclasses import dataclass

from controlplane.planning.view import FleetView, ReplicaView
from controlplane.planning.words import plural


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bounds on the replicas of a model now, and why."""

    lower: int
    upper: int
    reason: str


def wanted(view: FleetView, name: str) -> Wanted:
    """How many replicas a model should have (CAT-05, CAT-07).

    ``always``: its ``min``. ``off`` or gone: none. On demand: what is there stays, up
    to ``max``; only a request adds one (activation comes with the demand part). None of
    any model while serving is stopped (REC-31), none ever of what is served elsewhere:
    external models (CAT-10) and adapters (CAT-14) have no profiles.
    """
    model = view.catalog.models.get(name)
    if model is None:
        return Wanted(0, 0, f"model {name} left the catalog")
    if view.serving.stopped:
        return Wanted(0, 0, stopped(view))
    if not model.profiles:
        return Wanted(0, 0, f"nothing of model {name} is placed here")
    scaling = model.scaling
    if scaling.mode == "off":
        return Wanted(0, 0, f"model {name} is off (scaling 0 to 0, or no scaling)")
    if scaling.mode == "on-demand":
        return Wanted(0, scaling.max, f"model {name} may have {plural(scaling.max, 'replica')}")
    return Wanted(scaling.min, scaling.min, f"model {name} wants {plural(scaling.min, 'replica')}")


def lacking(view: FleetView, name: str, want: Wanted, have: int) -> int:
    """How many replicas a model lacks that has ``have``. Those on nodes that are out of
    sight, for which routers vouch, are there too (REC-10). One that went to be restarted in
    its place is missing also where none is wanted at least."""
    have += view.vouched.get(name, 0)
    missing = max(want.lower - have, 0)
    return max(missing, 1) if name in view.in_place and have < want.upper else missing


def stopped(view: FleetView) -> str:
    """Why nothing is served while serving is stopped, with the remedy (REC-31)."""
    by = f" by {view.serving.actor}" if view.serving.actor else ""
    return f"serving was stopped{by}; llmgw start ends that"


def counts(replica: ReplicaView) -> bool:
    """Whether a replica is one of those its model has: running or coming up, and meant
    to stay. One that its agent is ending by itself counts until its exit says why; one
    that is being replaced does not, its replacement does (REC-30)."""
    if replica.surplus or replica.unwanted or replica.restart == "replacing":
        return False
    return replica.state in ("placing", "starting", "ready", "stopping")


def profile_left(view: FleetView, replica: ReplicaView) -> bool:
    """Whether the model is still in the catalog but without the replica's profile (CAT-07)."""
    model = view.catalog.models.get(replica.model)
    return model is not None and replica.profile not in [profile.name for profile in model.profiles]
