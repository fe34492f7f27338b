"""Kinds of setting values: how each is parsed and how its JSON Schema reads."""

import ipaddress
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Address(NamedTuple):
    """A host and a port to listen on or to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it can only be reached from this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class Kind:
    """A type of value: how it is parsed (``ValueError`` says what is expected) and
    its JSON Schema."""

    name: str
    parse: Callable[[Any], Any]
    schema: Mapping[str, Any]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not encodable(value):
        raise ValueError("must be valid Unicode text")
    return value


def encodable(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8 (half of a surrogate pair cannot)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError("must be a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a number")
    return float(value)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


YEAR = 366 * 86400


def parse_duration(value: Any, longest: float = YEAR) -> float:
    """Seconds from a number of seconds or text such as ``250ms``, ``90s``, ``5m``, ``1h30m``."""
    expected = "must be a duration such as 30s, 5m or 1h30m (a bare number is seconds)"
    if isinstance(value, bool):
        raise ValueError(expected)
    if isinstance(value, int | float) or (isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value)):
        seconds = float(value)
    elif isinstance(value, str) and re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h|d))+", value):
        seconds = sum(float(n) * _UNITS[u] for n, _, u in re.findall(r"(\d+(\.\d+)?)(ms|s|m|h|d)", value))
    else:
        raise ValueError(expected)
    if not 0 <= seconds <= longest:
        years = round(longest / YEAR)
        raise ValueError(f"must not be negative, nor longer than {'a year' if years == 1 else f'{years} years'}")
    return seconds


def parse_address(value: Any) -> Address:
    """``HOST:PORT``, IPv6 hosts in brackets. The host is required."""
    expected = "must be HOST:PORT, such as 127.0.0.1:7000 or [::1]:7000"
    match = re.fullmatch(r"(\[([0-9A-Fa-f:.]+)\]|([^:\[\]\s/]+)):(\d{1,5})", value) if isinstance(value, str) else None
    if not match or int(match[4]) > 65535:
        raise ValueError(expected)
    return Address(match[2] or match[3], int(match[4]))


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "on", "1"):
        return True
    if isinstance(value, str) and value.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError("must be true or false")


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("must be a path")
    return Path(value).expanduser()


def _port_range(value: Any) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value) if isinstance(value, str) else None
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError("must be FIRST-LAST, such as 20000-20999")
    return int(match[1]), int(match[2])


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("must be a mapping of names to values")
    return value


def _labels(value: Any) -> dict[str, str]:
    mapping = _mapping(value)
    if not all(isinstance(item, str) for item in mapping.values()):
        raise ValueError("every label's value must be text (put it in quotes)")
    return mapping


def _paths(value: Any) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = value.split(os.pathsep)
    if not isinstance(value, list):
        raise ValueError("must be a list of paths")
    return tuple(_path(item) for item in value)


def _addresses(value: Any) -> tuple[Address, ...]:
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",")]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of HOST:PORT")
    return tuple(parse_address(item) for item in value)


_STRING = {"type": "string"}
TEXT = Kind("text", _text, _STRING)
INTEGER = Kind("whole number", _integer, {"type": "integer"})
NUMBER = Kind("number", _number, {"type": "number"})
BOOLEAN = Kind("true/false", _boolean, {"type": "boolean"})
DURATION = Kind("duration", parse_duration, {"type": ["string", "number"], "minimum": 0})
ADDRESS = Kind("address", parse_address, {"type": "string", "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s/]+):\d{1,5}$"})
ADDRESSES = Kind("addresses", _addresses, {"type": "array", "items": ADDRESS.schema, "minItems": 1})
PATH = Kind("path", _path, _STRING)
PATHS = Kind("paths", _paths, {"type": "array", "items": _STRING})
PORT_RANGE = Kind("port range", _port_range, {"type": "string", "pattern": r"^\d{1,5}-\d{1,5}$"})
MAPPING = Kind("mapping", _mapping, {"type": "object"})
LABELS = Kind("labels", _labels, {"type": "object", "additionalProperties": _STRING})


def choice(*values: str) -> Kind:
    """A kind with a fixed set of words."""

    def parse(value: Any) -> str:
        if value not in values:
            raise ValueError(f"must be one of {', '.join(values)}")
        return str(value)

    return Kind(" | ".join(values), parse, {"type": "string", "enum": list(values)})
