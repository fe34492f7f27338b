"""What goes wrong with the store, in words for people."""


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do."""


class StoreUnavailable(Exception):
    """The store did not answer in time, or refused. Nothing was changed, unless
    ``uncertain``: then the commit had begun and its outcome is not known. ``lasting``:
    somebody must act before it will."""

    def __init__(self, message: str, *, uncertain: bool = False, lasting: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain
        self.lasting = lasting


class NotLeading(StoreUnavailable):
    """Another control plane holds the lease by now: what we would change is its to change.
    Nothing was changed."""


class Duplicate(Exception):
    """What is to be added is there already. ``what`` names it in words."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} exists already")
        self.what = what


class BadCursor(ValueError):
    """A cursor that no page gave out: what a client sent as one."""

    def __init__(self) -> None:
        super().__init__("is no cursor of this list: leave it out to begin at the start")
