"""What of a report a principal may see (API-08)."""

from controlplane.services.changes import Principal
from controlplane.services.errors import Refused, invalid


def scope_of(principal: Principal, asked: str | None) -> str | None:
    """The scope that a report is bound to: the one asked for, if the principal may see it,
    else the one that an owner has. ``None`` is everything. Raises ``Refused``."""
    if asked is not None:
        if not principal.sees(asked):
            raise Refused("forbidden", f"{principal.user} does not own the scope {asked!r}", status=403)
        return asked
    if principal.everywhere:
        return None
    scopes = owned(principal)
    if len(scopes) == 1:
        return scopes[0]
    raise invalid("scope", f"must be named, since {principal.user} owns several: {', '.join(scopes)}")


def owned(principal: Principal) -> list[str]:
    """The scopes that a principal owns, without those beneath another of them."""
    scopes = sorted({grant.scope for grant in principal.grants if grant.role == "owner"})
    return [scope for scope in scopes if not any(scope.startswith(f"{other}/") for other in scopes)]
