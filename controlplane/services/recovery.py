"""What to do once a store that did not answer is there again."""

from collections.abc import Callable
from typing import TypeVar

import gevent

from controlplane.store.port import Store, StoreUnavailable
from controlplane.store.writer import StoreWriter
from llmgw.runtime.logs import Logger

log = Logger("llmgw.store")

PAUSE = 5.0
"""Seconds between two tries."""

T = TypeVar("T")


def once_answered(store: StoreWriter, work: Callable[[Store], T], then: Callable[[T], None]) -> None:
    """Run ``work`` as often as it takes, in the background; hand its result on."""

    def attempt() -> None:
        while True:
            try:
                result = store.call(work)
            except StoreUnavailable as error:
                log.warning("the store does not answer yet", why=error)
                gevent.sleep(PAUSE)
            else:
                then(result)
                return

    gevent.spawn(attempt)
