"""Parts of lists that are in memory (API-04).

A cursor says after which entry to go on, not how many there were: what comes or goes
between two requests neither repeats nor hides others. To clients it is opaque.
"""

import base64
import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

from controlplane.services.errors import Refused, invalid

MAX_CURSOR = 500
MAX_PART = 300


def encode(*place: str | float) -> str:
    """The cursor for a place: what the last entry's order is by."""
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(cursor: str, parts: int) -> tuple[Any, ...]:
    """The place of a cursor of that many parts, which are text or numbers. Raises
    ``Refused`` for what is none of ours."""
    try:
        if len(cursor) > MAX_CURSOR or not cursor.isascii():
            raise ValueError
        place = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise bad_cursor() from None
    if not isinstance(place, list) or len(place) != parts:
        raise bad_cursor()
    for part in place:
        if isinstance(part, bool) or not isinstance(part, str | int | float) or len(str(part)) > MAX_PART:
            raise bad_cursor()
    return tuple(place)


def page_by_name(names: Iterable[str], limit: int, cursor: str | None) -> tuple[list[str], str | None]:
    """The next ``limit`` of ``names``, which are sorted, and the cursor after them;
    ``None`` at the end. Raises ``Refused``."""
    if cursor is not None:
        (after,) = decode(cursor, 1)
        if not isinstance(after, str):
            raise bad_cursor()
        names = (name for name in names if name > after)
    taken = list(islice(names, limit + 1))
    return (taken, None) if len(taken) <= limit else (taken[:limit], encode(taken[limit - 1]))


def bad_cursor() -> Refused:
    """The cursor cannot be one that we gave."""
    return invalid("cursor", "is none of ours: send the field next of the answer before, or leave it out to begin")
