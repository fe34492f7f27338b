"""Many problems told in few lines: alike ones together, the worst first (CLI-02)."""

import re
from typing import Any, NamedTuple

from llmgw.cli.output import clean, listed

Problem = dict[str, Any]

WORST_FIRST = ("serving", "mass-loss", "lease", "store", "journal", "spool", "catalog", "nodes", "routers", "")
EACH = ("model", "node", "engine", "device", "setting", "scope", "hold", "stale")
"""Order of kinds: what stops everything, what is not known here, what stops a part."""

ALIKE = 3
"""So many problems that differ in name and figures alone are told as one."""

_AWAY = {"is lost": 0, "is unreachable": 1, "is reconnecting": 2}


class Told(NamedTuple):
    """One or many problems in a sentence, and the command that shows all of them."""

    words: str
    many: int
    see: str = ""


def told(problems: list[Problem]) -> list[Told]:
    """The problems as sentences, the worst first."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((str(problem["kind"]), _sort_of(problem)), []).append(problem)
    ordered = sorted(groups.items(), key=lambda item: (_severity(item[0][0]), _AWAY.get(item[0][1], 0), -len(item[1])))
    return [line for (kind, sort), members in ordered for line in _lines(kind, sort, members)]


def _severity(kind: str) -> int:
    if kind in EACH:
        return len(WORST_FIRST) + EACH.index(kind)
    return WORST_FIRST.index(kind) if kind in WORST_FIRST else WORST_FIRST.index("")


def _head(problem: Problem) -> str:
    """What it is about; there is but one of some."""
    kind, subject = clean(problem["kind"]), clean(problem["subject"])
    return kind if kind in WORST_FIRST and kind != "catalog" else f"{kind} {subject}"


def _message(problem: Problem) -> str:
    """What is wrong, without the name that stands before it where that begins a sentence."""
    kind, subject, message = (clean(problem[word]) for word in ("kind", "subject", "message"))
    return re.sub(rf"(^|: ){re.escape(f'{kind} {subject} ')}", r"\1", message)


def _sort_of(problem: Problem) -> str:
    """What problems that are alike have in common."""
    message = _message(problem)
    if problem["kind"] == "node":
        return re.split(r" \(|;|,|:", message, maxsplit=1)[0]
    return re.sub(r"\d+(\.\d+)?", "#", message.replace(clean(problem["subject"]), "*"))


def _lines(kind: str, sort: str, members: list[Problem]) -> list[Told]:
    if len(members) < ALIKE:
        return [Told(f"{_head(each)}: {_message(each)}", 1) for each in members]
    names = listed([str(each["subject"]) for each in members])
    if kind == "node":
        word = sort.removeprefix("is ")
        see = f"llmgw ctl nodes --status {word}" if re.fullmatch(r"[a-z]+", word) else "llmgw ctl nodes"
        return [Told(f"node: {len(members)} {word} ({names})", len(members), see)]
    places = {"model": "llmgw ctl models", "device": "llmgw ctl nodes -o wide", "engine": "llmgw ctl nodes -o wide"}
    first = members[0]
    words = f"{clean(kind)}: {len(members)} ({names}), such as {clean(first['subject'])}: {_message(first)}"
    return [Told(words, len(members), places.get(kind, ""))]
