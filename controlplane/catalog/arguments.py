"""Whether a profile may set an argument or a variable of its engine (CAT-04). Pure."""

import re
from collections.abc import Collection, Iterable

from controlplane.catalog.engines import ALLOWABLE, ENVIRONMENT, KEYS, OFF_IS_FINE, EngineRules

_SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)S?(_FILE)?$", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SHORTEST = 3
"""Fewest characters of a beginning that is looked for among the denied: ``--t``."""

MAX_SHOWN = 60


def allowances(engine: str, allowed: Iterable[str]) -> frozenset[str]:
    """The flags of ``engine`` in an operator's list of ``ENGINE FLAG`` (``engines.allow``)."""
    pairs = (entry.split() for entry in allowed)
    return frozenset(flag_name(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == engine)


def flag_name(argument: str) -> str:
    """The flag of an argument as engines read it: without ``=value``, without the key of
    ``--flag.key``, with ``-`` for ``_``."""
    name = argument.split("=", 1)[0]
    if name.startswith("--"):
        return name.split(".", 1)[0].replace("_", "-").lower()
    return name


def flag_fault(rules: EngineRules, argument: str, allowed: Collection[str] = ()) -> str | None:
    """Why ``argument`` may not be among a profile's args, or ``None`` if it may.

    ``--flag=value``, ``--flag.key``, ``--a_b``, ``--no-flag`` and, where the engine's
    parser takes it, ``--fl`` all count as the flag. ``allowed`` are flags the operator
    permits; only what is denied for safety can be (``ALLOWABLE``). The value is never
    repeated: it may be a secret.
    """
    if argument == "--":
        return "-- is not allowed: it ends the engine's options"
    name = flag_name(argument)
    if not name.startswith("-"):
        return None
    meant = _denied(rules, name)
    if meant is None:
        return None
    reason = rules.denied[meant]
    if reason in ALLOWABLE and meant in allowed:
        return None
    if reason in OFF_IS_FINE and name.startswith("--no-") and meant != name:
        return None
    shown = name[:MAX_SHOWN]
    if not meant.startswith("--"):
        shown = meant
    elif meant not in (name, "--" + name.removeprefix("--no-")):
        shown = f"{shown} (short for {meant})"
    return f"{shown} is not allowed: {reason}" + (
        " (an admin can permit it in engines.allow)" if reason in ALLOWABLE else ""
    )


def _denied(rules: EngineRules, name: str) -> str | None:
    """The denied flag that ``name`` stands for."""
    if name in rules.denied:
        return name
    if not name.startswith("--"):
        # Short flags take their value without a space: -tp2, -np4.
        short = re.match(r"-[A-Za-z]+", name)
        return short[0] if short and short[0] != name and short[0] in rules.denied else None
    bare = "--" + name.removeprefix("--no-") if name.startswith("--no-") else name
    if bare in rules.denied:
        return bare
    if not rules.abbreviates or name in rules.complete or len(bare) < _SHORTEST:
        return None
    return next((flag for flag in rules.denied if flag.startswith(bare)), None)


def variable_fault(rules: EngineRules, name: str) -> str | None:
    """Why a profile's env may not hold ``name``, or ``None`` if it may."""
    if not _VARIABLE.fullmatch(name):
        return "is not a name of an environment variable"
    folded = name.upper()
    reason = _match(rules.environment.items(), folded) or _match(ENVIRONMENT.items(), folded)
    if reason is None and _SECRET.search(name):
        reason = KEYS
    return None if reason is None else f"is not allowed: {reason}"


def _match(rules: Iterable[tuple[str, str]], name: str) -> str | None:
    for pattern, reason in rules:
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            return reason
    return None
