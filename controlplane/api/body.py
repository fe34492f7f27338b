"""The JSON of a request's body, read strictly: what two readers could take for two things
is refused, and a long one does not hold the hub."""

import json
import math
import re
from typing import Any, NoReturn

from controlplane.offhub import off_hub

MAX_DEPTH = 32
"""How deep the JSON of a body may be nested."""

MAX_DIGITS = 40
"""Most digits of a whole number."""

_LONG = 16 * 1024
"""Bytes above which a body is read in the threadpool, where others get their turn."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")


class BadBody(ValueError):
    """The body cannot be read; the text says why, fit for who sent it."""


def read_body(data: bytes) -> Any:
    """The value of a body. Raises ``BadBody``."""
    return off_hub(_read, data) if len(data) > _LONG else _read(data)


def _read(data: bytes) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadBody(f"the body is not UTF-8 text (at byte {error.start})") from error
    try:
        body = json.loads(
            text, object_pairs_hook=_unique, parse_int=_whole, parse_float=_decimal, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise BadBody(f"the body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except RecursionError as error:
        raise BadBody(f"the body is nested too deeply: {MAX_DEPTH} levels are allowed") from error
    _look(body)
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BadBody(f"{twice[:100]!a} is given twice in the body: keep one")
    return found


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise BadBody(f"the body holds a number of {len(text)} digits: {MAX_DIGITS} are allowed")
    return int(text)


def _constant(text: str) -> NoReturn:
    raise BadBody(f"{text} is not a number of JSON: leave it out where it is unknown")


def _decimal(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise BadBody(f"the body holds a number that is too large: {text[:20]}")
    return number


def _look(body: Any) -> None:
    """Depth, and halves of surrogate pairs, which nothing could store or show."""
    layer, depth = [body], 0
    while layer:
        below: list[Any] = []
        for value in layer:
            if isinstance(value, dict | list) and depth == MAX_DEPTH:
                raise BadBody(f"the body is nested too deeply: {MAX_DEPTH} levels are allowed")
            if isinstance(value, dict):
                below.extend(value)
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, str) and _SURROGATE.search(value):
                raise BadBody("the body holds text that is not Unicode")
        layer, depth = below, depth + 1
