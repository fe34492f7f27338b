"""Server-sent events, as the HTML standard reads them."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_EVENT = 4 * 1024 * 1024
"""Bytes of one event."""


class TooLong(Exception):
    """An event is larger than any that is sent."""


class Sent(NamedTuple):
    """A server-sent event. ``last`` is the id to go on after."""

    last: str
    kind: str
    data: str


def read(pieces: Iterable[bytes]) -> Iterator[Sent]:
    """The events in ``pieces``, as they come. Raises ``TooLong``."""
    rest = b""
    last, kind = "", ""
    data: list[str] = []
    for piece in pieces:
        rest += piece
        *lines, rest = re.split(rb"\r\n|\n|\r(?!\Z)", rest)
        if len(rest) + sum(map(len, data)) > MAX_EVENT:
            raise TooLong(f"an event of more than {MAX_EVENT} bytes")
        for line in lines:
            field, _, value = line.decode(errors="replace").partition(":")
            value = value.removeprefix(" ")
            if not line:
                if data:
                    yield Sent(last, kind, "\n".join(data))
                kind, data = "", []
            elif field == "data":
                data.append(value)
            elif field == "event":
                kind = value
            elif field == "id":
                last = value
