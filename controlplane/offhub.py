"""Blocking file work in the hub's threadpool. Not for computing: that holds the hub up
from there just the same, but for the rare and long, such as reading a large file."""

from collections.abc import Callable
from typing import TypeVar

import gevent

T = TypeVar("T")


def off_hub(work: Callable[..., T], *arguments: object) -> T:
    """Run ``work`` in the threadpool; return what it returns, raise what it raises.

    The pool itself would log an exception although the caller deals with it.
    """

    def guarded() -> tuple[T | None, Exception | None]:
        try:
            return work(*arguments), None
        except Exception as error:  # noqa: BLE001 - raised again below, in the caller's greenlet
            return None, error

    result, error = gevent.get_hub().threadpool.apply(guarded)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
