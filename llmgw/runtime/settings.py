"""Settings, declared once.

A part declares a ``Settings`` table of ``Setting`` rows. One declaration gives
validation (all faults at once, with the nearest known name), the documentation,
the JSON Schema and the precedence flag > environment > file > default.

Files are YAML with nested sections: the setting ``agents.listen`` is
``agents: {listen: ...}``; its environment variable is ``LLMGW_<PART>_AGENTS_LISTEN``.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgw.runtime.faults import Fault, SettingsError, did_you_mean
from llmgw.runtime.files import open_regular
from llmgw.runtime.kinds import (
    ADDRESS,
    ADDRESSES,
    BOOLEAN,
    DURATION,
    INTEGER,
    LABELS,
    MAPPING,
    NUMBER,
    PATH,
    PATHS,
    PORT_RANGE,
    TEXT,
    Address,
    Kind,
    choice,
    parse_address,
    parse_duration,
)
from llmgw.runtime.yamlfile import MAX_FILE, parse_yaml, read_yaml

__all__ = [
    "ADDRESS",
    "ADDRESSES",
    "BOOLEAN",
    "DURATION",
    "INTEGER",
    "LABELS",
    "MAPPING",
    "MAX_FILE",
    "NUMBER",
    "PATH",
    "PATHS",
    "PORT_RANGE",
    "REQUIRED",
    "TEXT",
    "Address",
    "Fault",
    "Kind",
    "Loaded",
    "Setting",
    "Settings",
    "SettingsError",
    "Value",
    "choice",
    "did_you_mean",
    "parse_address",
    "parse_duration",
    "parse_yaml",
    "read_secret",
    "read_yaml",
]

REQUIRED: Any = object()
"""Default of a setting that has none: it must be given."""


@dataclass(frozen=True)
class Setting:
    """One setting. ``default`` is written as a person would write it in the file.
    ``shown`` is how a default reads that depends on the host, such as its name."""

    name: str
    kind: Kind
    default: Any
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    shown: str = ""

    def parse(self, value: Any) -> Any:
        """The typed value. Raises ``ValueError`` in words that follow the name."""
        parsed = self.kind.parse(value)
        if isinstance(parsed, int | float) and not isinstance(parsed, bool):
            if self.minimum is not None and parsed < self.minimum:
                raise ValueError(f"must be at least {_figure(self, self.minimum)}")
            if self.maximum is not None and parsed > self.maximum:
                raise ValueError(f"must be at most {_figure(self, self.maximum)}")
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
                if values[name].origin == str(file):
                    faults.append(Fault(name, "is given twice"))
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
            if value.value is None and self.index[name].default is not None:
                faults.append(Fault(name, "has no value: give one, or remove the line"))
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
            elif any(known.startswith(name + ".") for known in self.index):
                if isinstance(value, dict):
                    yield from self._flatten(value, name + ".", faults)
                elif value is not None:  # a section whose every line is commented out is empty, not wrong
                    faults.append(Fault(name, "must be a section of settings"))
            else:
                faults.append(Fault(name, "is not a setting" + did_you_mean(name, [*self.index, *self._sections()])))

    def _sections(self) -> set[str]:
        """Their names, with those they stand in: ``ha`` and ``ha.advertise``."""
        parts = [name.split(".")[:-1] for name in self.index]
        return {".".join(path[:length]) for path in parts for length in range(1, len(path) + 1)}

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
            if entry["type"] in ("integer", "number"):
                entry |= {} if row.minimum is None else {"minimum": row.minimum}
                entry |= {} if row.maximum is None else {"maximum": row.maximum}
            if row.default is not REQUIRED and row.default is not None and not row.shown:
                entry["default"] = row.default
            node["properties"][leaf] = entry
        return root

    def markdown(self) -> str:
        """Reference table of the settings."""
        lines = ["| setting | kind | default | meaning |", "|---|---|---|---|"]
        for row in self.rows:
            default = "required" if row.default is REQUIRED else "-" if row.default is None else f"`{row.default}`"
            default = row.shown or default
            kind = row.kind.name + (f", {row.unit}" if row.unit else "") + _bounds(row)
            cells = (f"`{row.name}`", kind, default, f"{row.help[:1].upper()}{row.help[1:].rstrip('.')}.")
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(lines) + "\n"


def _bounds(row: Setting) -> str:
    """The range a number must be in, in words."""
    low, high = (_figure(row, bound) for bound in (row.minimum, row.maximum))
    if low and high:
        return f", {low} to {high}"
    return f", at least {low}" if low else f", at most {high}" if high else ""


def _figure(row: Setting, bound: float | None) -> str:
    if bound is None:
        return ""
    figure = f"{bound:.0f}" if float(bound).is_integer() else f"{bound:g}"
    return f"{figure} s" if row.kind.name == DURATION.name else figure


def read_secret(file: Path) -> str:
    """A secret from a file only its owner can read (mode 0600 or stricter), stripped.

    Raises ``SettingsError`` if it is missing, empty, or open to others.
    """
    try:
        with open_regular(file) as stream:
            if os.fstat(stream.fileno()).st_mode & 0o077:
                raise SettingsError(str(file), [Fault("", f"can be read by others: run chmod 600 {file}")])
            secret = stream.read(4097).decode("ascii").strip()
    except OSError as error:
        raise SettingsError(str(file), [Fault("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise SettingsError(str(file), [Fault("", "must hold one line of ASCII text")]) from error
    if not secret or len(secret) > 4096 or any(character.isspace() for character in secret):
        raise SettingsError(str(file), [Fault("", "must hold one secret on one line")])
    return secret
