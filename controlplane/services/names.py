"""Names that people give: labels, domains and scopes, and what they must look like."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from llmgw.runtime.faults import Fault, did_you_mean

LOCATION = ("site", "room", "row", "rack", "pdu")
"""What ``llmgw.io/`` labels say about where a node is, from the whole to the part (PLC-09)."""

OURS = "llmgw.io/"
MAX_LABELS = 64
MAX_VALUE = 63
MAX_DEPTH = 3

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?){0,7}"
_KEY = re.compile(rf"(?:{_DOMAIN}/)?{_WORD}")
_VALUE = re.compile(rf"(?:{_WORD})?")
_PART = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def key_fault(key: str) -> str | None:
    """Why a label cannot have this name; ``None`` if it can."""
    if len(key) > 253 or not _KEY.fullmatch(key):
        return (
            "must be 1 to 63 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit; "
            "a domain and a slash may stand before it, such as example.com/tier"
        )
    if key.startswith(OURS) and key.removeprefix(OURS) not in LOCATION:
        known = [OURS + name for name in LOCATION]
        return f"is not a label of llmgw's own: those are {', '.join(known)}{did_you_mean(key, known)}"
    return None


def value_fault(value: str) -> str | None:
    """Why a label cannot have this value; ``None`` if it can."""
    if _VALUE.fullmatch(value):
        return None
    return "must be empty, or 1 to 63 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"


def label_faults(labels: Mapping[str, str | None], place: str) -> list[Fault]:
    """Everything wrong with labels; a value of ``None`` takes a label away."""
    faults = []
    if len(labels) > MAX_LABELS:
        faults.append(Fault(place, f"has {len(labels)} entries; the limit is {MAX_LABELS}"))
    for key, value in labels.items():
        fault = key_fault(key)
        if fault is None and value is not None:
            fault = value_fault(value)
        if fault is not None:
            faults.append(Fault(f"{place}.{key[:80]}", fault))
    return faults


def location(labels: Mapping[str, str]) -> dict[str, str]:
    """Where a node is, as far as its labels say."""
    return {name: labels[OURS + name] for name in LOCATION if labels.get(OURS + name)}


def domain(text: str) -> tuple[str, str] | str:
    """The label and the value of a domain such as ``llmgw.io/rack=r12``, or ``rack=r12``
    for short; a text says what is wrong with it."""
    key, equals, value = text.partition("=")
    if not equals or not value:
        return "must be LABEL=VALUE, such as rack=r12 or llmgw.io/rack=r12"
    key = OURS + key if key in LOCATION else key
    fault = key_fault(key)
    if fault is not None:
        return f"the label {key[:80]} {fault}"
    fault = value_fault(value)
    return (key, value) if fault is None else f"the value {value[:80]} {fault}"


def path_fault(path: str) -> str | None:
    """Why a scope cannot have this path; ``None`` if it can (TEN-01)."""
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        return "has more than three parts: a path is org, org/team or org/team/project"
    if not all(_PART.fullmatch(part) for part in parts):
        return (
            "must be org, org/team or org/team/project, each part 1 to 63 lower-case letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return None


def content_version(content: Any) -> int:
    """A version of what has none of its own: the same for the same content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])
