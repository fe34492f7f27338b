"""How a service says no."""

from collections.abc import Mapping, Sequence

from llmgw.runtime.settings import Fault


class Refused(Exception):
    """A request that is not carried out. ``code`` is one of ``errors.ADMIN``; ``status``
    the HTTP status; ``retry_after`` seconds after which trying again makes sense;
    ``headers`` what the answer carries beside."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int,
        faults: Sequence[Fault] = (),
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.faults = tuple(faults)
        self.retry_after = retry_after
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)


def not_found(kind: str, name: str, hint: str = "") -> Refused:
    """There is no such thing."""
    return Refused("not_found", f"there is no {kind} {name!r}{hint}", status=404)


def invalid(path: str, message: str) -> Refused:
    """One fault of a request."""
    return Refused("validation_failed", "the request has faults", status=422, faults=[Fault(path, message)])


def conflict(message: str) -> Refused:
    """The thing is not in a state that allows this."""
    return Refused("conflict", message, status=409)


def busy() -> Refused:
    """The writer has no room for more."""
    return Refused("busy", "the control plane is too busy: try again later", status=503, retry_after=2)


def store_unavailable(error: Exception | str) -> Refused:
    """The store did not take the change."""
    return Refused("store_unavailable", str(error), status=503, retry_after=5)
