"""Cluster settings: the same for every control plane and router, kept in the store and
changed live (API-06). Declared once, here; a file may give a value too, under
``cluster:`` in the control plane's settings, and the store's value rules.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.catalog.engines import ALLOWABLE, ENGINES
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.kinds import BOOLEAN, Kind, choice, parse_duration
from llmgw.runtime.logs import LEVELS
from llmgw.runtime.settings import Loaded, Setting, Value

LONGEST = 10 * 366 * 86400
"""Seconds: the longest that anything is kept."""

MAX_ALLOWED = 200

FILE_SECTION = "cluster"

OPERATORS = frozenset({"serving.stopped", "log.level"})
"""Those that an operator may change too: whoever is on call must be able to stop serving
and to look closer. The others are an administrator's (API-08)."""

PROCESS = {"log.level": "log.level"}
"""Cluster settings whose file value is a setting of the process, which was there first."""


def _retention(value: Any) -> float:
    return parse_duration(value, LONGEST)


def _allowances(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or len(value) > MAX_ALLOWED:
        raise ValueError(f"must be a list of at most {MAX_ALLOWED} texts such as 'vllm --trust-remote-code'")
    return tuple(dict.fromkeys(_allowance(entry) for entry in value))


def _allowance(entry: Any) -> str:
    words = entry.split() if isinstance(entry, str) else []
    if len(words) != 2 or not re.fullmatch(r"--?[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", words[1]):
        raise ValueError(f"must hold an engine and one of its flags, such as 'vllm --trust-remote-code', not {entry!r}")
    if words[0] not in ENGINES:
        known = ", ".join(sorted(ENGINES))
        raise ValueError(f"names the engine {words[0]} (known: {known}){did_you_mean(words[0], ENGINES)}")
    return " ".join(words)


RETENTION = Kind("duration", _retention, {"type": ["string", "number"], "minimum": 0})
ALLOWANCES = Kind("list of ENGINE FLAG", _allowances, {"type": "array", "items": {"type": "string"}})

ROWS: tuple[Setting, ...] = (
    Setting(
        "serving.stopped",
        BOOLEAN,
        False,
        "Nothing is served: every model wants no replicas, and requests are answered 503 system_stopped.",
    ),
    Setting(
        "log.level",
        choice(*LEVELS),
        "info",
        "Least level that control planes log. Its file value is the setting log.level of each process.",
    ),
    Setting("requests.log", BOOLEAN, True, "Whether finished requests are logged one by one: metadata, never prompts."),
    Setting("requests.retention", RETENTION, "7d", "How long logged requests are kept.", minimum=3600),
    Setting("usage.retention", RETENTION, "400d", "How long sums of usage are kept.", minimum=86400),
    Setting("audit.retention", RETENTION, "400d", "How long it is kept who changed what.", minimum=86400),
    Setting("events.retention", RETENTION, "30d", "How long decisions are kept.", minimum=3600),
    Setting(
        "sources.private",
        BOOLEAN,
        False,
        "Whether sources of weights may lie at private addresses of this site; false refuses them.",
    ),
    Setting("sources.check", BOOLEAN, True, "Whether a model's source is looked at before the model is added."),
    Setting(
        "engines.allow",
        ALLOWANCES,
        [],
        "Flags of engines that are otherwise refused, each as ENGINE FLAG, such as vllm --trust-remote-code.",
    ),
)

INDEX: Mapping[str, Setting] = {row.name: row for row in ROWS}


def file_rows() -> tuple[Setting, ...]:
    """The same settings as they may stand in the settings file of a control plane."""
    return tuple(
        replace(row, name=f"{FILE_SECTION}.{row.name}", help=f"{row.help} The store's value rules.")
        for row in ROWS
        if row.name not in PROCESS
    )


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value that a process was given, and by which file (or flag, or the environment)."""

    value: Any
    origin: str


def file_values(settings: Loaded) -> dict[str, FileValue]:
    """What the process was given of each cluster setting; what is left out is not there."""
    found: dict[str, FileValue] = {}
    for row in ROWS:
        given: Value | None = settings.values.get(PROCESS.get(row.name, f"{FILE_SECTION}.{row.name}"))
        if given is not None and given.origin != "default":
            found[row.name] = FileValue(given.value, given.origin)
    return found


def allowable() -> tuple[str, ...]:
    """Everything that ``engines.allow`` could ever hold with effect."""
    return tuple(
        f"{engine} {flag}"
        for engine, rules in ENGINES.items()
        for flag, reason in rules.denied.items()
        if reason in ALLOWABLE
    )


def plain(value: Any) -> Any:
    """A value as JSON holds it."""
    return list(value) if isinstance(value, tuple) else value
