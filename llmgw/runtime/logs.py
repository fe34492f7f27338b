"""Structured logs on standard error, with a level that can change live.

``text`` for people, ``json`` (one object a line) for collectors. Extra fields are
given by ``extra={"fields": {...}}`` or through ``Logger`` below. Values that look like
our secrets are masked, whatever wrote them.
"""

import json
import logging
import math
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")

_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(?:(sk-llmgw-|adm-llmgw-|ek-)[A-Za-z0-9_-]{8,}|(at-|rt-)[A-Za-z0-9_-]{20,}"
    r"|(llmgw-join-[A-Za-z0-9]{4,64}\.)[A-Za-z0-9._-]{8,})"
    r"|(-----BEGIN [A-Z ]{0,24}PRIVATE KEY-----)[A-Za-z0-9+/=\s\\-]*"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MAX_DEPTH = 8


def mask(text: str) -> str:
    """``text`` with every token of our own making cut to its prefix (SEC-03).

    Mask before quoting: in quoted text a newline before a token is a letter.
    """
    return _SECRET.sub(lambda match: next(filter(None, match.groups())) + "***", text)


def _escape(text: str, keep: str = "") -> str:
    """``text`` that can neither start a line of its own nor steer a terminal."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], text)


def _plain(value: Any, depth: int = 0) -> Any:
    """``value`` as what JSON has: masked text, finite numbers, no deeper than people read."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        return {mask(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < _MAX_DEPTH:
        return [_plain(item, depth + 1) for item in value]
    return mask(str(value))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        tail = "".join(f" {key}={_short(value)}" for key, value in fields.items())
        line = f"{moment} {record.levelname.lower():7} {record.name}: {_escape(mask(record.getMessage()))}{tail}"
        if record.exc_info:
            line += "\n" + _escape(mask(self.formatException(record.exc_info)), keep="\n\t")
        return line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = mask(self.formatException(record.exc_info))
        for key, value in getattr(record, "fields", {}).items():
            entry[f"field_{key}" if key in entry else key] = _plain(value)
        return json.dumps(entry, allow_nan=False)


def _short(value: Any) -> str:
    text = mask(str(value))
    return json.dumps(text) if not text or _CONTROL.search(text) or re.search(r'[\s"=]', text) else text


class Logger:
    """A logger whose keyword arguments become fields: ``log.info("ready", node=n)``."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, /, **fields: Any) -> None:
        """Detail for a person who is looking for something."""
        self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: Any) -> None:
        """Something happened as intended."""
        self._emit(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        """Something is off and was dealt with."""
        self._emit(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: Any) -> None:
        """Something needs a person."""
        self._emit(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: Any) -> None:
        """An unexpected exception, with its traceback (log only, never to a user)."""
        self._logger.error(message, exc_info=True, extra={"fields": fields})

    def failure(self, message: str, error: BaseException, /, **fields: Any) -> None:
        """The same for an exception that is not being handled here."""
        self._logger.error(message, exc_info=error, extra={"fields": fields})

    def _emit(self, level: int, message: str, fields: Mapping[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={"fields": fields})


def configure(level: str = "info", form: str = "text", stream: TextIO | None = None) -> None:
    """Set up logging for the process. ``form`` is ``text`` or ``json``."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def configured() -> bool:
    """Whether something set up logging for the process already."""
    return bool(logging.getLogger().handlers)


def set_level(level: str) -> None:
    """Change the level of the running process. Raises ``ValueError`` on another word."""
    if level not in LEVELS:
        raise ValueError(f"must be one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(level.upper())


def get_level() -> str:
    """The level in force."""
    return logging.getLevelName(logging.getLogger().level).lower()
