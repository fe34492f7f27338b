"""Who may say where an external model is, and which key goes there (CAT-10, API-08, SEC-04)."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from controlplane.catalog.web import forbidden
from controlplane.services.changes import Principal
from controlplane.services.errors import Refused


def may_point(principal: Principal, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise ``Refused`` if the principal may not change ``external`` of a model so.

    The key in ``api_key_file`` is read with the control plane's rights and sent to
    ``url``: whoever could set both would be sent any secret that it can read. So an
    admin alone pairs a file with an address. Requests leave from the routers' network:
    an address there is for those who operate it, and never one of a cloud's metadata.
    What stays as it was is nobody's change. What is malformed is the catalog's to refuse.
    """
    old, new = _external(before), _external(after)
    if new is None or new == old:
        return
    url, file = new
    place = f"models.{name}.external"
    if file is not None and not principal.has("admin"):
        raise _refused(
            f"{place}.api_key_file: the key in a file of the control plane is sent to the url, so an admin alone "
            "says which file goes with which url: ask one, or leave api_key_file out"
        )
    if not principal.has("admin", "operator"):
        raise _refused(
            f"{place}.url: requests for it leave from the routers' network, so an operator or an admin sets it: ask one"
        )
    why = _never(url)
    if why is not None:
        raise _refused(f"{place}.url: {why}: name the provider's own address")


def _external(definition: Mapping[str, Any]) -> tuple[Any, Any] | None:
    external = definition.get("external")
    return (external.get("url"), external.get("api_key_file")) if isinstance(external, Mapping) else None


def _never(url: Any) -> str | None:
    """Why nobody may ask this address, if it is one and not a name."""
    try:
        host = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        return None
    if host is None or forbidden(host, private=True) in (None, "is not an address"):
        return None
    return f"{host[:100]} {forbidden(host, private=True)}"


def _refused(words: str) -> Refused:
    return Refused("forbidden", words, status=403)
