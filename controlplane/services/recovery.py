"""What to do once a store that did not answer is there again."""

from collections.abc import Callable
from typing import TypeVar

import gevent

from controlplane.services.errors import Refused
from controlplane.store.access import StoreAccess
from controlplane.store.errors import NotLeading, StoreUnavailable
from controlplane.store.port import Transaction
from llmgw.runtime.logs import Logger

log = Logger("llmgw.store")

PAUSE = 5.0
"""Seconds between two tries."""

T = TypeVar("T")


def once_answered(store: StoreAccess, work: Callable[[Transaction], T], then: Callable[[T], None]) -> None:
    """Run ``work`` as often as it takes, in the background; hand its result on.

    It goes through the writer, so that what it reads is read after every commit that had
    begun. Once another control plane leads, what the store holds is for that one to know.
    """

    def attempt() -> None:
        while True:
            try:
                result = store.write(work)
            except NotLeading:
                return
            except StoreUnavailable as error:
                log.warning("the store does not answer yet", why=error)
                gevent.sleep(PAUSE)
            else:
                then(result)
                return

    gevent.spawn(attempt)


def uncertain(refused: Refused) -> bool:
    """Whether the refused change may have been made all the same: its commit had begun."""
    cause = refused.__cause__
    return isinstance(cause, StoreUnavailable) and cause.uncertain


def learn_if_uncertain(
    refused: Refused, store: StoreAccess, read: Callable[[Transaction], T], learn: Callable[[T], None]
) -> None:
    """If the outcome of the refused change is unknown, read it back once the store
    answers, and hand it to ``learn``."""
    if uncertain(refused):
        once_answered(store, read, learn)
