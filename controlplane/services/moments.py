"""Moments as people write them, and as they are shown."""

from datetime import UTC, datetime

from controlplane.services.errors import invalid
from llmgw.runtime.settings import parse_duration


def moment(path: str, text: str, now: datetime) -> float:
    """Unix time of ``text``: a duration from now, or an ISO 8601 moment with its zone. It
    must be in the future. ``path`` is the field it stands in. Raises ``Refused``."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        return _absolute(path, text, now)
    if seconds <= 0:
        raise invalid(path, "must be in the future")
    return now.timestamp() + seconds


def _absolute(path: str, text: str, now: datetime) -> float:
    read = _read(path, text, "30d")
    if read <= now:
        raise invalid(path, "must be in the future")
    return read.timestamp()


def _read(path: str, text: str, example: str) -> datetime:
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        words = f"must be a duration such as {example}, or a moment such as 2030-01-31T00:00:00Z"
        raise invalid(path, words) from None
    if read.tzinfo is None:
        raise invalid(path, "must name its time zone, such as 2030-01-31T00:00:00Z")
    try:
        return read.astimezone(UTC)
    except OverflowError:
        raise invalid(path, "must be between the years 1 and 9999") from None


def shown(seconds: float | None) -> str | None:
    """A moment for people: ISO 8601 in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def past(path: str, text: str, now: datetime) -> float:
    """Unix time of ``text``: a duration ago, or an ISO 8601 moment with its zone. Raises
    ``Refused``."""
    try:
        return now.timestamp() - parse_duration(text)
    except ValueError:
        return _read(path, text, "1h").timestamp()
