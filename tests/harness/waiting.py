"""Waiting for what processes do: poll the real interface until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


PATIENCE = 3.0
"""A busy machine may take this many times as long as a quiet one."""


def until(condition: Callable[[], T], seconds: float = 15.0, what: str = "", every: float = 0.03) -> T:
    """The condition's first true value. An ``AssertionError`` inside it counts as not yet;
    the last one, or ``what``, explains the failure."""
    limit = time.monotonic() + seconds * PATIENCE
    while True:
        detail = ""
        try:
            value = condition()
            if value:
                return value
            detail = f"last value {value!r}"
        except AssertionError as error:
            detail = str(error)
        if time.monotonic() > limit:
            raise AssertionError(f"not within {seconds * PATIENCE:g} s: {what or 'the condition'}; {detail}")
        time.sleep(every)
