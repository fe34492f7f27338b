"""Blocking work in threads, so that a slow disk never holds up the event loop."""

from collections.abc import Callable
from typing import Any, TypeVar

from gevent.threadpool import ThreadPool

Result = TypeVar("Result")


def off_hub(threads: ThreadPool, work: Callable[..., Result], *arguments: Any) -> Result:
    """The result of ``work``, done in one of ``threads``. Raises what it raises, but for
    what is no ``Exception``."""
    result, error = threads.apply(_guarded, (work, *arguments))
    if error is not None:
        raise error
    done: Result = result
    return done


def _guarded(work: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    # What is raised in a thread gevent prints with a traceback, whoever deals with it.
    try:
        return work(*arguments), None
    except Exception as error:  # noqa: BLE001 - handed to who asked
        return None, error
