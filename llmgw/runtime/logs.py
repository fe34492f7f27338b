"""Structured logs on standard error, with a level that can change live.

``text`` for people, ``json`` (one object a line) for collectors. Extra fields are
given by ``extra={"fields": {...}}`` or through ``Logger`` below. Values that look like
our secrets are masked, whatever wrote them.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")

_SECRET = re.compile(r"\b(sk-llmgw-|ek-|at-|rt-)[A-Za-z0-9_-]{8,}")


def mask(text: str) -> str:
    """``text`` with every token of our own making cut to its prefix (SEC-03)."""
    return _SECRET.sub(lambda match: match[1] + "***", text)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        tail = "".join(f" {key}={_short(value)}" for key, value in fields.items())
        line = f"{moment} {record.levelname.lower():7} {record.name}: {record.getMessage()}{tail}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return mask(line)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return mask(json.dumps(entry, default=str))


def _short(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or re.search(r'[\s"=]', text) else text


class Logger:
    """A logger whose keyword arguments become fields: ``log.info("ready", node=n)``."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: Any) -> None:
        """Detail for a person who is looking for something."""
        self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """Something happened as intended."""
        self._emit(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        """Something is off and was dealt with."""
        self._emit(logging.WARNING, message, fields)

    def error(self, message: str, **fields: Any) -> None:
        """Something needs a person."""
        self._emit(logging.ERROR, message, fields)

    def exception(self, message: str, **fields: Any) -> None:
        """An unexpected exception, with its traceback (log only, never to a user)."""
        self._logger.error(message, exc_info=True, extra={"fields": fields})

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


def set_level(level: str) -> None:
    """Change the level of the running process. Raises ``ValueError`` on another word."""
    if level not in LEVELS:
        raise ValueError(f"must be one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(level.upper())


def get_level() -> str:
    """The level in force."""
    return logging.getLevelName(logging.getLogger().level).lower()
