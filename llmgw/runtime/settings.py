"""Settings, declared once.

A part declares a ``Settings`` table of ``Setting`` rows. One declaration gives
validation (all faults at once, with the nearest known name), the documentation,
the JSON Schema and the precedence flag > environment > file > default.

Files are YAML with nested sections: the setting ``agents.listen`` is
``agents: {listen: ...}``; its environment variable is ``LLMGW_<PART>_AGENTS_LISTEN``.
"""

import difflib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

MAX_FILE = 1024 * 1024


@dataclass(frozen=True)
class Fault:
    """One thing wrong: where, what, and what to do about it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SettingsError(Exception):
    """All faults of a settings source together."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        self.source = source
        self.faults = faults
        lines = "\n".join(f"  {fault}" for fault in faults)
        super().__init__(f"{source}: {len(faults)} fault{'s' if len(faults) != 1 else ''}\n{lines}")


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
    return value


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


def parse_duration(value: Any) -> float:
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
    if not 0 <= seconds <= 366 * 86400:
        raise ValueError("must not be negative, nor longer than a year")
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


REQUIRED: Any = object()
"""Default of a setting that has none: it must be given."""


@dataclass(frozen=True)
class Setting:
    """One setting. ``default`` is written as a person would write it in the file."""

    name: str
    kind: Kind
    default: Any
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None

    def parse(self, value: Any) -> Any:
        """The typed value. Raises ``ValueError`` in words that follow the name."""
        parsed = self.kind.parse(value)
        if isinstance(parsed, int | float) and not isinstance(parsed, bool):
            if self.minimum is not None and parsed < self.minimum:
                raise ValueError(f"must be at least {self.minimum:g}")
            if self.maximum is not None and parsed > self.maximum:
                raise ValueError(f"must be at most {self.maximum:g}")
        return parsed


@dataclass(frozen=True)
class Value:
    """A setting's value in force and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Loaded:
    """Validated settings: ``loaded["agents.listen"]``."""

    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def origin(self, name: str) -> str:
        """``flag``, ``environment``, the file's path, or ``default``."""
        return self.values[name].origin


@dataclass(frozen=True)
class Settings:
    """The settings of one part. ``part`` is ``controlplane``, ``router`` or ``agent``."""

    part: str
    rows: tuple[Setting, ...]
    index: dict[str, Setting] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {row.name: row for row in self.rows})

    def variable(self, name: str) -> str:
        """Name of the environment variable of a setting."""
        return f"LLMGW_{self.part}_{name}".upper().replace(".", "_").replace("-", "_")

    def load(
        self,
        file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Loaded:
        """Read and validate everything. Raises ``SettingsError`` with all faults."""
        faults: list[Fault] = []
        values = {row.name: Value(row.default, "default") for row in self.rows}
        label = str(file) if file else f"{self.part} settings"
        if file is not None:
            for name, value in self._flatten(read_yaml(file), "", faults):
                values[name] = Value(value, str(file))
        for row in self.rows:
            if environment is not None and self.variable(row.name) in environment:
                values[row.name] = Value(environment[self.variable(row.name)], "environment")
            if flags is not None and flags.get(row.name) is not None:
                values[row.name] = Value(flags[row.name], "flag")
        parsed: dict[str, Value] = {}
        for name, value in values.items():
            if value.value is REQUIRED:
                faults.append(Fault(name, f"is required: {self.index[name].help}"))
                continue
            try:
                typed = None if value.value is None else self.index[name].parse(value.value)
            except ValueError as error:
                place = self.variable(name) if value.origin == "environment" else name
                faults.append(Fault(place, str(error)))
            else:
                parsed[name] = Value(typed, value.origin)
        if faults:
            raise SettingsError(label, faults)
        return Loaded(parsed)

    def _flatten(self, tree: Mapping[str, Any], prefix: str, faults: list[Fault]) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            name = f"{prefix}{key}"
            if name in self.index:
                yield name, value
            elif isinstance(value, dict) and any(known.startswith(name + ".") for known in self.index):
                yield from self._flatten(value, name + ".", faults)
            elif any(known.startswith(name + ".") for known in self.index):
                faults.append(Fault(name, "must be a section of settings"))
            else:
                faults.append(Fault(name, "is not a setting" + did_you_mean(name, self.index)))

    def schema(self) -> dict[str, Any]:
        """JSON Schema (2020-12) of the settings file."""
        root: dict[str, Any] = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"llmgw {self.part} settings",
            "type": "object",
            "additionalProperties": False,
            "properties": {},
        }
        for row in self.rows:
            node = root
            *sections, leaf = row.name.split(".")
            for section in sections:
                node = node["properties"].setdefault(
                    section, {"type": "object", "additionalProperties": False, "properties": {}}
                )
            entry: dict[str, Any] = {**row.kind.schema, "description": row.help}
            if row.default is not REQUIRED and row.default is not None:
                entry["default"] = row.default
            node["properties"][leaf] = entry
        return root

    def markdown(self) -> str:
        """Reference table of the settings."""
        lines = ["| setting | kind | default | meaning |", "|---|---|---|---|"]
        for row in self.rows:
            default = "required" if row.default is REQUIRED else "-" if row.default is None else f"`{row.default}`"
            lines.append(f"| `{row.name}` | {row.kind.name} | {default} | {row.help} |")
        return "\n".join(lines) + "\n"


def did_you_mean(name: str, known: Any) -> str:
    """``; did you mean X?`` for the nearest known name, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice in one mapping."""


def _unique_mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, list | dict):
            raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"{key!r} is given twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(file: Path, max_bytes: int = MAX_FILE) -> dict[str, Any]:
    """The mapping a YAML file holds (an empty file is an empty mapping).

    Raises ``SettingsError`` naming the file, and line and column where there is one.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise SettingsError(str(file), [Fault("", f"cannot be read: {error.strerror}")]) from error
    if len(data) > max_bytes:
        raise SettingsError(str(file), [Fault("", f"is larger than {max_bytes} bytes")])
    return parse_yaml(data, str(file))


def parse_yaml(data: bytes, source: str) -> dict[str, Any]:
    """The mapping that YAML text holds. ``source`` names it in errors."""
    try:
        tree = yaml.load(data, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(source, [Fault(place, f"is not valid YAML: {error.problem}")]) from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SettingsError(source, [Fault("", f"is not valid YAML: {error}")]) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError(source, [Fault("", "must be a mapping of names to values")])
    return {str(key): value for key, value in tree.items()}


def read_secret(file: Path) -> str:
    """A secret from a file only its owner can read (mode 0600 or stricter), stripped.

    Raises ``SettingsError`` if it is missing, empty, or open to others.
    """
    try:
        status = file.stat()
        if status.st_mode & 0o077:
            raise SettingsError(str(file), [Fault("", f"can be read by others: run chmod 600 {file}")])
        with file.open("rb") as stream:
            secret = stream.read(4097).decode("ascii").strip()
    except OSError as error:
        raise SettingsError(str(file), [Fault("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise SettingsError(str(file), [Fault("", "must hold one line of ASCII text")]) from error
    if not secret or len(secret) > 4096 or any(character.isspace() for character in secret):
        raise SettingsError(str(file), [Fault("", "must hold one secret on one line")])
    return secret
